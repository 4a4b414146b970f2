#!/bin/bash
# manylinux_link.sh ARGUMENTS...: links against glibc 2.28, whose symbols zig has. Objects are gcc's, and so is their
# runtime library. $SOFTRNN_ZIG: its program; else zig.
set -euo pipefail
arguments=("$@")
# Debian's static jansson is not position-independent enough for a shared library; auditwheel adds the shared one.
case " $* " in *" -shared "*) arguments=("${arguments[@]/%libjansson.a/libjansson.so}") ;; esac
exec "${SOFTRNN_ZIG:-zig}" cc -target x86_64-linux-gnu.2.28 "${arguments[@]}" "$(gcc -print-libgcc-file-name)"
