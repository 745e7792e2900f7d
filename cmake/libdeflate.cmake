# Finds libdeflate (Debian: libdeflate-dev), for checksums of checkpoints: the target pipewright::libdeflate.

if(NOT TARGET pipewright::libdeflate)
  find_path(LIBDEFLATE_INCLUDE_DIR libdeflate.h REQUIRED)
  find_library(LIBDEFLATE_LIBRARY deflate REQUIRED)
  add_library(pipewright::libdeflate UNKNOWN IMPORTED)
  set_target_properties(pipewright::libdeflate PROPERTIES IMPORTED_LOCATION ${LIBDEFLATE_LIBRARY}
                                                          INTERFACE_INCLUDE_DIRECTORIES ${LIBDEFLATE_INCLUDE_DIR})
endif()
