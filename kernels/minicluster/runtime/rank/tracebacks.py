"""Formats an exception in a rank for the author of the cell.

The record has the format of torch elastic's error files, so that cells and scripts that use torch's `@record`
are read in the same way.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.sources import Source
from minicluster.errors import MiniclusterError
from minicluster.runtime.diagnosis import stacks
from minicluster.train.balance import rank as balance
from minicluster.wire import TRACEBACK_CHARS, shortened

_OWN_FOLDERS = tuple(str(Path(__file__).parents[2] / name) for name in ("runtime", "dry_run"))
_MESSAGE_CHARS = 4000
_CUDA_MEMORY = "The GPU's memory is full. Use a smaller batch, accumulate gradients, or train in bf16."
_MEMORY = "The node's memory is full. Use a smaller batch, fewer loader processes, or load the data in parts."
_SECONDARY = "The link to another rank broke, mostly because that rank ended first: look at its error."
_SHARED_MEMORY = "Shared memory (/dev/shm) is too small for the loader's processes: use num_workers=0."

_NO_KEYBOARD = (
    "Nobody can type into a rank, so breakpoint(), pdb and input() end at once. Print what you want to see, "
    "or run these lines in the notebook, in a cell without %%distribute."
)
_NO_COMPILER = (
    "torch.compile calls a compiler, which the ranks' image lacks. The cluster's own images have g++: choose "
    "one with --image, or build yours on one of them."
)
_WITH_FRAMEWORK = {"jax": "jax", "jaxlib": "jax", "optax": "jax", "keras": "jax", "tensorflow": "tensorflow"}
"""Modules that images of ours have, and what these are called."""
_LACKS_COMPILER = ("InvalidCxxCompiler", "Failed to find C compiler")
"""What torch says, and Triton."""
_FIXED = (
    "The memory of a large parameter that came from the notebook keeps its size. Give the module a new one: "
    "model.weight = torch.nn.Parameter(...)"
)


def render(error: BaseException, sources: Mapping[str, Source] | None = None) -> str:
    """Return the traceback without the frames of this package's runtime.

    sources: other cells by file name, each with its text and its name in a notebook.
    """
    summary = traceback.TracebackException.from_exception(error)
    _trim(summary)
    text = "".join(summary.format())
    for name, source in (sources or {}).items():
        text = text.replace(f'  File "{name}", line', f'  File "{source.shown_as}", line')
    return shortened(text, TRACEBACK_CHARS)


def words_of(error: BaseException) -> str:
    """Return an exception's text; its `__str__` may raise."""
    try:
        return str(error)
    except Exception as failed:
        return f"its __str__ raised {type(failed).__name__}"


def account_of(error: BaseException, traceback_text: str, exit_code: int, hint: str = "") -> dict[str, Any]:
    """Return the content of the error file. hint: a more specific hint than that of hint_for()."""
    message = error.message if isinstance(error, MiniclusterError) else words_of(error)
    kind = type(error).__name__
    now = time.time()
    return {
        "message": {
            "message": (f"{kind}: {message}" if message else kind)[:_MESSAGE_CHARS],
            "errorCode": exit_code,
            "extraInfo": {
                "py_callstack": traceback_text,
                "timestamp": str(int(now)),
                "at": now,
                "hint": error.hint if isinstance(error, MiniclusterError) else hint or hint_for(error),
                "interrupted": isinstance(error, KeyboardInterrupt),
                stacks.FRAMES: stacks.frames_of(error),
            },
        }
    }


def exit_account(message: str, exit_code: int) -> dict[str, Any]:
    """Return the content of the error file after sys.exit() with an error."""
    now = time.time()
    extra = {"py_callstack": "", "timestamp": str(int(now)), "at": now, "exit": True}
    return {"message": {"message": message[:_MESSAGE_CHARS], "errorCode": exit_code, "extraInfo": extra}}


def hint_for(error: BaseException) -> str:
    """Return a hint for a common error; "" for others."""
    kind, text = type(error).__name__, words_of(error)
    return next((hint for fits, hint in _HINTS if fits(kind, text)), "")


def _lost_link(kind: str, text: str) -> bool:
    parts = ("Connection closed by peer", "Connection reset by peer", "NCCL communicator was aborted")
    return kind == "DistNetworkError" or any(part in text for part in parts) or "[gloo" in text


def _gpu_is_full(kind: str, text: str) -> bool:
    return kind == "OutOfMemoryError" or "CUDA out of memory" in text


_HINTS: tuple[tuple[Callable[[str, str], bool], str], ...] = (
    (_gpu_is_full, _CUDA_MEMORY),
    (lambda kind, text: kind == "MemoryError" or "can't allocate memory" in text, _MEMORY),
    (lambda kind, text: "bus error" in text.lower() and "shared memory" in text.lower(), _SHARED_MEMORY),
    (_lost_link, _SECONDARY),
)


def _trim(summary: traceback.TracebackException | None) -> None:
    if summary is None:
        return
    kept = [frame for frame in summary.stack if not frame.filename.startswith(_OWN_FOLDERS)]
    # None also removes the line that introduces the frames.
    summary.stack = traceback.StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
    _trim(summary.__cause__)
    _trim(summary.__context__)
    for inner in summary.exceptions or ():
        _trim(inner)


# Hints for errors that arise since the cell does not run in its notebook.


def hint_for_rank(error: BaseException, home: NotebookFolder, *, at_home: bool) -> str:
    """Return a hint for an error that arises on ranks only; "" if it would arise in the notebook, too.

    at_home: the ranks run in the notebook's folder.
    """
    if type(error).__name__ == "BdbQuit" or (
        isinstance(error, EOFError) and "reading a line" in words_of(error)
    ):
        return _NO_KEYBOARD
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not at_home:
        return _not_here(error.filename, home)
    if isinstance(error, NameError) and error.name and error.name in home.stayed:
        return f"`{error.name}` {home.stayed[error.name]}"
    if isinstance(error, RuntimeError) and "storage that is not resizable" in words_of(error):
        return _FIXED
    if isinstance(error, ModuleNotFoundError) and (kind := _WITH_FRAMEWORK.get(error.name or "")):
        return (
            f"The ranks' image lacks {error.name}. --image minicluster-notebook-{kind} has it, where the "
            "cluster offers it (%distribute images); or install it with pip, and add --sync-env."
        )
    if any(words in words_of(error) for words in _LACKS_COMPILER):
        return _NO_COMPILER
    if _gpu_is_full(type(error).__name__, words_of(error)):
        return balance.memory_hint()
    return ""


def _not_here(filename: str, home: NotebookFolder) -> str:
    path = PurePath(filename)
    if path.is_absolute() and home.folder and path.is_relative_to(home.folder):
        path = path.relative_to(home.folder)
    if path.is_absolute() or not path.parts:
        return ""
    if path.parts[0] in home.files:
        return (
            f"{path} lies beside the notebook, where the ranks do not see it. Send it along: "
            f"%%distribute --with {path}. What is large becomes a data set: %distribute data push."
        )
    return f"The ranks run in {Path.cwd()}, not in the notebook's folder: --with sends files along."
