"""Objects that cannot be sent: the error has name, path, size and reason."""

from __future__ import annotations

import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from minicluster.pickling.pickling import NotPicklable, dumps


class Holder:
    def __init__(self, thing: Any) -> None:
        self.things = {"first": [thing]}


def _refused(value: Any, limit: int = 10**6) -> NotPicklable:
    with pytest.raises(NotPicklable) as caught:
        dumps({"good": 1, "bad": value}, {}, "The names of this cell", limit)
    return caught.value


def test_each_culprit_is_named_with_type_size_and_reason(tmp_path: Path) -> None:
    with (
        (tmp_path / "log.txt").open("w") as file,
        socket.socket() as sock,
        sqlite3.connect(":memory:") as base,
    ):
        names = {"l": threading.Lock(), "f": file, "g": (x for x in [1]), "s": sock, "d": base, "ok": 3}
        with pytest.raises(NotPicklable) as caught:
            dumps(names, {}, "The names of this cell")
    error = caught.value
    assert [item.name for item in error.culprits] == ["l", "f", "g", "s", "d"]
    reasons = ["a lock", "an open file", "a generator", "a socket", "a database connection"]
    for culprit, word in zip(error.culprits, reasons, strict=True):
        assert word in culprit.reason
    assert "`f` (_io.TextIOWrapper, " in error.message
    assert "--push" in error.hint


def test_the_place_inside_an_object_is_told() -> None:
    assert "bad.things['first'][0] (_thread.lock)" in _refused(Holder(threading.Lock())).message


def test_an_object_that_refuses_by_itself_is_named() -> None:
    assert "cannot be copied" in _refused(memoryview(b"")[0:0].cast("B").__iter__()).message


def test_too_large_tells_limit_and_setting() -> None:
    error = _refused(bytes(2_000_000))
    assert error.culprits[0].name == "bad"
    assert "1 MB are allowed" in error.message
    assert "send_limit_bytes" in error.hint


def test_many_that_are_too_large_together_name_the_largest() -> None:
    names = {"a": bytes(600_000), "b": bytes(700_000), "c": bytes(100)}
    with pytest.raises(NotPicklable) as caught:
        dumps(names, {}, "The names of this cell", 1_000_000)
    assert [(item.name, item.size_bytes // 1000) for item in caught.value.culprits] == [("b", 700)]


def test_a_global_that_only_a_function_uses_is_named_itself() -> None:
    namespace: dict[str, Any] = {"lock": threading.Lock()}
    exec("def work():\n    with lock: pass", namespace)
    with pytest.raises(NotPicklable) as caught:
        dumps({"work": namespace["work"]}, namespace, "The names of this cell")
    assert [item.name for item in caught.value.culprits] == ["lock"]


def test_deep_nesting_is_told() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in _refused(deep).message
