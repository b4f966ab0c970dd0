#!/bin/sh
# Install into /packages what the extra $FRAMEWORK asks for and the notebook image lacks. FRAMEWORK_SPEC: what pip
# installs in place of the builds for CPUs of constraints.txt, jax[cuda12] say.
set -eu

python -P /build/requirements.py /build "$FRAMEWORK" >/build/framework.txt
if [ -n "$FRAMEWORK_SPEC" ]; then
    # What it brings has no hash in constraints.txt, and where one package has a hash, pip wants all to have one.
    sed -i -E -e '/^(jax|tensorflow|cuda-|nvidia-([^m]|m[^l]))/,/[^\\]$/d' -e '/^ +--hash=/d' -e 's/ \\$//' /build/constraints.txt
    sed -i -E '/^(jax|tensorflow-cpu)[^a-z]/d' /build/framework.txt
    echo "$FRAMEWORK_SPEC" >>/build/framework.txt
fi
pip install --no-cache-dir --no-compile --find-links /build -c /build/constraints.txt \
    --prefix=/packages/opt/minicluster -r /build/framework.txt
