#!/usr/bin/env python3
"""run.py: runs the package's tests, with the lines that tools/count_tests.awk counts.

Usage: run.py [NAME...]: modules or tests, as unittest names them; none: all. Modules whose libraries are not installed
are skipped, and say so.
"""
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Result(unittest.TextTestResult):
    """One line when a test starts and one when it ends."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)
        self.line("RUN     ", test)

    def line(self, word, test):
        self.stream.write(f"[ {word} ] {test.id().replace(' ', '_')}\n")
        self.stream.flush()

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.line("      OK", test)

    def addSkip(self, test, reason):
        unittest.TestResult.addSkip(self, test, reason)
        self.line(" SKIPPED", test)
        self.stream.write(f"    {reason}\n")

    def addFailure(self, test, error):
        unittest.TestResult.addFailure(self, test, error)
        self.line(" FAILED ", test)

    def addError(self, test, error):
        unittest.TestResult.addError(self, test, error)
        self.line(" FAILED ", test)


def main():
    sys.path.insert(0, str(HERE))
    loader = unittest.defaultTestLoader
    names = sys.argv[1:]
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(HERE))
    result = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result, verbosity=0).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
