# count_tests.awk: sums up the test logs of ctest (Testing/Temporary/LastTest.log of each build).
#
# A cmocka test function counts as one test, and so does a test program that is not cmocka. A test
# that ran in several builds counts once, as failed if it failed in any of them. Prints each failure,
# then "PASSED FAILED" as two numbers.

function record(name, failed) {
    if (!(name in worst) || failed > worst[name])
        worst[name] = failed
}

/^[0-9]+\/[0-9]+ Testing: / { program = $3; running = ""; functions = 0; failures = 0; absent = 0 }
# ctest logs a program that it did not find as passed, with an empty command.
/^Command: ""/ { absent = 1 }
/^\[ RUN      \] / { running = $4 }
/^\[       OK \] / { record(program ": " $4, 0); running = ""; functions++ }
/^\[  SKIPPED \] / { running = ""; functions++ }
# The list of failures at the end repeats the names: only the line after RUN is a result.
/^\[  FAILED  \] / && $4 == running { record(program ": " $4, 1); running = ""; functions++; failures++ }
# The verdict of ctest, once per program.
/^Test (Passed|Failed)\./ {
    failed = absent || $0 ~ /^Test Failed/
    if (running != "") { # crashed in the middle
        record(program ": " running, 1)
        running = ""
        functions++
        failures++
    }
    if (functions == 0 || (failed && failures == 0))
        record(program, failed)
}

END {
    passed = failed = 0
    for (name in worst) {
        if (worst[name]) {
            failed++
            print "failed: " name
        } else {
            passed++
        }
    }
    print passed, failed
}
