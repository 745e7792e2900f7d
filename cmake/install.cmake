# What `cmake --install` puts where: libraries, public headers and package files; command, man page and completions; the
# ready-made schedules and the JSON schemas.
function(install_headers)
  foreach(header IN LISTS ARGN)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pipewright/${folder})
  endforeach()
endfunction()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pipewright)
install(TARGETS pipewright_schedule EXPORT pipewrightTargets)
install_headers(${pipewright_schedule_headers})
install(EXPORT pipewrightTargets NAMESPACE pipewright:: DESTINATION ${package_dir})
if(PIPEWRIGHT_EXECUTOR)
  install(TARGETS pipewright_checkpoint pipewright_executor EXPORT pipewrightExecutorTargets)
  install_headers(${pipewright_executor_headers})
  install(EXPORT pipewrightExecutorTargets NAMESPACE pipewright:: FILE pipewright_executor.cmake DESTINATION ${package_dir})
  install(FILES cmake/torch.cmake cmake/libdeflate.cmake DESTINATION ${package_dir})
endif()
if(PIPEWRIGHT_NCCL)
  install(TARGETS pipewright_nccl EXPORT pipewrightNcclTargets)
  install_headers(${pipewright_nccl_headers})
  install(EXPORT pipewrightNcclTargets NAMESPACE pipewright:: FILE pipewright_nccl.cmake DESTINATION ${package_dir})
  install(FILES cmake/torch_cuda.cmake DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/pipewrightConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/pipewrightConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/pipewrightConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pipewrightConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/pipewrightConfigVersion.cmake DESTINATION ${package_dir})
# Relative, so that `cmake --install --prefix` may choose another place.
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/pipewright-schedule.pc.in pipewright-schedule.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pipewright-schedule.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${pipewright_ready_files} ir/text/schedule.schema.json schedule/problem/costs.schema.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright)

if(PIPEWRIGHT_CLI)
  install(TARGETS pipewright_command)
  add_executable(pipewright_man_page cli/man_page.cc)
  target_link_libraries(pipewright_man_page PRIVATE pipewright_cli)
  set(pages ${CMAKE_CURRENT_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  add_custom_command(
    OUTPUT ${pages}/pipewright.1 ${pages}/pipewright ${pages}/_pipewright ${pages}/pipewright.fish
    COMMAND pipewright_man_page > ${pages}/pipewright.1
    COMMAND pipewright_command completion bash > ${pages}/pipewright
    COMMAND pipewright_command completion zsh > ${pages}/_pipewright
    COMMAND pipewright_command completion fish > ${pages}/pipewright.fish
    VERBATIM)
  add_custom_target(pipewright_pages ALL DEPENDS ${pages}/pipewright.1)
  install(FILES ${pages}/pipewright.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/pipewright DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${pages}/_pipewright DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/pipewright.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
