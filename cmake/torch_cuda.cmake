# Defines the target pipewright::torch_cuda: what pipewright::torch has (torch.cmake), libtorch_cuda, NCCL, and CUDA's headers.
# They are those of the wheels in LIBTORCH_SITE, torch's dependencies included, so neither a CUDA toolkit nor a GPU is needed to
# build. Used here, and by the installed package.
if(TARGET pipewright::torch_cuda)
  return()
endif()
file(GLOB pipewright_nccl_library ${LIBTORCH_SITE}/nvidia/nccl/lib/libnccl.so.2)
file(GLOB pipewright_cuda_include ${LIBTORCH_SITE}/nvidia/cu*/include)
if(NOT LIBTORCH_SITE OR NOT pipewright_nccl_library OR NOT pipewright_cuda_include)
  message(FATAL_ERROR "LIBTORCH_SITE: expected a site-packages folder with torch, nvidia/nccl and nvidia/cu*, as `pip install torch` "
                      "makes it, got `${LIBTORCH_SITE}`")
endif()
add_library(pipewright::torch_cuda INTERFACE IMPORTED)
target_include_directories(pipewright::torch_cuda SYSTEM INTERFACE ${pipewright_cuda_include} ${LIBTORCH_SITE}/nvidia/nccl/include)
# Nothing calls into libtorch_cuda by name: it registers itself when it is loaded.
file(GLOB pipewright_cuda_folders ${LIBTORCH_SITE}/nvidia/*/lib)
list(TRANSFORM pipewright_cuda_folders PREPEND "-Wl,-rpath-link,")
target_link_libraries(
  pipewright::torch_cuda
  INTERFACE
    pipewright::torch ${pipewright_cuda_folders} ${pipewright_nccl_library}
    "-Wl,--push-state,--no-as-needed,${LIBTORCH_SITE}/torch/lib/libtorch_cuda.so,${LIBTORCH_SITE}/torch/lib/libc10_cuda.so,--pop-state")
