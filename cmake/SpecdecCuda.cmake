# Resolves SPECDEC_CUDA to SPECDEC_HAS_CUDA and, when it is off, SPECDEC_CUDA_NOTE says why.
set(SPECDEC_HAS_CUDA OFF)
if(SPECDEC_CUDA STREQUAL "OFF")
    set(SPECDEC_CUDA_NOTE "built with SPECDEC_CUDA=OFF")
elseif(SPECDEC_CUDA STREQUAL "ON" OR SPECDEC_CUDA STREQUAL "AUTO")
    if(NOT DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
        find_program(specdec_nvcc nvcc HINTS /usr/local/cuda/bin NO_CACHE)
        if(specdec_nvcc)
            set(CMAKE_CUDA_COMPILER "${specdec_nvcc}")
        endif()
    endif()
    file(GLOB specdec_gpus "/dev/nvidia[0-9]*")
    if(SPECDEC_CUDA STREQUAL "AUTO" AND NOT specdec_gpus)
        set(SPECDEC_CUDA_NOTE
            "no NVIDIA GPU was found when it was built (SPECDEC_CUDA=AUTO)"
        )
    else()
        if(NOT CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES "${SPECDEC_CUDA_ARCHS}")
        endif()
        include(CheckLanguage)
        check_language(CUDA)
        if(CMAKE_CUDA_COMPILER)
            enable_language(CUDA)
            if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
                # CMake before 3.26 does not know that nvcc has C++20.
                set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
                set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
            endif()
            find_package(CUDAToolkit 12.4 REQUIRED)
            set(SPECDEC_HAS_CUDA ON)
            set(SPECDEC_CUDA_NOTE "for ${CMAKE_CUDA_ARCHITECTURES}")
        elseif(SPECDEC_CUDA STREQUAL "ON")
            message(
                FATAL_ERROR
                "SPECDEC_CUDA=ON, but no CUDA compiler was found (set CUDACXX)"
            )
        else()
            set(SPECDEC_CUDA_NOTE
                "no CUDA compiler was found when it was built (SPECDEC_CUDA=AUTO)"
            )
        endif()
    endif()
else()
    message(
        FATAL_ERROR
        "SPECDEC_CUDA must be AUTO, ON or OFF, not '${SPECDEC_CUDA}'"
    )
endif()
message(STATUS "CUDA backend: ${SPECDEC_HAS_CUDA} (${SPECDEC_CUDA_NOTE})")

# Resolves SPECDEC_CUTLASS to SPECDEC_CUTLASS_INCLUDE, empty where there is none.
set(SPECDEC_CUTLASS_INCLUDE "")
if(
    SPECDEC_HAS_CUDA
    AND CMAKE_CUDA_ARCHITECTURES MATCHES "90a"
    AND NOT SPECDEC_CUTLASS STREQUAL "OFF"
)
    if(SPECDEC_CUTLASS STREQUAL "AUTO")
        find_package(Python 3.10 COMPONENTS Interpreter QUIET)
        if(Python_EXECUTABLE)
            execute_process(
                COMMAND
                    ${Python_EXECUTABLE} -c
                    "from importlib.util import find_spec; print(find_spec('cutlass_library').submodule_search_locations[0], end='')"
                OUTPUT_VARIABLE specdec_cutlass_package
                ERROR_QUIET
            )
        endif()
        find_path(
            specdec_cutlass_folder
            cutlass/cutlass.h
            HINTS "${specdec_cutlass_package}/source/include" NO_CACHE
        )
        if(specdec_cutlass_folder)
            set(SPECDEC_CUTLASS_INCLUDE "${specdec_cutlass_folder}")
        endif()
    elseif(EXISTS "${SPECDEC_CUTLASS}/cutlass/cutlass.h")
        set(SPECDEC_CUTLASS_INCLUDE "${SPECDEC_CUTLASS}")
    else()
        message(
            FATAL_ERROR
            "SPECDEC_CUTLASS must be AUTO, OFF or the folder that has cutlass/cutlass.h, not '${SPECDEC_CUTLASS}'"
        )
    endif()
endif()
if(SPECDEC_CUTLASS_INCLUDE)
    message(STATUS "CUTLASS: ${SPECDEC_CUTLASS_INCLUDE}")
elseif(SPECDEC_HAS_CUDA)
    message(STATUS "CUTLASS: none")
endif()
