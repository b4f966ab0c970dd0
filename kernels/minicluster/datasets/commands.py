"""`%distribute data`, `%distribute data push DIR --name NAME` and `%distribute data rm NAME`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from minicluster.client import Service
from minicluster.options import OptionWrong, local_path
from minicluster.tables import Table
from minicluster.wire import DataSet

from . import calls
from .folder import scan
from .progress import Progress, sizes
from .push import Push

if TYPE_CHECKING:
    from minicluster.command_line import Command
    from minicluster.magics import Distribute


def show(magics: Distribute, command: Command) -> Table:
    """List the data sets that a cell may name."""
    return table(calls.listed(magics.service()), magics.service())


def push(magics: Distribute, command: Command) -> None:
    """Bring a folder to the cluster."""
    name = command.options.get("--name", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise OptionWrong(
            f"--name {name}: 1 to 64 letters, digits, dots, dashes and underscores are a data set's name."
            if name
            else "%distribute data push needs --name NAME.",
            "Like this: %distribute data push cinic-10/ --name cinic10",
        )
    folder = scan(local_path(command.words[0]))
    progress = Progress(name, folder)
    work = Push(folder, magics.service(), progress.tell)
    try:
        kept = work.run(name, True if "--shared" in command.options else None)
    except BaseException as error:
        progress.broke(work.so_far, error)
        raise
    progress.done(work.so_far, kept)


def remove(magics: Distribute, command: Command) -> None:
    """Remove a data set of the user's own."""
    calls.remove(magics.service(), command.words[0])
    print(  # noqa: T201
        f"The data set {command.words[0]} is removed. Jobs that named it go on with it; nodes drop it when "
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
