"""What torch's flight recorder knows of a rank: the collective that it is in, or the last one it finished.

The rank answers a request in a file. The debug server of torch has the same, but listens on all addresses
and asks for no password. Without an answer (the rank holds the lock of Python, or its torch has no recorder)
`why` has the stacks alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from minicluster.runtime.diagnosis.requests import COLLECTIVE, send
from minicluster.runtime.paths import write_whole
from minicluster.wire import Collective

_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch: the recorder of NCCL, and that of the other backends."""
_MOST_TENSORS = 3
_TEXT_CHARS = 200
_POLL_S = 0.02
_MOST_BYTES = 4096
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
    "Bool": "bool",
}
"""The recorder's names, where they are not those that people write."""


# --- in the rank ------------------------------------------------------------------------------


def answer(answers: Path, number: int) -> None:
    """Write where this rank is, behind the number of the request."""
    found = None
    # Another torch than those known may record in another form.
    with contextlib.suppress(RuntimeError, ValueError, KeyError, TypeError):
        found = current(recorded())
    with contextlib.suppress(OSError):
        write_whole(answers, bytes([number]) + (found.model_dump_json() if found else "null").encode())


def recorded() -> list[dict[str, Any]]:
    """Return the recorder's entries of this process, the oldest first."""
    from torch._C import _distributed_c10d as c10d

    found: list[dict[str, Any]] = []
    for dump in (getattr(c10d, name, None) for name in _DUMPS):
        found += json.loads(dump(True, False)).get("entries") or () if dump else ()
    return sorted(found, key=lambda entry: entry["time_created_ns"])


# --- in the agent -----------------------------------------------------------------------------


async def collective_of(requests: Path, answers: Path, within_s: float) -> Collective | None:
    """Return where a rank is, or None if it does not answer in time."""
    number = 1 + (_read(answers) or b"\0")[0] % 255
    if not send(requests, COLLECTIVE, number):
        return None
    until = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
        found = _read(answers)
        if found[:1] == bytes([number]):
            with contextlib.suppress(ValidationError):  # What stands there is the cell's to change.
                return Collective.model_validate_json(found[1:])
            return None
    return None


def current(entries: Sequence[Mapping[str, Any]]) -> Collective | None:
    """Return the oldest collective that is not over; the newest one if all are."""
    if not entries:
        return None
    waiting = next((entry for entry in entries if not entry["retired"]), None)
    entry = waiting or entries[-1]
    is_p2p = bool(entry.get("is_p2p"))
    return Collective(
        name=str(entry["profiling_name"]).rpartition(":")[2][:_TEXT_CHARS],
        number=entry["p2p_seq_id" if is_p2p else "collective_seq_id"],
        group=":".join(map(str, entry["process_group"]))[:_TEXT_CHARS],
        tensors=_tensors(entry),
        is_p2p=is_p2p,
        is_over=waiting is None,
    )


def _tensors(entry: Mapping[str, Any]) -> str:
    """Return the tensors that go in: "float32[10, 20]"."""
    pairs = list(zip(entry.get("input_dtypes") or (), entry.get("input_sizes") or (), strict=False))
    texts = [f"{_DTYPES.get(dtype, dtype)}{list(sizes)}" for dtype, sizes in pairs[:_MOST_TENSORS]]
    if len(pairs) > _MOST_TENSORS:
        texts.append(f"{len(pairs) - _MOST_TENSORS} more")
    return ", ".join(texts)[:_TEXT_CHARS]


def _read(answers: Path) -> bytes:
    """Return the last answer: the number of its request, and JSON."""
    with contextlib.suppress(OSError), answers.open("rb") as file:
        return file.read(_MOST_BYTES)
    return b""
