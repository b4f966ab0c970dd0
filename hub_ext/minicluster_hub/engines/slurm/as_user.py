"""`minicluster-as-user`: what the job service may run as the users whose jobs it starts.

sudo runs this program, and nothing else, as a user of a lab's group (docs/engines.md has the rule). Each word
is checked against a list of forms before a command of Slurm gets it, and no shell sees it. It takes nothing
of the caller's environment but the path of slurm.conf, and that only if the file is root's.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_NAME = r"[A-Za-z0-9_.:+-]{1,200}"
_LIST = r"[A-Za-z0-9_.,:\[\]-]{1,4000}"
_PATH = r"(/[A-Za-z0-9_.-]+)+"
_WRAP = "--wrap=exec sleep infinity"
_COMMON = (rf"--job-name={_NAME}", r"--chdir=/", r"--nodes=\d+(-\d+)?")
_FORMS: Mapping[str, tuple[str, ...]] = {
    "sbatch": (
        *_COMMON,
        r"--parsable",
        r"--(output|error)=/dev/null",
        r"--no-kill",
        r"--no-requeue",
        r"--exclusive",
        r"--(ntasks|ntasks-per-node|cpus-per-task|cpus-per-gpu|time)=\d+",
        r"--(mem|mem-per-cpu|mem-per-gpu)=\d+[KMGT]?",
        rf"--(partition|account|qos|gres|gpus|reservation)={_NAME}",
        r"--constraint=[A-Za-z0-9_.:+&|*()\[\]-]{1,200}",
        rf"--exclude={_LIST}",
        _WRAP,
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
_FOLDER = rf"{_PATH}/minicluster-\d+-[0-9a-f]{{16}}"
_MODULE = (r"-P", r"-m", r"minicluster\.runtime\.step")
_STEPS = (
    (rf"{_PATH}/python[0-9.]*", *_MODULE),
    (r"rm", r"-rf", r"--", _FOLDER, _FOLDER),
)
"""What a step may run: an agent, or what removes its folders."""
_IN_IMAGE = ("apptainer", "exec")
_IMAGE_OPTION = rf"--(nv|rocm|cleanenv)|--bind={_PATH}(:{_PATH})?(:ro)?"
_OF_IMAGE = (r"docker://[A-Za-z0-9._:/-]{1,400}@sha256:[0-9a-f]{64}", r"python", *_MODULE)
"""An agent in an image, after the options of the container's program."""


class NotAllowed(Exception):
    """The words are not what the job service runs."""


def checked(words: Sequence[str]) -> list[str]:
    """Return the words, if they are a command that is allowed. Raises NotAllowed."""
    program, *rest = words or ("",)
    forms = _FORMS.get(program)
    if forms is None:
        raise NotAllowed(f"{program!r} is not one of {', '.join(_FORMS)}")
    count = next((at for at, word in enumerate(rest) if not _has_a_form(word, forms)), len(rest))
    step = rest[count:]
    if step and (program != "srun" or not _is_step(step)):
        raise NotAllowed(f"{program} may not get {' '.join(step)!r} here")
    if program == "srun" and not step:
        raise NotAllowed("srun has nothing to run")
    if program == "sbatch" and _WRAP not in rest:
        raise NotAllowed("sbatch would read its script from standard input")
    if any("/.." in word for word in rest):
        raise NotAllowed("a path may not lead upwards")
    return [program, *rest]


def _has_a_form(word: str, forms: Sequence[str]) -> bool:
    return any(re.fullmatch(form, word) for form in forms)


def _is_step(words: Sequence[str]) -> bool:
    if tuple(words[:2]) == _IN_IMAGE:
        of_image = [word for word in words[2:] if not re.fullmatch(_IMAGE_OPTION, word)]
        return _fits(of_image, _OF_IMAGE) and list(words[-len(of_image) :]) == of_image
    return any(_fits(words, form) for form in _STEPS)


def _fits(words: Sequence[str], form: Sequence[str]) -> bool:
    same = len(words) == len(form)
    return same and all(re.fullmatch(part, word) for part, word in zip(form, words, strict=True))


def environment_of(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands. A slurm.conf of others could name programs of theirs."""
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    conf = inherited.get("SLURM_CONF", "")
    if conf:
        status = Path(conf).stat()
        if status.st_uid != 0 or status.st_mode & 0o022:
            raise NotAllowed(f"{conf} is not root's alone")
        environment["SLURM_CONF"] = conf
    return environment


def main() -> None:
    """Run the command in place of this program."""
    try:
        words, environment = checked(sys.argv[1:]), environment_of(os.environ)
    except (NotAllowed, OSError) as error:
        sys.exit(f"minicluster-as-user: {error}")
    if os.getuid() == 0:
        sys.exit("minicluster-as-user: it is for users, not for root")
    os.execvpe(words[0], words, environment)  # noqa: S606 - without a shell, after the check above


if __name__ == "__main__":
    main()
