"""Finds from a rank's frames where it is: in a collective, at its data, or in a line of the cell; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from minicluster.wire import RankStack, StackFrame


class LocationKind(Enum):
    """RANKS: in a collective, where it may wait for other ranks. DATA: at a DataLoader. END: after the cell's
    end, it waits for work that the cell started. ELSEWHERE: none of these."""

    RANKS = "ranks"
    DATA = "data"
    END = "end"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class RankLocation:
    """Where a rank is. line: "cell line 14", or a line of another file. text: of the line; "" if unknown."""

    kind: LocationKind
    what: str
    line: str
    text: str = ""

    def words(self, stalled: bool) -> str:
        """Return the text that continues "rank 2 is"."""
        if self.kind is LocationKind.RANKS:
            return f"in the {self.what} of {self.line}" if self.line else f"in the {self.what}"
        if self.kind is LocationKind.END:
            return f"at the cell's end, waiting for {self.what}"
        shown = f"{self.line}: `{self.text}`" if self.text else self.line
        if self.kind is LocationKind.DATA:
            return f"waiting for a DataLoader in {shown}" if stalled else f"at a DataLoader in {shown}"
        return f"in {shown}" if shown else "not in the cell yet"


_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*|minicluster/train)/|^<frozen ")
_COMMUNICATES = re.compile(r"torch/(distributed/|nn/parallel/distributed\.py|_ops\.py)")
_OBJECTS = "minicluster/train/objects.py"
_OF_OBJECTS = re.compile(r"(all)?(gather|reduce)|barrier|bcast|recv|scatter")
_COMPILED = (
    (re.compile(r"/jax/_src/(array|dispatch|pjit|api|interpreters/pxla|compiler)\.py$"), "JAX computation"),
    (re.compile(r"/tensorflow/python/(eager|framework)/"), "TensorFlow computation"),
)
"""Compiled programs, within which collectives wait for other ranks: from outside one sees no more."""
_JAX_START = "jax/_src/distributed.py"
_COLLECTIVE = re.compile(
    r"reduce|gather|scatter|broadcast|barrier|all_to_all|send|recv|init_process_group|new_"
)
"""Functions of c10d that wait for other ranks; get_rank(), for example, does not."""
_C10D = "torch/distributed/distributed_c10d.py"
_DDP = "torch/nn/parallel/distributed.py"
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_LOADER = "torch/utils/data/dataloader.py"
_WAIT = re.compile(r"\.wait\(")
_DDP_STEPS = {
    "__init__": "start of DistributedDataParallel",
    "forward": "forward pass of DistributedDataParallel",
}
_NO_PROGRESS_S = 1.0


def location_of(stack: RankStack) -> RankLocation:
    """Return the location of a rank from its stack."""
    if stack.ending:
        return RankLocation(LocationKind.END, stack.ending, "")
    depth = next((at for at, frame in enumerate(stack.frames) if not _LIBRARY.search(frame.file)), None)
    library = stack.frames if depth is None else stack.frames[:depth]
    line, text = _line(stack.frames, depth)
    waits_for_ranks = (
        _collective(library)
        or _of_objects(library)
        or _backward(library, stack.quiet_s)
        or _compiled(library, stack.quiet_s)
        or _handle(library, text)
    )
    if waits_for_ranks:
        return RankLocation(LocationKind.RANKS, waits_for_ranks, line)
    if any(frame.file.endswith(_LOADER) for frame in library):
        return RankLocation(LocationKind.DATA, "DataLoader", line, text)
    return RankLocation(LocationKind.ELSEWHERE, "", line, text)


def _line(frames: Sequence[StackFrame], depth: int | None) -> tuple[str, str]:
    """Return the innermost line of the cell; without one, of the user's other code."""
    cell = next((frame for frame in frames if frame.cell), None)
    if cell is not None:
        return f"cell line {cell.line}", cell.text
    if depth is None:
        return "", ""
    frame = frames[depth]
    return f"{frame.function}, line {frame.line} of {frame.file.rpartition('/')[2]}", ""


def _collective(library: Sequence[StackFrame]) -> str:
    """Return the collective that the user called: the outermost of torch's functions for it.

    A model's layers run inside such functions as well, so the innermost frame must be one, too.
    """
    if not library or not _COMMUNICATES.search(library[0].file):
        return ""
    for frame in reversed(library):
        if frame.file.endswith(_C10D) and _COLLECTIVE.search(frame.function):
            return frame.function
        if frame.file.endswith(_DDP):
            return _DDP_STEPS.get(frame.function, "synchronization of DistributedDataParallel")
        if "torch/distributed/fsdp/" in frame.file or "torch/distributed/_" in frame.file:
            return frame.function
    return ""


def _backward(library: Sequence[StackFrame], no_progress_s: float) -> str:
    """Return the backward pass if it takes no CPU time: it then waits for other ranks' gradients."""
    inside = any(frame.file.endswith(_BACKWARD[0]) and frame.function == _BACKWARD[1] for frame in library)
    return (
        "backward pass (the all_reduce of its gradients)"
        if inside and no_progress_s >= _NO_PROGRESS_S
        else ""
    )


def _of_objects(library: Sequence[StackFrame]) -> str:
    """Return the function of mc.comm() that the user called: the outermost."""
    frames = [frame for frame in library if frame.file.endswith(_OBJECTS)]
    names = [frame.function for frame in reversed(frames) if _OF_OBJECTS.fullmatch(frame.function)]
    return names[0] if names else ""


def _compiled(library: Sequence[StackFrame], no_progress_s: float) -> str:
    """Return the compiled program that a rank is in, if it takes no CPU time, or the start of JAX's ranks."""
    if any(frame.file.endswith(_JAX_START) for frame in library):
        return "start of JAX's ranks"
    if not library or no_progress_s < _NO_PROGRESS_S:
        return ""
    return next((words for file, words in _COMPILED if file.search(library[0].file)), "")


def _handle(library: Sequence[StackFrame], text: str) -> str:
    """Return the `work.wait()` on the line: it is a C++ call without a frame."""
    return "wait() for a collective" if not library and _WAIT.search(text) else ""
