"""What this environment has, and what that means for whatever travels to another one."""

from __future__ import annotations

from functools import lru_cache

from minicluster.pickling.pickler import ANY_READER, PickleReader
from minicluster.wire import Versions


@lru_cache(maxsize=1)
def here() -> Versions:
    """Return the versions of this environment."""
    return Versions.here()


def against_code(ours: Versions, theirs: Versions | None) -> str:
    """Say why functions and classes cannot travel by value between two Pythons; empty when they can."""
    if theirs is None or not theirs.python or ours.python_minor == theirs.python_minor:
        return ""
    return (
        f"is code of Python {ours.python_minor}, which Python {theirs.python_minor} on the other side cannot "
        "run; define it inside the cell, or in a .py file beside the notebook, and import it"
    )


def reader(ours: Versions, theirs: Versions | None) -> PickleReader:
    """Return what the other side cannot take from this one."""
    if theirs is None or not theirs.python:
        return ANY_READER
    absent = {} if theirs.torch else {"torch": "needs torch, which the other side does not have"}
    return PickleReader(against_code(ours, theirs), absent)


def differences(ours: Versions, theirs: Versions | None) -> list[str]:
    """Say what does not fit between a notebook and the ranks, with what works all the same."""
    if theirs is None:
        return [
            "No cell has run on the cluster yet, so its versions are not known: what does not fit, the first "
            "cell tells."
        ]
    return [text for text in (_python(ours, theirs), _torch(ours, theirs), _release(ours, theirs)) if text]


def _python(ours: Versions, theirs: Versions) -> str:
    if not against_code(ours, theirs):
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
