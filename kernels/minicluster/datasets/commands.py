"""`%distribute data`, `%distribute data push DIR --name NAME` and `%distribute data rm NAME`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from minicluster.client.client import Service
from minicluster.datasets import calls
from minicluster.datasets.folder import scan
from minicluster.datasets.progress import PushProgress, sizes
from minicluster.datasets.push import Push
from minicluster.display.tables import Table
from minicluster.parsing.parser import OptionWrong
from minicluster.parsing.values import local_path
from minicluster.wire import DataSet

if TYPE_CHECKING:
    from minicluster.magics import Distribute


def show(magics: Distribute, said: Namespace) -> Table:
    """List the data sets that a cell may name."""
    return table(calls.listed(magics.service()), magics.service())


def push(magics: Distribute, said: Namespace) -> None:
    """Bring a folder to the cluster."""
    if not said.name:
        like = "Like this: %distribute data push cinic-10/ --name cinic10"
        raise OptionWrong("%distribute data push needs --name NAME.", like)
    folder = scan(local_path(said.dir))
    progress = PushProgress(said.name, folder)
    work = Push(folder, magics.service(), progress.tell)
    try:
        kept = work.run(said.name, said.shared or None)
    except BaseException as error:
        progress.broke(work.so_far, error)
        raise
    progress.done(work.so_far, kept)


def remove(magics: Distribute, said: Namespace) -> None:
    """Remove a data set of the user's own."""
    calls.remove(magics.service(), said.name)
    print(  # noqa: T201
        f"The data set {said.name} is removed. Jobs that named it go on with it; nodes drop it when "
        "they need the room."
    )


def table(sets: tuple[DataSet, ...], service: Service) -> Table:
    """Return data sets as people see them."""
    heads = ("name", "size", "files", "shared", "nodes that have it")
    rows = tuple(
        (
            one.name if one.owner == service.user or not service.user else f"{one.owner}/{one.name}",
            sizes(one.size_bytes),
            f"{one.files:,}",
            "yes" if one.shared else "",
            ", ".join(one.nodes) or "none yet",
        )
        for one in sets
    )
    return Table(heads, rows, "There are no data sets. Bring one: %distribute data push DIR --name NAME")
