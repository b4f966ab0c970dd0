#!/bin/sh
# Make the environment /opt/minicluster with torch in it. TORCH_SPEC, TORCH_INDEX_URL: see the Dockerfile.
set -eu

spec=${TORCH_SPEC:-$(sed -n 's/^torch==.*/&+cpu/p' /build/constraints.txt)}
if [ "$spec" = base ]; then
    python3 -m venv --system-site-packages /opt/minicluster
else
    python3 -m venv /opt/minicluster
fi
pip install --no-cache-dir "pip==$PIP_VERSION"

if [ -n "${TORCH_SPEC:-}" ]; then
    # A torch of the lab's choice, with what it needs itself.
    grep -v '^torch==' /build/constraints.txt >/build/chosen.txt
    mv /build/chosen.txt /build/constraints.txt
fi
if [ "$spec" = base ]; then
    python -c 'import torch' || {
        echo "TORCH_SPEC=base: this base image has no torch that $(python --version) can import." >&2
        exit 1
    }
    exit
fi

install() {
    pip install --no-cache-dir --no-compile --find-links /build -c /build/constraints.txt "$@" "$spec" numpy
}
# A mirror of one's own, and wheels beside the tree, are asked before PyTorch's index.
install || install --extra-index-url "$TORCH_INDEX_URL"
