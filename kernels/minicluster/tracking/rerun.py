"""`%distribute rerun ID`: writes a run's cell again, with the same options, image and data."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicluster.capture.payload import CellPayload, PayloadDamaged
from minicluster.capture.run_origin import CommitSearch
from minicluster.client.connection import ServiceError
from minicluster.datasets import calls
from minicluster.errors import MiniclusterError
from minicluster.parsing.parser import OptionWrong, split_line
from minicluster.parsing.values import local_path
from minicluster.pickling.refusal import type_name
from minicluster.tracking.rerun_trial import as_cell, trial_differences, trial_of
from minicluster.wire import DataSet, DataUse, GitCommit, ImageState, RunDetails, RunOrigin
from minicluster.wire.files.data import VERSION_CHARS

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient

_MAGIC = "# %%distribute"
_SHORT = 10
"""Characters of a commit that people compare."""


class SourceUnknown(MiniclusterError):
    """Nothing says what a run's cell was."""


@dataclass(frozen=True)
class Rerun:
    """A cell that repeats a run, and what is not as it was then, each as a sentence."""

    cell: str
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Present:
    """What the notebook and the cluster have now.

    images: the digests that ranks may run in; None: this cluster has no images. names: the notebook's.
    """

    images: frozenset[str] | None
    data: Sequence[DataSet]
    names: Mapping[str, Any]
    commit: GitCommit | None


def rerun(service: JobServiceClient, run_id: int, names: Mapping[str, Any]) -> Rerun:
    """Return the cell that repeats a run, a sweep's trial with the parameters that it had.

    names: the notebook's. Raises ServiceError, SourceUnknown.
    """
    search = CommitSearch(Path.cwd())
    details = service.run(run_id)
    if not details.origin.source:
        details = details.model_copy(update={"origin": _of_payload(service, details)})
    images = None
    if details.image:
        offered = service.images().images
        images = frozenset(one.digest for one in offered if one.state is ImageState.ALLOWED)
    data = calls.listed(service) if details.data else ()
    present = Present(images, data, names, search.commit())
    if (trial := trial_of(service, details)) is not None:
        details = as_cell(details, trial)
    changed = (*(trial_differences(trial) if trial else ()), *differences(details, present))
    return Rerun(cell_again(details, present), changed)


def _of_payload(service: JobServiceClient, details: RunDetails) -> RunOrigin:
    """Return a run's source and line from its payload: an earlier release told nothing else."""
    run, origin = details.run, details.origin
    try:
        payload = CellPayload.from_bytes(service.ask("GET", f"api/jobs/{run.id}/cell").content)
    except (ServiceError, PayloadDamaged) as error:
        raise SourceUnknown(
            f"The cell of run {run.id} is not known: no notebook submitted it, or it was removed.",
            str(error),
        ) from None
    if payload.script:
        line = shlex.join([payload.script, *payload.arguments])
        return origin.model_copy(update={"source": payload.source, "line": line, "script": payload.script})
    first, _, source = payload.source.partition("\n")
    if not first.startswith(_MAGIC):
        first, source = "", payload.source
    line = first.removeprefix(_MAGIC).strip()
    return origin.model_copy(update={"source": source, "line": line})


def cell_again(details: RunDetails, present: Present) -> str:
    """Return the text of the cell."""
    origin = details.origin
    options, script = _split(origin)
    image, data = _image(details, present), _data(details, present.data)
    written_anew = {"--rerun-of": True, "--image": bool(image), "--data": bool(data)}
    options = _without(options, *(name for name, anew in written_anew.items() if anew))
    given = _given(options)
    more = [*(["--data", data] if data else ()), *(["--image", image] if image else ())]
    if details.seed is not None and "--seed" not in given:
        more += ["--seed", f"{details.seed}"]
    words = [*options, *more, "--rerun-of", f"{details.run.id}"]
    if origin.script:
        return f"%distribute run {shlex.join([*words, *script])}"
    return f"%%distribute {shlex.join(words)}\n{origin.source}"


def differences(details: RunDetails, present: Present) -> Iterator[str]:
    """Yield what is not as it was when the run was submitted."""
    origin = details.origin
    if details.image and not _image(details, present):
        yield (
            f"Its image {details.image_name or details.image} is not offered any more: the cell takes "
            "another one."
        )
    yield from _data_differences(details, present.data)
    yield from _name_differences(origin, present.names)
    yield from _package_differences(origin)
    then, now = origin.commit, present.commit
    if then is not None and now is not None and then.commit != now.commit:
        yield f"The folder is at commit {now.commit[:_SHORT]}; then it was at {then.commit[:_SHORT]}."
    if then is not None and then.changed:
        yield f"{then.changed} files differed from that commit then."
    if origin.script and _text_of(origin.script) != origin.source:
        yield f"{origin.script} has another text now, or is not here."
    if details.seed is None:
        yield "It had no --seed: random numbers will be others."


def _data_differences(details: RunDetails, sets: Sequence[DataSet]) -> Iterator[str]:
    for use in details.data:
        now = _data_set(use, sets)
        if now is None:
            yield f"The data set {use.name} is not there any more."
        elif not _has_version(now, use.manifest_sha256):
            yield (
                f"The data set {use.name} has changed: the run read version {use.manifest_sha256[:_SHORT]}, "
                f"which is not kept any more; the cell will read {now.manifest_sha256[:_SHORT]}."
            )


def _data(details: RunDetails, sets: Sequence[DataSet]) -> str:
    """Return how the line names the run's data sets: each with its version, if that is still kept."""
    words: list[str] = []
    for use in details.data:
        now = _data_set(use, sets)
        kept = now is not None and _has_version(now, use.manifest_sha256)
        words.append(f"{use.name}@{use.manifest_sha256[:VERSION_CHARS]}" if kept else use.name)
    return ",".join(words)


def _data_set(use: DataUse, sets: Sequence[DataSet]) -> DataSet | None:
    wanted = (use.owner, use.name.rpartition("/")[2])
    return next((one for one in sets if (one.owner, one.name) == wanted), None)


def _has_version(data_set: DataSet, manifest_sha256: str) -> bool:
    earlier = (one.manifest_sha256 for one in data_set.earlier)
    return manifest_sha256 in (data_set.manifest_sha256, *earlier)


def _name_differences(origin: RunOrigin, names: Mapping[str, Any]) -> Iterator[str]:
    missing = [one.name for one in origin.names if one.name not in names]
    if missing:
        yield f"The notebook has no {', '.join(missing)}: run the cells that make them first."
    for one in origin.names:
        if one.name in names and one.type and type_name(names[one.name]) != one.type:
            yield f"`{one.name}` was {one.type} then; it is {type_name(names[one.name])} now."


def _package_differences(origin: RunOrigin) -> Iterator[str]:
    for name, then in origin.packages.items():
        now = _installed(name)
        if then and now != then and name != "python":
            yield f"{name} was {then} then; it is {now or 'not installed'} here now."


def _installed(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError, ValueError):
        return version(package)
    return ""


def _text_of(script: str) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError, OptionWrong):
        return local_path(script).read_text(encoding="utf-8-sig")
    return None


def _image(details: RunDetails, present: Present) -> str:
    """Return how the line names the run's image by its digest; "" if it is not offered any more."""
    if not details.image:
        return ""
    repository, _, digest = details.image.rpartition("@")
    if present.images is not None and digest not in present.images:
        return ""
    named = details.image_name or repository
    return details.image if repository or not named else f"{named}@{digest}"


# The words of a line.


def _split(origin: RunOrigin) -> tuple[list[str], list[str]]:
    """Return the options of a line, and the script with its arguments. Raises SourceUnknown."""
    from minicluster.commands import COMMANDS

    try:
        words = split_line(origin.line)
        script = COMMANDS["run"].parser.parse_words(words).words if origin.script else []
    except OptionWrong as error:
        raise SourceUnknown(f"The run's line is not understood here: {origin.line}", error.message) from None
    return words[: len(words) - len(script)], script


def _given(options: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in options}


def _without(options: Sequence[str], *names: str) -> list[str]:
    """Return a line's options without these, each of which has a value."""
    found: list[str] = []
    words = iter(options)
    for word in words:
        if word in names:
            next(words, None)
        elif word.partition("=")[0] not in names:
            found.append(word)
    return found
