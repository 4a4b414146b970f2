"""The C library by ctypes: a kernel of the Hub may import torch and the standard library only."""

import ctypes
from pathlib import Path
from typing import Any

from . import _declarations as c  # written by tools/kernel.py from softrnn.h

lib = ctypes.CDLL(str(Path(__file__).resolve().parent / "libsoftrnn.so"))
for _name, (_result, _arguments) in c.FUNCTIONS.items():
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _result, _arguments

_ERRORS = {c.SRNN_ERR_ARGUMENT: ValueError, c.SRNN_ERR_FORMAT: ValueError, c.SRNN_ERR_LIMIT: ValueError,
           c.SRNN_ERR_MEMORY: MemoryError, c.SRNN_ERR_UNSUPPORTED: NotImplementedError}


def check(status: int) -> None:
    """Raises the exception of a status other than SRNN_OK, with the library's own message."""
    if status:
        raise _ERRORS.get(status, RuntimeError)(lib.srnn_error_detail().decode("utf-8", "replace"))


def parse(text: str) -> Any:
    """A srnn_attention."""
    struct = c.srnn_attention()
    check(lib.srnn_attention_parse(ctypes.byref(struct), text.encode()))
    return struct


def operands_of(problem: Any) -> Any:
    """A srnn_operand for everything that the problem's variant reads."""
    index, operand = 0, c.srnn_operand()
    while lib.srnn_operand_at(ctypes.byref(operand), ctypes.byref(problem), index):
        yield operand
        index, operand = index + 1, c.srnn_operand()
