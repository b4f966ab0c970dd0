#!/bin/sh
# Make the environment /opt/minicluster with torch in it. TORCH_SPEC, TORCH_INDEX_URL: see the Dockerfile.
set -eu

constraints=/build/constraints.txt
if [ "${TORCH_SPEC:-}" = base ]; then
    python3 -m venv --system-site-packages /opt/minicluster
else
    python3 -m venv /opt/minicluster
fi
/build/pip.sh pip

get() {
    pip install --no-cache-dir --no-compile --find-links /build "$@"
}

# A mirror of one's own, and wheels beside the tree, are asked before PyTorch's index.
get_torch() {
    get "$@" || get --extra-index-url "$TORCH_INDEX_URL" "$@"
}

if [ -n "${TORCH_SPEC:-}" ]; then
    # A torch of the lab's choice, with what it needs itself.
    sed -E '/^(torch==|triton|nvidia-|cuda-|setuptools)/,/[^\\]$/d' $constraints >/build/chosen.txt
    mv /build/chosen.txt $constraints
fi
case ${TORCH_SPEC:-} in
    base)
        python -c 'import torch' || {
            echo "TORCH_SPEC=base: this base image has no torch that $(python --version) can import." >&2
            exit 1
        }
        ;;
    "")
        # The CPU build has no hash in constraints.txt, as PyPI does not have it; all that it needs has one.
        spec=$(sed -n 's/^torch==\([0-9.]*\).*/torch==\1/p' $constraints)
        get_torch --no-deps "$spec+cpu"
        get -c $constraints "$spec" numpy
        ;;
    *)
        get_torch "$TORCH_SPEC"
        get -c $constraints numpy
        ;;
esac
