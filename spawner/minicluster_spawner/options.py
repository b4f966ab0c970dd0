"""The options that a user may choose for a notebook server; pure.

A form and a REST body have the same names; a form's values are strings. This module checks both, since a REST
call does not use the form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicluster.wire import GPU_SHARE

GB = 2**30
FIELDS = ("image", "cpus", "memory_gb", "node", "gpus", "gpu_hours", "new_home")
_MIN_CPUS, _MIN_MEMORY_BYTES = 0.1, GB // 4
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


class OptionRefused(Exception):
    """A choice is not allowed; the text says which, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a user may choose.

    images: references by the names that users see. image: the name of the default image.
    cpus, memory_bytes: the defaults; None: the maximum, or no limit without one.
    max_cpus, max_memory_bytes: the maximum that may be chosen; None: no choice.
    half_gpus: whether half of a GPU may be chosen.
    """

    images: Mapping[str, str]
    image: str
    cpus: float | None = None
    max_cpus: float | None = None
    memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    max_gpus: float = 0
    half_gpus: bool = False
    max_gpu_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of one server.

    image: the reference. node: None: the cluster chooses. cpus, memory_bytes: None: no limit.
    gpu_s: seconds that it has its GPUs. new_home: whether an empty home may replace a lost one.
    """

    image_name: str
    image: str
    cpus: float | None
    memory_bytes: int | None
    node: str | None = None
    gpus: float = 0
    gpu_s: float | None = None
    new_home: bool = False


def from_form(form: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """Return a submitted form as options, without empty fields."""
    picked = {name: form[name][-1] for name in FIELDS if form.get(name)}
    return {name: value for name, value in picked.items() if value != ""}


def parse(options: Mapping[str, object], allowed: Allowed) -> Choice:
    """Return the choice, parsed and checked. Raises OptionRefused."""
    unknown = sorted(set(options) - set(FIELDS))
    if unknown:
        raise OptionRefused(f"There is no option {', '.join(unknown)}. Options: {', '.join(FIELDS)}.")
    chosen = {name: value for name, value in options.items() if value not in (None, "")}
    image_name = _image(chosen.get("image", allowed.image), allowed)
    gpus = _gpus(chosen.get("gpus", 0), allowed)
    return Choice(
        image_name=image_name,
        image=allowed.images[image_name],
        cpus=_cpus(chosen, allowed),
        memory_bytes=_memory_bytes(chosen, allowed),
        node=_node(chosen.get("node")),
        gpus=gpus,
        gpu_s=_gpu_s(chosen, allowed) if gpus else None,
        new_home=_flag("new_home", chosen.get("new_home", False)),
    )


def _image(value: object, allowed: Allowed) -> str:
    if not isinstance(value, str) or value not in allowed.images:
        raise OptionRefused(f"There is no image {value!r}. Images: {', '.join(allowed.images)}.")
    return value


def _cpus(chosen: Mapping[str, object], allowed: Allowed) -> float | None:
    if "cpus" not in chosen:
        return allowed.max_cpus if allowed.cpus is None else allowed.cpus
    most = allowed.max_cpus or allowed.cpus
    if most is None:
        raise OptionRefused("This cluster sets no limit on CPUs: leave cpus out.")
    return _between("cpus", chosen["cpus"], _MIN_CPUS, most, "CPUs")


def _memory_bytes(chosen: Mapping[str, object], allowed: Allowed) -> int | None:
    if "memory_gb" not in chosen:
        return allowed.max_memory_bytes if allowed.memory_bytes is None else allowed.memory_bytes
    most = allowed.max_memory_bytes or allowed.memory_bytes
    if most is None:
        raise OptionRefused("This cluster sets no limit on memory: leave memory_gb out.")
    least_gb = min(_MIN_MEMORY_BYTES, most) / GB
    return round(_between("memory_gb", chosen["memory_gb"], least_gb, most / GB, "GB") * GB)


def _node(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _NODE.fullmatch(value):
        raise OptionRefused("node is not a node's name. Leave it out to let the cluster choose.")
    return value


def _gpus(value: object, allowed: Allowed) -> float:
    number = _number("gpus", value)
    if number == 0:
        return 0
    if not allowed.max_gpus:
        raise OptionRefused(
            "Notebook servers get no GPU on this cluster. Use GPUs with %%distribute, or ask an admin."
        )
    if number == GPU_SHARE and not allowed.half_gpus:
        raise OptionRefused("This cluster does not share GPUs: gpus must be a whole number.")
    if number not in (int(number), GPU_SHARE):
        raise OptionRefused(f"gpus must be a whole number, or {GPU_SHARE}, not {number:g}.")
    return _between("gpus", number, 0, allowed.max_gpus, "GPUs")


def _gpu_s(chosen: Mapping[str, object], allowed: Allowed) -> float:
    if "gpu_hours" not in chosen:
        return allowed.max_gpu_s
    return _between("gpu_hours", chosen["gpu_hours"], 1 / 3600, allowed.max_gpu_s / 3600, "hours") * 3600


def _between(name: str, value: object, least: float, most: float, unit: str) -> float:
    number = _number(name, value)
    # A form rounds its largest value, so a value slightly above the maximum means the maximum.
    if not least <= number <= most * (1 + 1e-9):
        raise OptionRefused(f"{name} = {number:g} is not allowed: from {least:g} to {most:g} {unit}.")
    return min(number, most)


def _number(name: str, value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise OptionRefused(f"{name} must be a number.")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("on", "true"):
        return True
    raise OptionRefused(f"{name} must be true or false.")
