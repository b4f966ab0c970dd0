"""mc.data and mc.output: the folders of a job's data sets and of its output."""

from __future__ import annotations

import os
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.train.calls import WrongCall, called_as

LINKS = "MINICLUSTER_DATA_SETS"
"""The variable with the folder that has a link for each data set: /data in a container."""


class DataSetNotHere(MiniclusterError):
    """The cell's line does not name this data set."""


@called_as('folder = mc.data("cinic10")')
def data(name: str) -> Path:
    """Return the folder of a data set that the cell's line names: `--data cinic10`. It is read-only.

    Raises DataSetNotHere.
    """
    if not isinstance(name, str):
        text = f"mc.data() takes the name of a data set, not {type(name).__name__}."
        raise WrongCall(text, 'Like this: mc.data("cinic10")')
    links = os.environ.get(LINKS, "")
    folder = Path(links, name)
    if links and name and folder.is_dir():
        return folder
    raise DataSetNotHere(
        f"This cell has no data set {name!r}; it has {_there(links)}.",
        f"Name it on the cell's line: %%distribute --data {name}",
    )


def _there(links: str) -> str:
    names = sorted(path.name for path in Path(links).iterdir()) if links and Path(links).is_dir() else []
    return ", ".join(names) or "none"


OUTPUT = "MINICLUSTER_OUTPUT"


@called_as('torch.save(model.state_dict(), mc.output() / "model.pt")')
def output() -> Path:
    """Return the folder whose files are brought back when the job ends, however it ends.

    The ranks of a node share one. `%distribute files ID` lists what came. Outside of a job it is
    the folder `output` beside the notebook.
    """
    folder = Path(os.environ.get(OUTPUT) or "output").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
