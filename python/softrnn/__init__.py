"""Softmax attention as an RNN, and every variant of it, on NumPy arrays and torch tensors.

>>> q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 8, 64, 32)).astype("float32")
>>> o = softrnn.attention(q, k, v, "norm")

attention, gradients: over whole sequences. State: one piece at a time. parse, variants: what there is. softrnn.nn:
layers for torch. softrnn.lab: models, tokenizers, training and studies. softrnn.hf: transformers.
"""

import importlib
from typing import Any

from ._attention import attention, gradients
from ._library import (ArgumentError, ArgumentTypeError, FileError, FormatError, Interrupted, LimitError,
                       OutOfMemoryError, SoftrnnError, UnsupportedError)
from ._library import lib as _lib
from ._library import text as _text
from ._state import State
from ._variants import Variant, parse, variants

__version__ = _text(_lib.srnn_version())

__all__ = ["attention", "gradients", "State", "Variant", "parse", "variants", "SoftrnnError", "ArgumentError",
           "ArgumentTypeError", "FileError", "FormatError", "Interrupted", "LimitError", "OutOfMemoryError",
           "UnsupportedError"]

for _error in (SoftrnnError, ArgumentError, ArgumentTypeError, FileError, FormatError, Interrupted, LimitError,
               OutOfMemoryError, UnsupportedError):
    _error.__module__ = "softrnn"

_MODULES = ("nn", "lab", "hf")  # imported where they are first used: nn and hf need torch


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'softrnn' has no attribute '{name}'")
