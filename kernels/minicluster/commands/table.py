"""What may stand behind `%distribute`: one row for each command, with what it takes and where it is done."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from minicluster.options import OptionWrong, cell_arguments
from minicluster.parsing import values
from minicluster.parsing.parser import Argument, HelpAsked, LineParser, split_line, unknown_word

_ELSEWHERE = {
    "up": "is not there yet: gangs that keep their variables come in a later version; "
    "a gang stays warm after a cell by itself",
    "down": "is not needed: gangs are given back by themselves some time after their last cell",
    "doctor": "is a command of the administrator's; `%distribute nodes` shows the nodes and their slots",
}
"""Words that people try here."""


def _word(name: str, help: str, *, needed: bool = True, offers: str = "") -> Argument:
    return Argument(name, help, str, dest=name.lower(), needed=needed, offers=offers)


def _option(name: str, like: str, help: str) -> Argument:
    return Argument(name, help, str, like, dest=name[2:], default="")


_JOB = Argument("ID", "the number of a job", values.job_id, dest="job", offers="jobs")
_PULL = Argument("--pull", "only these names, as copies", values.names, "a,b", dest="pull")
_RANK = Argument("--rank", "of which rank, 0 if not given", values.rank, "N", dest="rank", default=0)
_PATH = _word("PATH", "one file or folder of them", needed=False)
_DATA_NAME = Argument("--name", "what it is called", values.new_data_set, "NAME", dest="name")
_SHARED = Argument("--shared", "lets all users read it", dest="shared")
_SCRIPT = Argument("SCRIPT", "a script, and what it is given", dest="words", rest=True)
_CA, _TRUST = (
    _option("--ca", "FILE", "the certificate of its authority"),
    _option("--trust", "FINGERPRINT", "the fingerprint of its certificate"),
)


@dataclass(frozen=True)
class Command:
    """A command. verb: what is typed. place: module and function, imported when it is used.

    like: what stands behind the verb in a list of all, where all its arguments would be too long.
    """

    verb: str
    place: str
    help: str
    arguments: tuple[Argument, ...] = ()
    like: str = ""

    @property
    def parser(self) -> LineParser:
        return LineParser(
            f"%distribute {self.verb}", f"{self.help[0].upper()}{self.help[1:]}.", self.arguments
        )

    @property
    def usage(self) -> str:
        return f"{self.verb} {self.like}" if self.like else self.parser.usage.removeprefix("%distribute ")


_ROWS = (
    Command("status", "commands.jobs:status", "your jobs and their states"),
    Command("logs", "commands.jobs:logs", "the end of a rank's output", (_JOB, _RANK)),
    Command("snapshots", "commands.jobs:snapshots", "what is kept of a job to go on from", (_JOB,)),
    Command(
        "files", "commands.files:files", "what a job left in mc.output(): listed, or brought here",
        (_JOB, _PATH, _option("--to", "FOLDER", "bring them into this folder")),
    ),
    Command("attach", "commands.jobs:attach", "a job's panel, and its results at the end", (_JOB,)),
    Command("why", "commands.jobs:why", "why a job does not get on: who waits for whom", (_JOB,)),
    Command("stop", "commands.jobs:stop", "end a job", (_JOB,)),
    Command("result", "commands.jobs:result", "bring a job's results once more", (_JOB, _PULL)),
    Command(
        "run", "commands.scripts:run", "run a script on all nodes, as torchrun does",
        (*cell_arguments(), _SCRIPT), "[OPTIONS of a cell] SCRIPT [ARGUMENTS]",
    ),
    Command("queue", "commands.jobs:queue", "why your jobs wait, your share, who is before you"),
    Command("nodes", "commands.jobs:nodes", "the nodes and their slots"),
    Command("gpus", "commands.jobs:gpus", "take the GPUs again that this notebook server left idle"),
    Command("images", "publishing.commands:images", "the images that ranks can run in"),
    Command(
        "publish", "publishing.commands:publish", "make an image of what you installed with pip",
        (_word("NAME", "what it is called"), _option("--description", "TEXT", "what others read about it")),
    ),
    Command("data", "datasets.commands:show", "the data sets that a cell may name"),
    Command(
        "data push", "datasets.commands:push", "bring a folder to the cluster as a data set",
        (_word("DIR", "a folder here"), _DATA_NAME, _SHARED),
    ),
    Command(
        "data rm", "datasets.commands:remove", "remove a data set of yours",
        (_word("NAME", "a data set", offers="data"),),
    ),
    Command(
        "storage", "commands.storage:show", "what you keep with the job service, and what is largest",
        (Argument("--all", "everyone's (admins)", dest="all"),),
    ),
    Command(
        "storage rm", "commands.storage:remove", "remove for good what ended jobs keep; their story stays",
        (Argument("ID", "the numbers of jobs", str, dest="jobs", offers="jobs", rest=True),), "ID ...",
    ),
    Command(
        "connect", "client.connect:connect", "connect a Jupyter outside of the hub",
        (_word("URL", "the hub's address, as in a browser", needed=False), _CA, _TRUST),
    ),
    Command("disconnect", "client.connect:disconnect", "forget the token of the last connection"),
)  # fmt: skip

COMMANDS = {row.verb: row for row in _ROWS}


def parse_command_line(line: str) -> tuple[Command, Namespace]:
    """Parse the line of a command. Raises OptionWrong and HelpAsked."""
    words = split_line(line) or ["status"]
    command = command_of(words)
    if command is None:
        raise HelpAsked(commands_help()) if words[0] in ("--help", "-h", "help") else _unknown(words, line)
    return command, command.parser.parse(words[len(command.verb.split()) :])


def command_of(words: list[str]) -> Command | None:
    """Return the command whose verb is what these words begin with."""
    two = COMMANDS.get(" ".join(words[:2]))
    if two is None and _has_more(words[0]) and words[1:] and not words[1].startswith("-"):
        return None
    return two or COMMANDS.get(words[0])


def commands_help() -> str:
    """Return all commands, one line each."""
    rows = {f"%distribute {row.usage}": row.help for row in COMMANDS.values()}
    width = max(map(len, rows))
    lines = [f"  {usage.ljust(width)}  {help}" for usage, help in rows.items()]
    end = "%distribute COMMAND --help explains what it takes. %%distribute? shows the options of a cell."
    return "\n".join(["Look after jobs, nodes, data sets, images and storage:", "", *lines, "", end])


def _has_more(word: str) -> bool:
    return any(verb.startswith(f"{word} ") for verb in COMMANDS)


def _unknown(words: list[str], line: str) -> OptionWrong:
    if words[0] in {one.name for one in cell_arguments()}:
        told = f"{words[0]} belongs to a cell, whose first line has two %."
        return OptionWrong(told, f"Like this: %%distribute {line.strip()}")
    more = _has_more(words[0])
    those = [row.usage for row in COMMANDS.values() if not more or row.verb.split()[0] == words[0]]
    hint = f"%distribute {' | '.join(those)}"
    if words[0] in _ELSEWHERE:
        return OptionWrong(f"{words[0]} {_ELSEWHERE[words[0]]}.", hint)
    return unknown_word(" ".join(words[: 1 + more]), COMMANDS, hint)
