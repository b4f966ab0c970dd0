"""The format of a cell's two blobs: the payload for the ranks, and the result from rank 0.

Each is a JSON head, which can be read without unpickling anything, followed by sections of bytes:
`MCL1`, the head's length (8 bytes, big endian), the head, the sections one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.sources import Source
from minicluster.pickling.parts import (
    Damaged,
    Data,
    Form,
    OutOfBandPickle,
    PartReference,
    PicklePart,
    inline_parts,
    to_out_of_band,
)

MAGIC = b"MCL1"
_SOURCES = "sources"


class PayloadDamaged(ValueError):
    """A blob that is not in this format, or was truncated."""


def pack(head: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    sizes = {name: len(data) for name, data in sections.items()}
    encoded = json.dumps({**head, "sections": sizes}).encode()
    return b"".join([MAGIC, len(encoded).to_bytes(8, "big"), encoded, *sections.values()])


def unpack(blob: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the head and the sections. Raises PayloadDamaged."""
    if blob[:4] != MAGIC or len(blob) < 12:
        raise PayloadDamaged(f"not a Minicluster payload: {len(blob)} bytes that start with {blob[:4]!r}")
    start = 12 + int.from_bytes(blob[4:12], "big")
    try:
        head: dict[str, Any] = json.loads(blob[12:start])
        sizes: dict[str, int] = head.pop("sections")
    except (ValueError, KeyError) as error:
        raise PayloadDamaged(f"the payload's head cannot be read: {error}") from error
    sections = {}
    for name, size in sizes.items():
        sections[name] = blob[start : start + size]
        start += size
    if start != len(blob):
        raise PayloadDamaged(f"the payload has {len(blob)} bytes, its head says {start}")
    return head, sections


def head_of(path: Path) -> dict[str, Any]:
    """Return the head of a blob's file, without reading the rest. Raises PayloadDamaged."""
    with path.open("rb") as file:
        start = file.read(12)
        head = file.read(int.from_bytes(start[4:], "big"))
    try:
        return json.loads(head)
    except ValueError as error:
        raise PayloadDamaged(f"the payload's head cannot be read: {error}") from error


@dataclass(frozen=True)
class CellPayload:
    """A cell as it is sent to the ranks.

    source: the cell's text, as typed. filename: what tracebacks call it.
    names: one pickle of a dict with all names that are sent (`pickling.dumps`).
    shared: which of its objects the notebook keeps (`SharedObjects.shared`); empty: they get no changes.
    modules: source files beside the notebook, by relative path.
    pull: the names to return; None: all that the cell assigns at top level or changes.
    gather: the names that return as a list with each rank's value.
    versions: python, torch, cloudpickle, minicluster of the sender.
    packages: pins (as JSON) of packages that the ranks install in addition to their image.
    parts: large ranges of the pickle; `names` is then the rest of it (see minicluster.pickling.parts).
    part_references: in a cell that was read: the parts that are stored as blobs of their own.
    sources: texts of other cells whose functions were sent, for tracebacks.
    home: the notebook's folder, and which names were not sent.
    script: the path of the script whose text is `source`; "" for a cell. arguments: the script's.
    """

    source: str
    filename: str
    names: bytes = b""
    shared: bytes = b""
    parts: tuple[PicklePart, ...] = ()
    part_references: tuple[PartReference, ...] = ()
    modules: Mapping[str, bytes] = field(default_factory=dict)
    pull: tuple[str, ...] | None = None
    gather: tuple[str, ...] = ()
    result_limit_bytes: int = 1 << 30
    versions: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    home: NotebookFolder = NotebookFolder()  # noqa: RUF009 - frozen
    script: str = ""
    arguments: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the cell as one blob, parts included."""
        names = inline_parts(self.names, ((part.at, part.data) for part in self.parts))
        return replace(self, names=names, parts=()).without_parts(())

    def without_parts(self, digests: Sequence[str]) -> bytes:
        """Return the blob without its parts; it refers to them by their SHA-256 (`digests`)."""
        head = {
            "kind": "cell",
            "parts": [[part.at, sha256, part.form] for part, sha256 in zip(self.parts, digests, strict=True)],
            "source": self.source,
            "filename": self.filename,
            "pull": self.pull,
            "gather": self.gather,
            "result_limit_bytes": self.result_limit_bytes,
            "versions": dict(self.versions),
            "packages": self.packages,
            "home": self.home.to_json(),
            "script": self.script,
            "arguments": self.arguments,
        }
        modules = {f"module:{path}": data for path, data in self.modules.items()}
        sources = {name: [source.shown_as, source.text] for name, source in self.sources.items()}
        return pack(
            head,
            {"names": self.names, "shared": self.shared, _SOURCES: json.dumps(sources).encode(), **modules},
        )

    @classmethod
    def from_bytes(cls, blob: bytes) -> CellPayload:
        """Read a cell. Raises PayloadDamaged."""
        head, sections = unpack(blob)
        pull = head["pull"]
        sources: dict[str, list[str]] = json.loads(sections.pop(_SOURCES, b"{}"))
        return cls(
            source=head["source"],
            filename=head["filename"],
            names=sections.pop("names"),
            part_references=tuple(
                PartReference(at, sha256, Form(*form)) for at, sha256, *form in head.get("parts") or ()
            ),
            shared=sections.pop("shared", b""),
            modules={key.removeprefix("module:"): data for key, data in sections.items()},
            pull=None if pull is None else tuple(pull),
            gather=tuple(head.get("gather", ())),
            result_limit_bytes=head["result_limit_bytes"],
            versions=head["versions"],
            packages=tuple(head.get("packages", ())),
            sources={name: Source(*source) for name, source in sources.items()},
            home=NotebookFolder.of_json(head.get("home", {})),
            script=head.get("script", ""),
            arguments=tuple(head.get("arguments", ())),
        )

    def with_parts(self, part: Callable[[str], Data]) -> CellPayload:
        """Return the cell with its parts inline. part: returns a part's bytes, given its SHA-256."""
        names = inline_parts(self.names, ((one.at, part(one.sha256)) for one in self.part_references))
        return replace(self, names=names, part_references=())

    def open_names(self, memory: Callable[[str], memoryview] | None = None) -> OutOfBandPickle:
        """Return the pickle of the names. memory: see `parts.to_out_of_band`. Raises PayloadDamaged."""
        if memory is None:
            memory = self._missing
        try:
            return to_out_of_band(self.names, self.part_references, memory)
        except Damaged as error:
            raise PayloadDamaged(f"the payload cannot be read: {error}") from error

    def _missing(self, sha256: str) -> memoryview:
        raise PayloadDamaged(f"the payload's {len(self.part_references)} parts are missing")


@dataclass(frozen=True)
class LeftBehind:
    """A name that could not return from rank 0, and why."""

    name: str
    type_name: str
    reason: str


def left_to_bytes(left: Iterable[LeftBehind]) -> bytes:
    return json.dumps([[item.name, item.type_name, item.reason] for item in left]).encode()


def left_from_bytes(data: bytes) -> tuple[LeftBehind, ...]:
    return tuple(LeftBehind(*item) for item in json.loads(data))
