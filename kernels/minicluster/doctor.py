"""`%distribute doctor`: what stands between this notebook and a run on the cluster.

All questions to the cluster are asked at the same time. One that fails makes a line; the others are shown.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import Any

from minicluster.capture import versions
from minicluster.client.client import IMAGE_VARIABLE, JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.datasets.progress import sizes
from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.errors import MiniclusterError
from minicluster.machine.gpus import find_gpus
from minicluster.publishing import site
from minicluster.serving.calls import ModelCalls
from minicluster.wire import About, CountRange, JobSpec, MyQueue, StorageReport, Versions
from minicluster.wire.serving.models import ModelList, ModelState
from minicluster.wire.starts import StartAnswer, StartForecast

_NO_PAYLOAD = "0" * 64
_SUBMIT = "custom:minicluster:submit"
_LEAST_FREE_BYTES = 1 << 30
_SHOWN = 5
_FRONT_ADVICE = "An admin installs HAProxy beside the job service, and restarts it."


class Health(StrEnum):
    """note: no obstacle, but worth knowing."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Line:
    """What was found of one subject, and what to do about it."""

    subject: str
    health: Health
    found: str
    advice: str = ""


class Doctor:
    """The outcome of `%distribute doctor`, as text and as HTML."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self.lines = lines

    @property
    def problems(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.health is Health.PROBLEM)

    def __repr__(self) -> str:
        marks = {Health.OK: "ok     ", Health.NOTE: "note   ", Health.PROBLEM: "PROBLEM"}
        texts = []
        for line in self.lines:
            texts.append(f"{marks[line.health]}  {line.subject}: {line.found}")
            texts += [f"         {row}" for row in line.advice.splitlines()]
        return "\n".join([*texts, self.summary])

    def _repr_html_(self) -> str:
        rows = tuple(
            (line.health.value, line.subject, f"{line.found} {line.advice}".strip()) for line in self.lines
        )
        table = Table(("", "subject", "what was found, and what to do"), rows, "")
        return f"{table._repr_html_()}<p>{escape(self.summary)}</p>"

    @property
    def summary(self) -> str:
        count = len(self.problems)
        if not count:
            return "Nothing stands between this notebook and a run."
        return f"{count} problem{'s stand' if count > 1 else ' stands'} between this notebook and a run."


def examine(service: JobServiceClient) -> Doctor:
    """Examine this notebook and its way to the cluster."""
    image = None if service.outside else os.environ.get(IMAGE_VARIABLE)
    questions: Mapping[str, Callable[[], Any]] = {
        "about": lambda: service.about(image),
        "starts": lambda: service.starts(_specs(image)),
        "queue": service.my_queue,
        "storage": service.storage,
        "models": lambda: _models(service),
        "packages": lambda: site.packages_beyond(image, service) if image else (),
    }
    with ThreadPoolExecutor(len(questions)) as pool:
        asked = {name: pool.submit(_answer, ask) for name, ask in questions.items()}
    answers = {name: future.result() for name, future in asked.items()}
    return Doctor(tuple(_lines(service, answers)))


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except MiniclusterError as error:
        return error


def _models(service: JobServiceClient) -> ModelList:
    try:
        return ModelCalls(service).listed()
    except ServiceError as error:
        if error.code != "unknown_path":
            raise
        return ModelList(models=())  # A service of a release before it.


def _specs(image: str | None) -> tuple[JobSpec, JobSpec]:
    one = JobSpec(payload_sha256=_NO_PAYLOAD, image=image, nodes=CountRange(min=1, max=1))
    return one, one.model_copy(update={"nodes": None})


def _lines(service: JobServiceClient, answers: Mapping[str, Any]) -> Iterator[Line]:
    about = answers["about"]
    if isinstance(about, MiniclusterError):
        yield Line("connection", Health.PROBLEM, about.message, about.hint)
    else:
        yield from connection_lines(about, service.link())
        yield from version_lines(versions.here(), about)
        for name, lines_of in _OF_ANSWERS.items():
            answer = answers[name]
            if isinstance(answer, MiniclusterError):
                yield Line(name, Health.PROBLEM, answer.message, answer.hint)
            else:
                yield from lines_of(answer)
    yield from gpu_lines(versions.here(), [gpu.model for gpu in _gpus()])
    yield disk_line(Path.cwd(), shutil.disk_usage(Path.cwd()).free)


def _gpus() -> tuple[Any, ...]:
    found = find_gpus()
    return found.read() if found is not None else ()


# Each function judges one answer.


def connection_lines(about: About, url: str) -> Iterator[Line]:
    yield Line("connection", Health.OK, f"{url}, as {about.user}")
    if about.scopes and not any(scope.startswith(_SUBMIT) for scope in about.scopes):
        advice = f"Make a token with the scope {_SUBMIT}!user, then: %distribute connect"
        yield Line("login", Health.PROBLEM, "this token may not submit jobs.", advice)


def version_lines(ours: Versions, about: About) -> Iterator[Line]:
    found = f"Python {ours.python}, torch {ours.torch or 'none'}, Minicluster {ours.minicluster}"
    if about.ranks is None:
        yield Line(
            "versions", Health.NOTE, f"{found} here; those of the ranks are known after the first cell."
        )
    elif differing := versions.differences(ours, about.ranks):
        yield Line("versions", Health.NOTE, f"{found} here.", "\n".join(differing))
    else:
        yield Line("versions", Health.OK, f"{found}, as on the ranks")


def start_lines(answer: StartAnswer) -> Iterator[Line]:
    """Judge the nodes, and when a cell would start on one of them and on all."""
    usable = [node for node in answer.nodes if node.up and not node.closed]
    slots = [slot for node in usable for slot in node.slots]
    free = sum(slot.job_id is None and slot.server is None for slot in slots)
    found = f"{free} of {len(slots)} slots on {len(usable)} nodes are free"
    yield Line("slots", Health.OK if usable else Health.PROBLEM, found, "" if usable else "Ask your admin.")
    if away := [node for node in answer.nodes if node not in usable]:
        what = ", ".join(f"{node.name} ({node.closed or 'down'})" for node in away[:_SHOWN])
        yield Line("nodes", Health.NOTE, f"not usable: {what}")
    for what, start in zip(("one node", "all nodes"), answer.starts, strict=True):
        yield _start_line(f"a cell on {what}", start, answer.now)


def _start_line(subject: str, start: StartForecast, now: float) -> Line:
    if start.refused:
        return Line(subject, Health.PROBLEM, f"would be refused: {start.refused}.", start.hint)
    if start.at_once:
        return Line(subject, Health.OK, "would start now")
    if start.expected_start_at is None:
        return Line(subject, Health.NOTE, f"would wait, nobody knows until when: it {start.reason}")
    clock = time.strftime("%a %H:%M", time.localtime(start.expected_start_at))
    found = f"would start in about {duration(start.expected_start_at - now)}, {clock}: it {start.reason}"
    return Line(subject, Health.NOTE, found)


def quota_lines(answer: MyQueue) -> Iterator[Line]:
    """Judge the user's own limits: only those that are reached stand in the way."""
    share = answer.share
    reached = [one for one in share.quotas if one.used is not None and one.used >= one.limit]
    for one in reached:
        found = f"{one.used:g} of {one.limit:g} {one.kind} ({one.summary})"
        advice = "Jobs wait until it is less: %distribute status shows yours. Or ask your admin for more."
        yield Line("quota", Health.PROBLEM, found, advice)
    if not reached:
        found = f"you hold {share.slots:g} of {share.cluster_slots:g} slots; no limit is reached"
        yield Line("quota", Health.OK, found)


def storage_lines(report: StorageReport) -> Iterator[Line]:
    for own in report.owners:
        left = own.limit_bytes - own.used_bytes
        found = f"{sizes(own.used_bytes)} of your {sizes(own.limit_bytes)} at the job service are in use"
        if own.limit_bytes and left <= 0:
            advice = "%distribute storage shows what takes most; %distribute storage rm ID makes room."
            yield Line("storage", Health.PROBLEM, found, advice)
        else:
            yield Line("storage", Health.OK, found)


def package_lines(lacking: tuple[site.Addition, ...]) -> Iterator[Line]:
    if not lacking:
        yield Line("packages", Health.OK, "the ranks have all that pip installed here")
        return
    names = ", ".join(f"{one.name} {one.version}" for one in lacking[:_SHOWN])
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    advice = (
        "Needed by a cell: --sync-env installs them for its job, %distribute publish NAME makes an image."
    )
    yield Line("packages", Health.NOTE, f"the ranks' image lacks {names}{more}", advice)


def model_lines(answer: ModelList) -> Iterator[Line]:
    """Judge what leads requests to the user's models, where there are some."""
    served = [one for one in answer.models if one.state is not ModelState.STOPPED]
    if served:
        found = f"you serve {len(served)}; requests are led to them by {answer.front}"
        slow = "not installed" in answer.front
        yield Line("models", Health.NOTE if slow else Health.OK, found, _FRONT_ADVICE if slow else "")


_OF_ANSWERS: Mapping[str, Callable[[Any], Iterator[Line]]] = {
    "starts": start_lines,
    "queue": quota_lines,
    "storage": storage_lines,
    "packages": package_lines,
    "models": model_lines,
}


def gpu_lines(ours: Versions, models: list[str]) -> Iterator[Line]:
    """Judge this machine's GPUs. The ranks have their own: none here is no problem."""
    if not models:
        yield Line("GPU", Health.OK, "none here; the ranks' nodes are what counts")
    elif "+cpu" in ours.torch:
        advice = "Install a build of torch with CUDA, or start the server with another image."
        yield Line("GPU", Health.NOTE, f"{', '.join(models)}, which torch {ours.torch} cannot use", advice)
    else:
        yield Line("GPU", Health.OK, ", ".join(models))


def disk_line(folder: Path, free_bytes: int) -> Line:
    found = f"{free_bytes / 1e9:.1f} GB are free in {folder}"
    if free_bytes >= _LEAST_FREE_BYTES:
        return Line("disk", Health.OK, found)
    return Line("disk", Health.PROBLEM, found, "Remove what is not needed: a result may find no room.")
