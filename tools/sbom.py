#!/usr/bin/env python3
"""sbom.py: the libraries that a wheel contains, by their Debian packages: a bill of materials (CycloneDX) and notices.

Usage: sbom.py bom VERSION               JSON to stdout
       sbom.py notices WHEEL             adds softrnn-*.dist-info/licenses/THIRD_PARTY to the wheel
"""

import json
import subprocess
import sys
from pathlib import Path

# Linked into the program and the laboratory (cmake/manylinux.cmake), or copied beside them (jansson).
PACKAGES = ["libblis-serial-dev", "libjansson-dev", "liblzma-dev", "libpcre2-dev", "libutf8proc-dev", "libyaml-dev",
            "libzstd-dev", "zlib1g-dev", "libjs-dygraphs"]


def version(package):
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, capture_output=True,
                          text=True).stdout


def component(package):
    number = version(package)
    return {"type": "library", "name": package, "version": number,
            "purl": f"pkg:deb/debian/{package}@{number}?distro=debian-12"}


def bom(softrnn_version):
    program = {"type": "application", "name": "softrnn", "version": softrnn_version,
               "purl": f"pkg:pypi/softrnn@{softrnn_version}"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": program},
            "components": [component(package) for package in PACKAGES]}


def notices():
    parts = []
    for package in PACKAGES:
        text = Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8")
        parts.append(f"==== {package} {version(package)}\n\n{text}")
    return "\n".join(parts)


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
