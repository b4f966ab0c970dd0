"""The versions of this environment, and what can be sent to an environment with other versions."""

from __future__ import annotations

from functools import lru_cache

from minicluster.pickling.pickler import ANY_TARGET, TargetLimits
from minicluster.wire import Versions


@lru_cache(maxsize=1)
def here() -> Versions:
    """Return the versions of this environment."""
    return Versions.here()


def code_refusal(ours: Versions, theirs: Versions | None) -> str:
    """Return why functions and classes cannot be sent by value between two Pythons; empty if they can."""
    if theirs is None or not theirs.python or ours.python_minor == theirs.python_minor:
        return ""
    return (
        f"is code of Python {ours.python_minor}, which Python {theirs.python_minor} on the other side cannot "
        "run; define it inside the cell, or in a .py file beside the notebook, and import it"
    )


def target_limits(ours: Versions, theirs: Versions | None) -> TargetLimits:
    """Return what the other side cannot read, and why."""
    if theirs is None or not theirs.python:
        return ANY_TARGET
    missing_modules = {} if theirs.torch else {"torch": "needs torch, which the other side does not have"}
    return TargetLimits(code_refusal(ours, theirs), missing_modules)


def differences(ours: Versions, theirs: Versions | None) -> list[str]:
    """Return a sentence for each difference between the notebook and the ranks: what works, what does not."""
    if theirs is None:
        return [
            "No cell has run on the cluster yet, so its versions are not known. The first cell shows what "
            "does not fit."
        ]
    return [text for text in (_python(ours, theirs), _torch(ours, theirs), _release(ours, theirs)) if text]


def _python(ours: Versions, theirs: Versions) -> str:
    if not code_refusal(ours, theirs):
        return ""
    return (
        f"Python {ours.python_minor} here, {theirs.python_minor} on the cluster. Works: cells (they travel "
        "as text), modules beside the notebook, data (numbers, lists, arrays, tensors). Does not: functions, "
        "classes and objects of classes that the notebook defines in other cells, there and back; define "
        "them in the distributed cell or in a .py file beside the notebook."
    )


def _torch(ours: Versions, theirs: Versions) -> str:
    if not theirs.torch or _minor(ours.torch) == _minor(theirs.torch):
        return ""
    wanted = theirs.torch.partition("+")[0]
    if not ours.torch:
        return (
            f"No torch here, {theirs.torch} on the cluster. Works: cells, and results of plain Python and "
            "NumPy. Does not: tensors and models as results; they stay on the ranks. "
            f"To have them: pip install torch=={wanted}"
        )
    return (
        f"torch {ours.torch} here, {theirs.torch} on the cluster. Works: tensors and state_dicts. May fail: "
        f"whole models and optimizers as objects. To be sure: pip install torch=={wanted}"
    )


def _release(ours: Versions, theirs: Versions) -> str:
    if not theirs.minicluster or ours.minicluster == theirs.minicluster:
        return ""
    return (
        f"minicluster {ours.minicluster} here, {theirs.minicluster} on the cluster. Works: what both have. "
        f'To have the same: pip install "minicluster[notebook]=={theirs.minicluster}"'
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
