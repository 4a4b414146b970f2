"""The examples in docstrings."""
import doctest
import importlib
import unittest

import numpy

import softrnn
from helpers import torch

MODULES = ["softrnn", "softrnn._attention", "softrnn._state", "softrnn._variants", "softrnn.nn", "softrnn.lab", "softrnn.hf"]
NAMES = {"softrnn": softrnn, "numpy": numpy, "torch": torch}
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


def load_tests(loader, tests, pattern):
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        tests.addTests(doctest.DocTestSuite(module, NAMES, optionflags=FLAGS))
    return tests
