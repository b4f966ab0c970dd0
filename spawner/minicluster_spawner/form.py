"""The spawn page's form. All text from users and registries is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minicluster_spawner.options import GB, Allowed, OptionRefused, parse

_STEPS = (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Selection:
    """One field: its values, and the preselected one."""

    values: Sequence[float]
    chosen: float | None


def render(
    allowed: Allowed,
    nodes: Sequence[str],
    previous: Mapping[str, object],
    *,
    home_lost: bool = False,
    filled_disk: str = "",
) -> str:
    """Return the form's HTML.

    nodes: those that are up. previous: the user's last choice. home_lost: whether the last server found an
    empty home. filled_disk: the node where the last server was ended because it filled the disk.
    """
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates")
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    chosen = _still_allowed(previous, allowed)
    return template.get_template("server_options.html").render(
        images=list(allowed.images),
        image=chosen.get("image", allowed.image),
        cpus=_cpus(allowed, chosen),
        memory=_memory(allowed, chosen),
        nodes=nodes,
        node=chosen.get("node", ""),
        max_gpus=allowed.max_gpus,
        half_gpus=allowed.half_gpus,
        gpu_hours=_steps(0.25, allowed.max_gpu_s / 3600),
        max_gpu_hours=allowed.max_gpu_s / 3600,
        home_lost=home_lost,
        filled_disk=filled_disk,
    )


def _still_allowed(previous: Mapping[str, object], allowed: Allowed) -> dict[str, object]:
    """Return the part of an earlier choice that is still allowed, without GPUs and new homes."""
    kept: dict[str, object] = {}
    for name in ("image", "cpus", "memory_gb", "node"):
        try:
            if name in previous:
                parse({name: previous[name]}, allowed)
                kept[name] = previous[name]
        except OptionRefused:
            continue
    return kept


def _cpus(allowed: Allowed, chosen: Mapping[str, object]) -> Selection | None:
    if allowed.max_cpus is None:
        return None
    default = parse(chosen, allowed).cpus
    return Selection(_steps(0.5, allowed.max_cpus, default), default)


def _memory(allowed: Allowed, chosen: Mapping[str, object]) -> Selection | None:
    if allowed.max_memory_bytes is None:
        return None
    default_gb = (parse(chosen, allowed).memory_bytes or allowed.max_memory_bytes) / GB
    return Selection(_steps(0.25, allowed.max_memory_bytes / GB, default_gb), default_gb)


def _steps(least: float, most: float, chosen: float | None = None) -> list[float]:
    """Return round values from least to most, with the most and the chosen value."""
    values = {float(step) for step in _STEPS if least <= step < most} | {most}
    return sorted(values | ({chosen} if chosen is not None else set()))
