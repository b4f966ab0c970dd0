"""What to do about errors that come of a cell's not running in its notebook."""

from __future__ import annotations

from pathlib import Path, PurePath

from minicluster.capture.home import Home

from minicluster.runtime.rank.tracebacks import words_of

_NO_KEYBOARD = (
    "Nobody can type into a rank, so breakpoint(), pdb and input() end at once. Print what you want to see, "
    "or run these lines in the notebook, in a cell without %%distribute."
)
_FIXED = (
    "The memory of a large parameter that came from the notebook keeps its size. Give the module a new one: "
    "model.weight = torch.nn.Parameter(...)"
)


def hint_for_rank(error: BaseException, home: Home, *, at_home: bool) -> str:
    """Return why an error comes on a rank and what to do, "" where it would come in the notebook, too.

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
    return ""


def _not_here(filename: str, home: Home) -> str:
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
