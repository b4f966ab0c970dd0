"""The parts of a run, and which of them run in parallel."""

from __future__ import annotations

LINTERS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "pyright": ["pyright"],
    "docs": ["sphinx-build", "-q", "-E", "-W", "--keep-going", "docs", ".test-results/site"],
}
LANES = (("unit", "service", "chaos"), ("runtime", "hub", "browser", "hostile", "gpu"))
"""The parts of a lane run one after the other; lanes run in parallel. This is faster, since tests mostly wait
for processes to start; tests that measure time are marked `alone`."""

LAB = "lab"
"""The lab's tests have their own lane, since they mostly wait for machines. In a full run it comes after the
others."""
LAB_APART = "lab-apart"
"""The lab's tests marked `apart` have a lane beside the lab's, since they use their own machines."""

FRAMEWORKS = "frameworks"
"""JAX and TensorFlow in ranks, and their images. It installs some GB of packages, so it runs when named:
`./test frameworks`, or `./test full frameworks` after everything else."""

ALL = (*LANES[0], *LANES[1], LAB, FRAMEWORKS)
EMPTY_IN_THE_GATE = ("chaos",)
