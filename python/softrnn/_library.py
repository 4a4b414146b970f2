"""The C libraries: where they are, how they are called, and their errors as Python exceptions.

The interface is read from the C headers themselves, which are part of the package, so that a new function, axis or
operand needs no second declaration here.
"""

import os
import re
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import cffi

ffi = cffi.FFI()

PACKAGE = Path(__file__).resolve().parent


class SoftrnnError(Exception):
    """What every exception of this package is; its text is the library's own message."""


class ArgumentError(SoftrnnError, ValueError):
    """An argument makes no sense, or does not fit the others."""


class ArgumentTypeError(SoftrnnError, TypeError):
    """An argument is of a type that is not taken there."""


class FormatError(SoftrnnError, ValueError):
    """A file or a text is not what it should be."""


class UnsupportedError(SoftrnnError, NotImplementedError):
    """Sensible, but not available here."""


class OutOfMemoryError(SoftrnnError, MemoryError):
    """Memory is not available."""


class FileError(SoftrnnError, OSError):
    """The system refused to read or write."""


class LimitError(SoftrnnError, ValueError):
    """Would exceed a limit that the caller set."""


class Interrupted(SoftrnnError):
    """Stopped on request."""


def _folders(inside: str, in_clone: str) -> List[Path]:
    """Where something of the package may be: next to this file when installed, or in the clone around it."""
    clone = PACKAGE.parent.parent
    return [PACKAGE / inside, clone / in_clone]


def _library_folder() -> Path:
    """$SOFTRNN_LIBRARIES, the package's own folder, or build/ of the clone."""
    given = os.environ.get("SOFTRNN_LIBRARIES")
    folders = [Path(given)] if given else _folders("lib", "build")
    for folder in folders:
        if (folder / "libsoftrnn.so").exists():
            return folder
    raise ImportError("libsoftrnn.so is in none of " + ", ".join(map(str, folders)) +
                      ": install the package (pip install .), or build the clone with make")


def header(name: str) -> str:
    """The text of a C header."""
    path = next((f / name for f in _folders("include", "include") if (f / name).exists()), None)
    if path is None:
        raise ImportError(f"{name} is not part of this installation of softrnn")
    return path.read_text(encoding="utf-8")


def _declarations(name: str) -> str:
    """Those of a C header, without what only the C compiler understands."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", header(name), flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return text.replace("SRNN_API ", "")


def _open(name: str) -> Any:
    ffi.cdef(_declarations(name.replace("lib", "", 1) + ".h"))
    return ffi.dlopen(str(_library_folder() / f"{name}.so"), ffi.RTLD_NOW)


lib = _open("libsoftrnn")

_ERRORS = {
    lib.SRNN_ERR_ARGUMENT: ArgumentError,
    lib.SRNN_ERR_MEMORY: OutOfMemoryError,
    lib.SRNN_ERR_IO: FileError,
    lib.SRNN_ERR_FORMAT: FormatError,
    lib.SRNN_ERR_UNSUPPORTED: UnsupportedError,
    lib.SRNN_ERR_LIMIT: LimitError,
    lib.SRNN_ERR_INTERRUPTED: Interrupted,
}


_raised: List[BaseException] = []


def _keep(kind: Any, error: BaseException, traceback: Any) -> None:
    _raised.append(error)


@ffi.callback("_Bool(void *)", error=True, onerror=_keep)  # type: ignore[untyped-decorator]
def _stop_requested(context: Any) -> bool:
    """Called about twenty times a second while the library computes. Python then runs the handlers of signals; what one
    raises (KeyboardInterrupt, for Ctrl-C) stops the call."""
    return False


if threading.current_thread() is threading.main_thread():  # the one that handles signals
    lib.srnn_stop_when(_stop_requested, ffi.NULL)


@contextmanager
def unstoppable() -> Iterator[None]:
    """Within it signals wait until calls return: where half of a call would leave something inconsistent."""
    lib.srnn_stop_when(ffi.NULL, ffi.NULL)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            lib.srnn_stop_when(_stop_requested, ffi.NULL)


def check(status: int) -> None:
    """Raises the exception of a status other than SRNN_OK."""
    if status == lib.SRNN_ERR_INTERRUPTED and _raised:
        raise _raised.pop()
    if status:
        raise _ERRORS.get(status, SoftrnnError)(text(lib.srnn_error_detail()))


def owned(out: Any, free: Callable[[Any], Any], *needed: Any) -> Any:
    """`out`, a pointer to a handle of C, which is freed once nothing refers to `out`, and before any of `needed` is: those
    that the handle depends on.

    ffi.gc does not keep that order. The garbage collector finalizes what lies in one cycle in any order, while objects next to
    it in the cycle may still use it. `out` is not tracked by the collector: it goes last. At exit nothing is freed."""
    weakref.finalize(out, _free, free, out[0], needed).atexit = False
    return out


def _free(free: Callable[[Any], Any], handle: Any, needed: Tuple[Any, ...]) -> None:
    free(handle)


def text(characters: Any) -> str:
    """A C string."""
    return ffi.string(characters).decode("utf-8", "replace")


def encoded(value: str, argument: str) -> bytes:
    """A Python text for C."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{argument} must be a text, not {type(value).__name__}")
    if "\0" in value:
        raise ArgumentError(f"{argument} holds a NUL character")
    return value.encode("utf-8")


def words(enumeration: str) -> List[str]:
    """The words of an enumeration: "parallel" for SRNN_FORM_PARALLEL."""
    elements = ffi.typeof(enumeration).elements
    start = os.path.commonprefix(list(elements.values())).rfind("_") + 1
    return [elements[value][start:].lower() for value in sorted(elements)]
