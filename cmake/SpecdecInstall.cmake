# find_package(specdec) for embedders: the library, its public headers, a package config.
include(CMakePackageConfigHelpers)

install(
    TARGETS specdec
    EXPORT specdecTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
)
install(DIRECTORY cpp/include/specdec DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(
    EXPORT specdecTargets
    NAMESPACE specdec::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/specdec
)
configure_package_config_file(
    cmake/specdecConfig.cmake.in
    "${CMAKE_CURRENT_BINARY_DIR}/specdecConfig.cmake"
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/specdec
)
write_basic_package_version_file(
    "${CMAKE_CURRENT_BINARY_DIR}/specdecConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion
)
install(
    FILES
        "${CMAKE_CURRENT_BINARY_DIR}/specdecConfig.cmake"
        "${CMAKE_CURRENT_BINARY_DIR}/specdecConfigVersion.cmake"
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/specdec
)
