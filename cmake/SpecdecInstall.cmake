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

# For builds that ask pkg-config, of Rust or Go say. A static library needs what it was made with.
set(SPECDEC_PC_PRIVATE_LIBS "-lstdc++ -lm -pthread -ldl")
set(SPECDEC_PC_LIBS "")
if(NOT BUILD_SHARED_LIBS)
    set(SPECDEC_PC_LIBS " ${SPECDEC_PC_PRIVATE_LIBS}")
endif()
configure_file(
    cmake/specdec.pc.in
    "${CMAKE_CURRENT_BINARY_DIR}/specdec.pc"
    @ONLY
)
install(
    FILES "${CMAKE_CURRENT_BINARY_DIR}/specdec.pc"
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
)
