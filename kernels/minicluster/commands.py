"""The commands of `%distribute`. Each is a function; its docstring is the command's help.

The parser, `%distribute?`, Tab and the guide's table are made from these. A command imports what it needs
when it runs, so Tab and help are fast. What a command returns is shown as Out[n].
"""

from __future__ import annotations

import os
import time
from argparse import REMAINDER
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from minicluster.options import OptionWrong, cell_arguments, data_set_names
from minicluster.parsing import values
from minicluster.parsing.parser import HELP, Argument, HelpRequested, LineParser, split_line, unknown_word
from minicluster.parsing.values import SweepId

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient
    from minicluster.magics import Distribute

_LOG_BYTES = 256 * 1024


@dataclass(frozen=True)
class Command:
    """A command. run: gets the notebook's magics, and the line's arguments by name.

    shown: how the list of commands shows the arguments, if the full usage is too long.
    """

    run: Callable[..., Any]
    arguments: tuple[Argument, ...] = ()
    shown: str = ""

    @property
    def verb(self) -> str:
        """The words of the command: `data push` runs the function data_push."""
        return self.run.__name__.replace("_", " ").strip()

    @property
    def help(self) -> str:
        return (self.run.__doc__ or "").strip().removesuffix(".")

    @cached_property
    def parser(self) -> LineParser:
        return LineParser(f"%distribute {self.verb}", f"{self.help}.", self.arguments, shown=self.shown)

    @property
    def usage(self) -> str:
        return f"{self.verb} {self.shown}" if self.shown else self.parser.line.removeprefix("%distribute ")


def command(*arguments: Argument, shown: str = "") -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function."""
    return partial(Command, arguments=arguments, shown=shown)


def job_numbers(service: JobServiceClient) -> Iterable[str]:
    return (str(job.id) for job in service.jobs())


def _option(name: str, help: str, metavar: str, **more: Any) -> Argument:
    return Argument(name, help, None, {"metavar": metavar, **more})


_JOB = Argument("job", "the number of a job", job_numbers, {"metavar": "ID", "type": int})
_JOB_OR_SWEEP = Argument(
    "job",
    "the number of a job, or a sweep as in sweep-3",
    job_numbers,
    {"metavar": "ID", "type": values.job_or_sweep},
)
_DATA_SET = Argument("name", "a data set", data_set_names, {"metavar": "NAME"})


@command()
def status(magics: Distribute) -> Any:
    """Show your jobs and their states."""
    from minicluster.display.tables import job_table

    return job_table(magics.service().jobs())


@command(
    _JOB,
    _option(
        "--rank", "the rank whose output to show, 0 by default", "N", type=values.number(0, 9999), default=0
    ),
)
def logs(magics: Distribute, job: int, rank: int) -> None:
    """Show the end of a rank's output."""
    from minicluster.cell_run import log_path
    from minicluster.wire.streams import MARK

    text, left_out_bytes = magics.service().log(job, rank, _LOG_BYTES)
    if left_out_bytes:
        url = magics.service().link(log_path(job, rank))
        print(f"… the first {left_out_bytes} bytes are not shown; full output: {url}")  # noqa: T201
    # Marks show where something was displayed. The text of the display is in the log as well.
    text = MARK.sub("", text) or f"Rank {rank} of job {job} has printed nothing so far."
    print(text, end="" if text.endswith("\n") else "\n")  # noqa: T201


@command(_JOB)
def snapshots(magics: Distribute, job: int) -> Any:
    """Show the snapshots from which a job can resume."""
    from minicluster.display.tables import snapshot_table

    service = magics.service()
    return snapshot_table(service.snapshots(job), job, service.browser_path())


@command(
    _JOB,
    _option("path", "only this file or folder", "PATH", nargs="?"),
    _option("--to", "download them into this folder", "FOLDER", default=""),
)
def files(magics: Distribute, job: int, path: str | None, to: str) -> Any:
    """List the files that a job wrote into mc.output(), or download them."""
    from minicluster.results.downloads import files

    return files(magics.service(), job, path, values.local_path(to) if to else None)


@command(_JOB_OR_SWEEP)
def attach(magics: Distribute, job: int | SweepId) -> Any:
    """Show a job's panel, and put its results into the notebook; show a sweep; or go on with a session."""
    from minicluster.cell_run import attach

    if isinstance(job, SweepId):
        return magics.attach_sweep(job.id)
    if magics.attach_session(job):
        return print(f"Session {job}: the cells after this one run on its ranks.")  # noqa: T201
    return magics.apply_result(attach(job, magics.run_context()))


@command(_JOB)
def why(magics: Distribute, job: int) -> Any:
    """Show why a job is stuck, and which rank waits for which."""
    from minicluster.display.why import Why

    return Why(magics.service().why(job))


@command()
def sweeps(magics: Distribute) -> Any:
    """Show your sweeps, with the best parameters of each."""
    from minicluster.sweeps.calls import SweepCalls
    from minicluster.sweeps.view import sweep_table

    return sweep_table(SweepCalls(magics.service()).sweeps())


@command(_JOB_OR_SWEEP)
def stop(magics: Distribute, job: int | SweepId) -> Any:
    """Stop a job, or a sweep with its trials."""
    from minicluster.display.tables import job_table

    if isinstance(job, SweepId):
        from minicluster.sweeps.calls import SweepCalls
        from minicluster.sweeps.view import sweep_table

        return sweep_table([SweepCalls(magics.service()).stop(job.id)])

    return job_table([magics.service().stop(job)])


@command(_JOB, _option("--pull", "only these names, as copies", "a,b", type=values.variables))
def result(magics: Distribute, job: int, pull: tuple[str, ...] | None) -> Any:
    """Put a job's results into the notebook again."""
    from minicluster.cell_run import fetch_result

    made = fetch_result(magics.service().job(job), magics.run_context(), pull)
    names = [f"{name} ({type(value).__name__})" for name, value in made.names.items()]
    print(f"From job {job}: {', '.join(names) or 'no names'}.")  # noqa: T201
    return magics.apply_result(made)


@command(_JOB)
def rerun(magics: Distribute, job: int) -> None:
    """Write the cell of an earlier run again, below this one."""
    from minicluster.tracking.rerun import rerun

    made = rerun(magics.service(), job, magics.namespace)
    for sentence in made.differences:
        print(sentence)  # noqa: T201
    magics.insert_cell(made.cell)


@command(
    *cell_arguments(),
    Argument("words", "a script and its arguments", None, {"metavar": "SCRIPT", "nargs": REMAINDER}),
    shown="[OPTIONS of a cell] SCRIPT [ARGUMENTS]",
)
def run(magics: Distribute, words: list[str], **options: Any) -> Any:
    """Run a script on all nodes, as torchrun does."""
    from minicluster.scripts import run

    return run(magics, words, options)


@command(*cell_arguments(), shown="[OPTIONS of a cell]")
def up(magics: Distribute, **options: Any) -> None:
    """Start ranks that stay, with their variables: the cells after it run on them."""
    from minicluster.options import cell_options

    session = magics.start_session(cell_options(**options))
    ranks, nodes = session.job.world_size, ", ".join(session.job.nodes)
    print(  # noqa: T201
        f"Session {session.job.id}: {ranks} ranks on {nodes}. %%distribute runs cells on them, one after the "
        "other, and what a cell makes stays there. %distribute pull NAMES brings it here; %distribute down "
        "ends it."
    )


@command()
def down(magics: Distribute) -> None:
    """End the session of %distribute up, with all that its ranks have."""
    job = magics.end_session()
    print(f"Session {job.id} is {job.state.value}.")  # noqa: T201


@command(_option("names", "names that the ranks of the session have", "a,b", type=values.variables))
def pull(magics: Distribute, names: tuple[str, ...]) -> None:
    """Bring values from the ranks of the session into the notebook."""
    magics.pull_from_session(names)


@command()
def whos(magics: Distribute) -> None:
    """Show the names that the ranks of the session have."""
    magics.show_ranks_names()


@command()
def queue(magics: Distribute) -> Any:
    """Show why your jobs wait, your share, and whose jobs come before yours."""
    from minicluster.display.queue import Queue

    return Queue(magics.service().my_queue())


@command()
def doctor(magics: Distribute) -> Any:
    """Show what stands between this notebook and a run."""
    from minicluster.doctor import examine

    return examine(magics.service_or_none())


@command()
def nodes(magics: Distribute) -> Any:
    """Show the nodes and their slots."""
    from minicluster.display.tables import node_table

    return node_table(magics.service().nodes().nodes)


@command()
def gpus(magics: Distribute) -> Any:
    """Take back the GPUs that this notebook server left idle."""
    from minicluster.display.tables import Table

    # They are the same GPUs, so kernels continue to work.
    place = magics.service().take_gpus(os.environ.get("JUPYTERHUB_SERVER_NAME", ""))
    until = time.strftime("%H:%M", time.localtime(place.until)) if place.until else ""
    rows = tuple((gpu, place.node, until) for gpu in place.gpus)
    return Table(("GPU of this server", "node", "until"), rows, f"This server has {len(place.slots)} GPUs.")


@command()
def images(magics: Distribute) -> Any:
    """Show the images that ranks can run in."""
    from minicluster.publishing.commands import image_table

    return image_table(magics.service().images())


@command(
    _option("name", "the image's name", "NAME"),
    _option("--description", "what others read about it", "TEXT", default=""),
)
def publish(magics: Distribute, name: str, description: str) -> Any:
    """Make an image of what you installed with pip."""
    from minicluster.publishing.commands import publish

    return publish(magics.run_context(), name, description)


@command()
def data(magics: Distribute) -> Any:
    """Show the data sets that a cell can use."""
    from minicluster.datasets.commands import show

    return show(magics.service())


@command(
    _option("folder", "a folder of this machine", "DIR"),
    _option("--name", "the data set's name", "NAME", type=values.data_set, required=True),
    Argument("--shared", "let all users read it", None, {"action": "store_true"}),
)
def data_push(magics: Distribute, folder: str, name: str, shared: bool) -> None:
    """Upload a folder to the cluster as a data set."""
    from minicluster.datasets.commands import push

    push(magics.service(), values.local_path(folder), name, shared)


@command(_DATA_SET)
def data_rm(magics: Distribute, name: str) -> None:
    """Remove one of your data sets."""
    from minicluster.datasets.commands import remove

    remove(magics.service(), name)


@command(Argument("--all", "of all users (for administrators)", None, {"action": "store_true"}))
def storage(magics: Distribute, all: bool) -> Any:
    """Show your storage at the job service, with the largest items."""
    from minicluster.display.storage import show

    return show(magics.service(), everyones=all)


@command(Argument("jobs", "numbers of jobs", job_numbers, {"metavar": "ID", "type": int, "nargs": "+"}))
def storage_rm(magics: Distribute, jobs: list[int]) -> None:
    """Delete the files of ended jobs; their history stays."""
    for job in jobs:
        magics.service().ask("DELETE", f"api/jobs/{job}/storage")
        print(f"The files of job {job} are deleted; its history stays.")  # noqa: T201


@command(
    _option("url", "the hub's address, as in a browser", "URL", nargs="?"),
    _option("--ca", "the certificate of its authority", "FILE", default=""),
    _option("--trust", "the fingerprint of its certificate", "FINGERPRINT", default=""),
)
def connect(magics: Distribute, url: str | None, ca: str, trust: str) -> None:
    """Connect a Jupyter outside of the hub."""
    from minicluster.client.connect import connect

    magics.use(connect(url, ca, trust))


@command()
def disconnect(magics: Distribute) -> None:
    """Forget the token of the last connection."""
    from minicluster.client.connect import disconnect

    magics.use(None)
    disconnect()


COMMANDS = {found.verb: found for found in list(vars().values()) if isinstance(found, Command)}


def parse_command_line(line: str) -> tuple[Command, dict[str, Any]]:
    """Return the command of a line, and its arguments by name. Raises OptionWrong and HelpRequested."""
    words = split_line(line) or ["status"]
    found = command_of(words)
    if found is None:
        raise HelpRequested(commands_help()) if words[0] in (*HELP, "help") else _unknown(words, line)
    return found, vars(found.parser.parse_words(words[len(found.verb.split()) :]))


def command_of(words: list[str]) -> Command | None:
    """Return the command that these words begin with."""
    two = COMMANDS.get(" ".join(words[:2]))
    if two is None and _has_more(words[0]) and words[1:] and not words[1].startswith("-"):
        return None
    return two or COMMANDS.get(words[0])


def commands_help() -> str:
    """Return all commands, one line each."""
    rows = {f"%distribute {one.usage}": one.help for one in COMMANDS.values()}
    width = max(map(len, rows))
    lines = [f"  {usage.ljust(width)}  {help}" for usage, help in rows.items()]
    end = "%distribute COMMAND --help explains its arguments. %%distribute? shows the options of a cell."
    return "\n".join(["Manage jobs, nodes, data sets, images and storage:", "", *lines, "", end])


def _has_more(word: str) -> bool:
    return any(verb.startswith(f"{word} ") for verb in COMMANDS)


def _unknown(words: list[str], line: str) -> OptionWrong:
    if words[0] in {one.name for one in cell_arguments()}:
        message = f"{words[0]} belongs to a cell, whose first line has two %."
        return OptionWrong(message, f"Like this: %%distribute {line.strip()}")
    more = _has_more(words[0])
    those = [one.usage for one in COMMANDS.values() if not more or one.verb.split()[0] == words[0]]
    hint = f"%distribute {' | '.join(those)}"
    return unknown_word(" ".join(words[: 1 + more]), COMMANDS, hint)
