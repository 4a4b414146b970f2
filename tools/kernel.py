#!/usr/bin/env python3
"""kernel.py: the layout that Hugging Face's `kernels` loads, from wheels; checked with Hugging Face's own programs.

Usage: kernel.py FOLDER BACKEND=WHEEL...        (cpu=..., cu130=...)

A build variant for each backend, FOLDER/build/torch-stable-abi24-<backend>-x86_64-linux: the wheel's library, the
files of python/kernel, declarations in ctypes made from softrnn.h, and metadata. The library takes torch's tensors by
address, so that it fits every torch with operators in Python: 2.4 and newer. Needs the packages cffi, numpy, kernels and
kernel-abi-check.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRIMITIVES = {"int": "c_int", "double": "c_double", "_Bool": "c_bool", "size_t": "c_size_t", "int64_t": "c_int64"}
ARCHITECTURES = ["8.0", "9.0a"]  # of wheels with CUDA (tools/wheel.sh)


def c_type(kind):
    """The ctypes expression of a type of cffi."""
    if kind.kind == "enum":
        return "ctypes.c_int"
    if kind.kind == "array":
        return f"{c_type(kind.item)} * {kind.length}"
    if kind.kind == "struct":
        return kind.cname
    if kind.kind == "function":
        return "ctypes.c_void_p"
    if kind.kind == "pointer":
        return "ctypes.c_char_p" if kind.item.cname == "char" else "ctypes.c_void_p"
    return f"ctypes.{PRIMITIVES[kind.cname]}"


def result_type(kind):
    if kind.kind == "void":
        return "None"
    if kind.kind == "pointer" and kind.item.kind == "struct" and kind.item.fields:
        return f"ctypes.POINTER({kind.item.cname})"
    return c_type(kind)


def struct_lines(ffi, name, written):
    """A class for the struct, after those of its members."""
    kind = ffi.typeof(name)
    if name in written or not kind.fields:
        return []
    written.add(name)
    lines = [line for _, field in kind.fields if field.type.kind == "struct"
             for line in struct_lines(ffi, field.type.cname, written)]
    fields = ", ".join(f'("{field}", {c_type(member.type)})' for field, member in kind.fields)
    return lines + [f"class {name}(ctypes.Structure):", f"    _fields_ = [{fields}]", "", ""]


def declarations(ffi, lib):
    """The text of _declarations.py."""
    lines = ['"""softrnn.h in ctypes; written by tools/kernel.py."""', "", "import ctypes", "", ""]
    types, written = [name for name in ffi.list_types()[0] if name.startswith("srnn_")], set()
    for name in types:
        if ffi.typeof(name).kind == "struct":
            lines += struct_lines(ffi, name, written)
    for name in types:
        if ffi.typeof(name).kind == "enum":
            lines += [f"{word} = {value}" for value, word in sorted(ffi.typeof(name).elements.items())]
    lines += ["", "FUNCTIONS = {"]
    for name in (name for name in dir(lib) if name.startswith("srnn_")):
        kind = ffi.typeof(getattr(lib, name))
        arguments = ", ".join(map(c_type, kind.args))
        lines.append(f'    "{name}": ({result_type(kind.result)}, [{arguments}]),')
    return "\n".join([*lines, "}", ""])


def read_interface(folder):
    """cffi's view of the library in a folder."""
    if "softrnn" not in sys.modules:
        os.environ["SOFTRNN_LIBRARIES"] = str(folder)
        sys.path.insert(0, str(ROOT / "python"))
    from softrnn._library import ffi, lib
    return ffi, lib


def identity(folder, backend):
    """A unique name for these files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return f"_softrnn_{re.match('[a-z]+', backend)[0].replace('cu', 'cuda', 1)}_{digest.hexdigest()[:12]}"


def metadata(folder, backend):
    kind = {"type": "cpu"} if backend == "cpu" else {"type": "cuda", "archs": ARCHITECTURES}
    return {"name": "softrnn", "id": identity(folder, backend), "version": 1, "license": "MIT", "python-depends": [],
            "backend": kind}


def make_variant(out, backend, library):
    """The folder of a build variant. library: its bytes."""
    folder = out / "build" / f"torch-stable-abi24-{backend}-x86_64-linux"
    folder.mkdir(parents=True)
    (folder / "libsoftrnn.so").write_bytes(library)
    for path in (ROOT / "python/kernel").glob("*.py"):
        shutil.copy(path, folder)
    (folder / "_declarations.py").write_text(declarations(*read_interface(folder)), encoding="utf-8")
    (folder / "metadata.json").write_text(json.dumps(metadata(folder, backend), indent=2) + "\n", encoding="utf-8")
    return folder


def check_variant(folder):
    """Runs Hugging Face's checks: what the library needs of Python and the system, and the metadata."""
    from kernel_abi_check import ObjectFile
    from kernels._rust import Metadata
    from kernels.variants import parse_variant
    library = ObjectFile(folder / "libsoftrnn.so")
    found = library.check_manylinux("manylinux_2_28") + library.check_python_abi("3.9")
    if found:
        sys.exit(f"kernel.py: {folder}/libsoftrnn.so: {found}")
    read = Metadata.read_from_file(folder / "metadata.json")
    print(f"{parse_variant(folder.name).variant_str}: {read.name} {read.id}, manylinux_2_28, abi3")


def main():
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    for argument in sys.argv[2:]:
        backend, wheel = argument.split("=", 1)
        with zipfile.ZipFile(wheel) as archive:
            check_variant(make_variant(out, backend, archive.read("softrnn/lib/libsoftrnn.so")))
    shutil.copy(ROOT / "LICENSE", out)


if __name__ == "__main__":
    main()
