"""`minicluster-as-user`: what the job service may run as the users whose jobs it starts.

sudo runs this program, and nothing else, as a user of a lab's group (docs/engines.md has the rule). Each word
is checked against a list of forms before a command of Slurm gets it, and no shell sees it. It takes nothing
of the caller's environment but the path of slurm.conf.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_NAME = r"[A-Za-z0-9_.:+-]{1,200}"
_LIST = r"[A-Za-z0-9_.,:\[\]-]{1,4000}"
_COMMON = (rf"--job-name={_NAME}", r"--chdir=/", r"--nodes=\d+(-\d+)?")
_FORMS: Mapping[str, tuple[str, ...]] = {
    "sbatch": (
        *_COMMON,
        r"--parsable",
        r"--(output|error)=/dev/null",
        r"--no-kill",
        r"--no-requeue",
        r"--exclusive",
        r"--(ntasks|ntasks-per-node|cpus-per-task|cpus-per-gpu|gpus|time)=\d+",
        rf"--(partition|account|qos|gres|reservation)={_NAME}",
        r"--constraint=[A-Za-z0-9_.:+&|*()\[\]-]{1,200}",
        rf"--exclude={_LIST}",
        r"--wrap=exec sleep infinity",
    ),
    "srun": (
        *_COMMON,
        r"--jobid=\d+",
        rf"--nodelist={_NAME}",
        r"--ntasks=1",
        r"--overlap",
        r"--unbuffered",
        r"--mpi=none",
        r"--quit-on-interrupt",
    ),
    "scancel": (r"--signal=TERM", r"\d+(\.\d+)?"),
}
_FOLDER = r"(/[A-Za-z0-9_.-]+)+/minicluster-\d+-[0-9a-f]{16}"
_STEPS = (
    (r"/[A-Za-z0-9_./-]+/python[0-9.]*", r"-P", r"-m", r"minicluster\.runtime\.step"),
    (r"rm", r"-rf", r"--", _FOLDER, _FOLDER),
)
"""What a step may run: an agent, or what removes its folders."""


class NotAllowed(Exception):
    """The words are not what the job service runs."""


def checked(words: Sequence[str]) -> list[str]:
    """Return the words, if they are a command that is allowed. Raises NotAllowed."""
    program, *rest = words or ("",)
    forms = _FORMS.get(program)
    if forms is None:
        raise NotAllowed(f"{program!r} is not one of {', '.join(_FORMS)}")
    options = [word for word in rest if any(re.fullmatch(form, word) for form in forms)]
    step = rest[len(options) :]
    if rest[: len(options)] != options:
        wrong = next(word for word in rest if word not in options)
        raise NotAllowed(f"{program} may not get {wrong!r} here")
    if step and not (program == "srun" and any(_is_step(step, form) for form in _STEPS)):
        raise NotAllowed(f"{program} may not run {' '.join(step)!r}")
    if program == "srun" and not step:
        raise NotAllowed("srun has nothing to run")
    if any("/.." in word for word in rest):
        raise NotAllowed("a path may not lead upwards")
    return [program, *rest]


def _is_step(words: Sequence[str], form: Sequence[str]) -> bool:
    same = len(words) == len(form)
    return same and all(re.fullmatch(part, word) for part, word in zip(form, words, strict=True))


def main() -> None:
    """Run the command in place of this program."""
    try:
        words = checked(sys.argv[1:])
    except NotAllowed as error:
        sys.exit(f"minicluster-as-user: {error}")
    if os.getuid() == 0:
        sys.exit("minicluster-as-user: it is for users, not for root")
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    os.execvpe(words[0], words, environment)  # noqa: S606 - without a shell, after the check above


if __name__ == "__main__":
    main()
