"""What a notebook tells of a cell: names with their sizes, and the commit of its folder, without delay."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from minicluster.capture.run_origin import (
    CommitSearch,
    Submitted,
    differing_versions,
    run_origin,
    sent_names,
)
from minicluster.pickling.pickling import ANY_TARGET
from minicluster.wire import RunOrigin, Versions


def of(**names: Any) -> Submitted:
    return Submitted(names, dict(names), ANY_TARGET)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "model.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_names_have_their_type_and_the_size_of_their_pickle() -> None:
    weights = torch.zeros(1000)
    found = {one.name: one for one in sent_names(of(weights=weights, same=weights, lr=0.1))}
    assert found["weights"].type == "torch.Tensor"
    assert 4000 < (found["weights"].size_bytes or 0) < 5000
    assert found["same"].size_bytes is None
    assert (found["lr"].type, (found["lr"].size_bytes or 0) < 50) == ("float", True)


@pytest.mark.full("ten seconds of large objects")
def test_a_large_object_is_not_measured_for_long() -> None:
    large = [[number] for number in range(3_000_000)]
    start = time.process_time()
    (one, _) = sent_names(of(large=large, last=1))
    assert time.process_time() - start < 1
    assert one.size_bytes is None


def test_an_object_that_refuses_a_second_pickle_has_no_size() -> None:
    class Once:
        def __reduce__(self) -> Any:
            raise RuntimeError("once only")

    (one,) = sent_names(of(once=Once()))
    assert one.size_bytes is None
    assert one.type.endswith("Once")


def test_too_long_texts_are_cut_and_too_many_names_left_out() -> None:
    names = {f"name_{number}": number for number in range(600)}
    packages = {f"package-{number}": "1.0" for number in range(300)}
    found = run_origin("x" * 300_000, "y" * 5000, of(**names), None, packages, tags=("a",))
    assert len(found.names) == 500
    assert len(found.packages) == 200
    assert found == RunOrigin.model_validate_json(found.model_dump_json())


def test_the_commit_of_a_folder_and_how_many_files_differ(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    (repository / "new.py").write_text("")
    clean = CommitSearch(repository).commit(10)
    assert clean is not None
    assert (clean.commit, clean.branch, clean.changed) == (head, "main", 0)
    (repository / "model.py").write_text("x = 2\n")
    (repository / "deep").mkdir()
    changed = CommitSearch(repository / "deep").commit(10)
    assert changed is not None
    assert changed.changed == 1


def test_without_a_branch_a_commit_or_a_repository(repository: Path, tmp_path_factory: Any) -> None:
    git(repository, "checkout", "-q", "--detach")
    found = CommitSearch(repository).commit(10)
    assert found is not None
    assert found.branch == ""
    outside = tmp_path_factory.mktemp("outside")
    assert CommitSearch(outside).commit(10) is None
    git(outside, "init", "-q")
    assert CommitSearch(outside).commit(10) is None


def test_a_slow_git_delays_nothing(
    repository: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path_factory.mktemp("programs")
    (programs / "git").write_text("#!/bin/sh\nsleep 3\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    start = time.monotonic()
    assert CommitSearch(repository).commit(0.1) is None
    assert time.monotonic() - start < 1
    monkeypatch.setenv("PATH", "/nowhere")
    assert CommitSearch(repository).commit(10) is None


def test_versions_that_differ() -> None:
    ours = Versions(python="3.12.1", torch="2.8", minicluster="0.2.0")
    assert differing_versions(ours, None) == {}
    theirs = ours.model_copy(update={"torch": "2.9", "cloudpickle": "3.1"})
    assert differing_versions(ours, theirs) == {"torch": "2.8"}
