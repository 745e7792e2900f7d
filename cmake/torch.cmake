# Defines the target pipewright::torch: LibTorch's headers and its libraries for CPUs. Sets pipewright_torch_version, such
# as 2.11. Used here, and by the installed package.
#
# With -DLIBTORCH_SITE=DIR, a site-packages folder that holds torch, the wheel's libraries are used directly. Otherwise
# find_package(Torch) finds them, whose prefix `python -c 'import torch; print(torch.utils.cmake_prefix_path)'` prints. The
# package file of PyPI's wheel for x86-64, a CUDA build, stops without a CUDA toolkit; LIBTORCH_SITE does not need one.
if(TARGET pipewright::torch)
  return()
endif()
add_library(pipewright::torch INTERFACE IMPORTED)
if(LIBTORCH_SITE)
  set(pipewright_torch_dir ${LIBTORCH_SITE}/torch)
  if(NOT EXISTS ${pipewright_torch_dir}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LIBTORCH_SITE: expected a site-packages folder with torch, got ${LIBTORCH_SITE}, which has no torch/lib/libtorch_cpu.so")
  endif()
  # libtorch_cpu.so of a CUDA build needs two libraries of CUDA, and no more.
  file(GLOB pipewright_torch_cuda ${LIBTORCH_SITE}/nvidia/*/lib/libcudart.so.* ${LIBTORCH_SITE}/nvidia/*/lib/libcupti.so.*)
  target_link_libraries(
    pipewright::torch INTERFACE ${pipewright_torch_dir}/lib/libtorch_cpu.so ${pipewright_torch_dir}/lib/libc10.so
                                ${pipewright_torch_cuda})
  target_include_directories(pipewright::torch SYSTEM INTERFACE ${pipewright_torch_dir}/include
                                                                ${pipewright_torch_dir}/include/torch/csrc/api/include)
else()
  find_path(pipewright_torch_config TorchConfig.cmake HINTS ${Torch_DIR} PATH_SUFFIXES Torch share/cmake/Torch NO_CACHE)
  find_package(CUDAToolkit QUIET)
  if(EXISTS ${pipewright_torch_config}/../../../lib/libtorch_cuda.so AND NOT CUDAToolkit_FOUND)
    get_filename_component(pipewright_torch_site ${pipewright_torch_config}/../../../.. ABSOLUTE)
    message(FATAL_ERROR
      "Torch in ${pipewright_torch_config} is a CUDA build, as PyPI's wheel is: its package file needs a CUDA toolkit, and "
      "none was found. Pass -DLIBTORCH_SITE=${pipewright_torch_site} to use its libraries for CPUs without that file; or "
      "install a CUDA toolkit; or install the CPU build of https://download.pytorch.org/whl/cpu")
  endif()
  find_package(Torch REQUIRED)
  get_filename_component(pipewright_torch_dir ${TORCH_INSTALL_PREFIX} ABSOLUTE)
  target_link_libraries(pipewright::torch INTERFACE ${TORCH_LIBRARIES})
  target_include_directories(pipewright::torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
endif()
foreach(part MAJOR MINOR)
  file(STRINGS ${pipewright_torch_dir}/include/torch/headeronly/version.h line REGEX "define TORCH_VERSION_${part} ")
  string(REGEX REPLACE ".* " "" pipewright_torch_${part} "${line}")
endforeach()
set(pipewright_torch_version ${pipewright_torch_MAJOR}.${pipewright_torch_MINOR})
# The oldest and the newest minor version that are supported. third_party/torch.bzl has them too.
set(pipewright_torch_oldest 2.11)
set(pipewright_torch_newest 2.15)
if(pipewright_torch_version VERSION_LESS pipewright_torch_oldest OR pipewright_torch_version VERSION_GREATER pipewright_torch_newest)
  message(FATAL_ERROR "${pipewright_torch_dir}: expected LibTorch ${pipewright_torch_oldest} to ${pipewright_torch_newest}, "
                      "got ${pipewright_torch_version}")
endif()
