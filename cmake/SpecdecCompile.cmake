# Warnings and sanitizers every target of the project is built with; UNCHECKED: no sanitizers. nvcc has
# options of its own.
function(specdec_compile_options target)
    set(options -Wall -Wextra -Wno-psabi)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        # Where every machine has fused multiply-adds, g++ makes them of products and sums.
        list(APPEND options -ffp-contract=off)
    endif()
    if(SPECDEC_WERROR)
        list(APPEND options -Werror)
    endif()
    if(SPECDEC_SANITIZE AND NOT "UNCHECKED" IN_LIST ARGN)
        list(
            APPEND options
            -fsanitize=${SPECDEC_SANITIZE}
            -fno-omit-frame-pointer
            -fno-sanitize-recover=all
        )
        target_link_options(${target} PUBLIC -fsanitize=${SPECDEC_SANITIZE})
    endif()
    target_compile_options(
        ${target}
        PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>"
    )
endfunction()

# nlohmann/json headers: a CMake package (Debian), else the pinned PyPI package of that name.
function(specdec_find_json)
    find_package(nlohmann_json CONFIG QUIET GLOBAL)
    if(TARGET nlohmann_json::nlohmann_json)
        return()
    endif()
    if(CMAKE_CROSSCOMPILING AND EXISTS /usr/include/nlohmann/json.hpp)
        # The headers are the same for every machine, those beside them are not.
        file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/json")
        file(
            CREATE_LINK
                /usr/include/nlohmann
                "${PROJECT_BINARY_DIR}/json/nlohmann"
            SYMBOLIC
        )
        add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
        target_include_directories(
            nlohmann_json::nlohmann_json
            SYSTEM
            INTERFACE "${PROJECT_BINARY_DIR}/json"
        )
        return()
    endif()
    find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)
    execute_process(
        COMMAND
            ${Python_EXECUTABLE} -c
            "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('nlohmann_json').origin), end='/include')"
        OUTPUT_VARIABLE json_include
        RESULT_VARIABLE json_result
        ERROR_QUIET
    )
    if(NOT json_result EQUAL 0)
        message(
            FATAL_ERROR
            "nlohmann/json not found: apt-get install nlohmann-json3-dev, or pip install nlohmann-json==3.12.0"
        )
    endif()
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
    target_include_directories(
        nlohmann_json::nlohmann_json
        SYSTEM
        INTERFACE "${json_include}"
    )
endfunction()

# GTest::gtest and GTest::gtest_main. For another machine they are built from Debian's sources.
function(specdec_find_gtest)
    if(TARGET GTest::gtest)
        return()
    endif()
    if(NOT CMAKE_CROSSCOMPILING)
        find_package(GTest REQUIRED GLOBAL)
        return()
    endif()
    set(BUILD_GMOCK OFF)
    set(INSTALL_GTEST OFF)
    add_subdirectory(
        /usr/src/googletest
        "${PROJECT_BINARY_DIR}/googletest"
        EXCLUDE_FROM_ALL
    )
    if(NOT TARGET GTest::gtest)
        add_library(GTest::gtest ALIAS gtest)
        add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
endfunction()
