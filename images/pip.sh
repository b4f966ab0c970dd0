#!/bin/sh
# Install packages of constraints.txt by their names, each with the hash that stands there.
#   pip.sh NAME...      with the pip in PATH, or $PIP
set -eu

for name in "$@"; do
    sed -n "/^$name==/,/[^\\\\]\$/p" /build/constraints.txt
done >/build/named.txt
${PIP:-pip} install --no-cache-dir --no-compile --find-links /build --require-hashes --no-deps -r /build/named.txt
