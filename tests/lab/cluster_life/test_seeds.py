"""Nodes share image files by hard links: none can change another's files, or those of a later lab."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..machines import Lab, Node
from ..machines.builder import build_engine
from ..machines.images import build, ids_of
from ..machines.seeds import Seed

pytestmark = pytest.mark.apart("it makes machines of its own")
TAGS = ("first", "second", "third")
NAMES = tuple(f"minilab/seeded{os.getpid()}:{tag}" for tag in TAGS)
"""Image names for this test only: other trees may be tested with the same cache."""
FIRST = NAMES[0]


@pytest.fixture
def seeds(builder: None) -> Iterator[None]:
    """Remove seeds of these names before and after the test."""
    forget_all()
    yield
    forget_all()
    build_engine().docker("rmi", "--force", *NAMES)


def forget_all() -> None:
    for seed in Seed.found((FIRST,)):
        seed.forget()


def make_image(folder: Path, name: str) -> str:
    """Make an image of a few bytes with two layers; only the second one depends on the tag."""
    text = name.partition(":")[2]
    (folder / "same").write_text("the same")
    (folder / "text").write_text(text)
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text("FROM scratch\nCOPY same /same\nCOPY text /text\n")
    build(dockerfile, name, folder, {})
    return text


def contents(seed: Seed) -> str:
    """Return a digest of all files' names, kinds, times of writing and contents."""
    digest = hashlib.sha256()
    for path in sorted(seed.folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_mtime_ns} {status.st_size}".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def text_in_image(node: Node, name: str = FIRST) -> str:
    """Return the content of the file that distinguishes the images, from a new container."""
    script = f"docker create --name=look {name} x >&2; docker cp look:/text - | tar -xO; docker rm look >&2"
    return on(node, script)[0]


def on(node: Node, commands: str) -> list[str]:
    return node.run(["sh", "-ec", commands]).stdout.split("\n")


def test_what_a_node_does_to_its_images_is_seen_by_no_other(seeds: None, tmp_path: Path) -> None:
    make_image(tmp_path, FIRST)
    written = tmp_path / "text"
    with Lab.fresh(images=(FIRST,), images_on=2) as lab:
        (seed,) = Seed.found((FIRST,))
        before = contents(seed)
        one, other, bare = lab.nodes
        assert on(bare, "docker images --quiet") == [""]
        assert text_in_image(one) == text_in_image(other) == "first"
        written.write_text("changed")
        on(one, f"docker create --name=kept {FIRST} x; docker cp {written} kept:/text")
        on(one, f"docker commit kept {FIRST}; docker rm kept")
        assert (text_in_image(one), text_in_image(other)) == ("changed", "first")
        one.restart_daemon()
        on(one, "docker system prune --all --force")
        assert on(one, "docker images --quiet") == [""]
        assert text_in_image(other) == "first"
        assert contents(seed) == before
        lab.load(FIRST)
        assert text_in_image(one) == text_in_image(bare) == "first"
    assert contents(seed) == before


def test_a_newer_image_is_pulled_over_an_older_seed_and_replaces_it_in_time(
    seeds: None, tmp_path: Path
) -> None:
    for name in NAMES:
        text = make_image(tmp_path, name)
        with Lab.fresh(gpus=(0,), images=(name,)) as lab:
            (node,) = lab.nodes
            assert text_in_image(node, name) == text
            there = on(node, "docker images --all --format {{.Repository}}:{{.Tag}}")
            assert there == [name, ""], "the older one is not there"
    newest, older = Seed.found((FIRST,))
    assert (newest.ids(), older.ids()) == (ids_of(NAMES[2:]), ids_of(NAMES[1:2]))
