#!/usr/bin/env python3
"""sbom.py: the libraries that a wheel contains: a bill of materials (CycloneDX) and notices.

Usage: sbom.py bom VERSION               JSON to stdout
       sbom.py notices WHEEL             adds softrnn-*.dist-info/licenses/THIRD_PARTY to the wheel

$NVCC: the CUDA compiler, for wheels with CUDA. Their C++ library is zig's, which is found next to this Python.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# Debian's packages: linked into the program and the laboratory (cmake/manylinux.cmake), or copied next to them (jansson).
PACKAGES = ["libblis-serial-dev", "libjansson-dev", "liblzma-dev", "libpcre2-dev", "libutf8proc-dev", "libyaml-dev",
            "libzstd-dev", "zlib1g-dev", "libjs-dygraphs"]
CUDA_LICENCE = """Contains the CUDA Runtime of NVIDIA Corporation, which its licence allows to be distributed with a program:
https://docs.nvidia.com/cuda/eula/index.html
"""


def packages():
    """And gcc's runtime library, in the compiler's version."""
    gcc = subprocess.run(["gcc", "-dumpversion"], check=True, capture_output=True, text=True).stdout.split(".")[0].strip()
    return [*PACKAGES, f"libgcc-{gcc}-dev"]


def version(package):
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, capture_output=True,
                          text=True).stdout


def debian(package):
    number = version(package)
    return {"type": "library", "name": package, "version": number,
            "purl": f"pkg:deb/debian/{package}@{number}?distro=debian-12"}


def cuda():
    """The CUDA Runtime, and the C++ library of the kernels' host code; none without $NVCC."""
    if not os.environ.get("NVCC"):
        return []
    header = Path(os.environ["NVCC"]).resolve().parent.parent / "include/cuda_runtime_api.h"
    number = int(re.search(r"#define CUDART_VERSION +(\d+)", header.read_text(encoding="utf-8"))[1])
    cudart, zig = f"{number // 1000}.{number % 1000 // 10}", importlib.metadata.version("ziglang")
    return [{"type": "library", "name": "cudart", "version": cudart, "purl": f"pkg:generic/nvidia/cudart@{cudart}"},
            {"type": "library", "name": "libc++", "version": zig, "purl": f"pkg:pypi/ziglang@{zig}#lib/libcxx"}]


def bom(softrnn_version):
    program = {"type": "application", "name": "softrnn", "version": softrnn_version,
               "purl": f"pkg:pypi/softrnn@{softrnn_version}"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": program},
            "components": [debian(package) for package in packages()] + cuda()}


def notice(component):
    """The licence of a library."""
    if component["name"] == "cudart":
        return CUDA_LICENCE
    if component["name"] == "libc++":
        files = importlib.metadata.files("ziglang") or []
        return next(file for file in files if str(file).endswith("libcxx/LICENSE.TXT")).read_text(encoding="utf-8")
    return Path(f"/usr/share/doc/{component['name']}/copyright").read_text(encoding="utf-8")


def notices():
    components = [debian(package) for package in packages()] + cuda()
    return "\n".join(f"==== {component['name']} {component['version']}\n\n{notice(component)}" for component in components)


def add_notices(wheel):
    """Unpacks the wheel and packs it again, so that its RECORD lists the new file."""
    folder = wheel.parent / "unpacked"
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel], check=True, capture_output=True)
    contents = next(folder.iterdir())
    licenses = next(contents.glob("*.dist-info")) / "licenses"
    licenses.mkdir(exist_ok=True)
    (licenses / "THIRD_PARTY").write_text(notices(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, contents], check=True,
                   capture_output=True)


if __name__ == "__main__":
    if sys.argv[1] == "bom":
        json.dump(bom(sys.argv[2]), sys.stdout, indent=2)
        print()
    else:
        add_notices(Path(sys.argv[2]))
