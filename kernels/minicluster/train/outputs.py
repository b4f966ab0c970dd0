"""The folder whose files come back from the cluster."""

from __future__ import annotations

import os
from pathlib import Path

from minicluster.train.calls import called_as

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
