# g++ needs a third less time for tests with -O1 than with -O2.
function(specdec_compile_tests_fast)
    add_compile_options(
        "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O1>"
    )
endfunction()

# specdec_run_gtest(name [SHARDS n] [ENVIRONMENT NAME=value...]): ctest runs the executable in n
# processes, which share its tests. A process a test would start longer than most tests run.
function(specdec_run_gtest name)
    cmake_parse_arguments(PARSE_ARGV 1 run "" "SHARDS" "ENVIRONMENT")
    if(NOT run_SHARDS)
        set(run_SHARDS 1)
    endif()
    foreach(shard RANGE 1 ${run_SHARDS})
        math(EXPR index "${shard} - 1")
        add_test(NAME ${name}.${shard} COMMAND ${name} --gtest_brief=1)
        # A filter (GTEST_FILTER) that names nothing must not pass.
        set_tests_properties(
            ${name}.${shard}
            PROPERTIES
                ENVIRONMENT
                    "GTEST_TOTAL_SHARDS=${run_SHARDS};GTEST_SHARD_INDEX=${index};${run_ENVIRONMENT}"
                FAIL_REGULAR_EXPRESSION "=] 0 tests from"
        )
    endforeach()
endfunction()
