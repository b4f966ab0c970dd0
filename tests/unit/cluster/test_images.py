"""How images are built, what must not remain in them, and what publishing records."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

IMAGES = Path(__file__).resolve().parents[3] / "images"
BUILD_ONLY = {"PIP_INDEX_URL", "PIP_CERT", "NPM_REGISTRY", "TORCH_INDEX_URL"}

FAKE_DOCKER = """#!/bin/sh
case "$1 $2" in
  "image inspect") case $3 in
      --format) case $5 in
          base:1) echo '["base@sha256:cd"]' ;;
          minicluster/hub:dev) echo sha256:1d ;;
          *) exit 1 ;;
        esac ;;
      minicluster/hub:dev | reg:1/*) echo '[{"Size": 7, "RepoDigests": ["reg:1/minicluster/hub@sha256:ab"],
          "Config": {"Labels": {"org.opencontainers.image.revision": "r1"}}}]' ;;
      *) echo "Error: No such image: $3" >&2; exit 1 ;;
    esac ;;
  "run --rm") shift 6; exec python3 "$@" ;;
  "push "*) [ -z "$PUSH_SAYS" ] || { echo "$PUSH_SAYS" >&2; exit 1; } ;;
esac
"""


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """images/build as a module."""
    loader = importlib.machinery.SourceFileLoader("images_build", str(IMAGES / "build"))
    spec = importlib.util.spec_from_loader("images_build", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Kept(io.BytesIO):
    """A stream whose content remains available after closing."""

    def close(self) -> None:
        self.seek(0)


def context(build: ModuleType, image: str, *words: str) -> dict[str, tarfile.TarInfo]:
    """Return the members of a build context."""
    stream = Kept()
    build.send_context(stream, image, build.parse(list(words)))
    with tarfile.open(fileobj=stream) as members:
        return {member.name: member for member in members}


def test_the_context_has_what_the_dockerfile_copies_and_nothing_of_the_machine(build: ModuleType) -> None:
    members = context(build, "hub")
    assert {"pyproject.toml", "constraints.txt", "images/base.sh", "notebooks/quickstart.ipynb"} <= set(
        members
    )
    assert not [name for name in members if name.startswith((".git", ".venv", "tests", "data"))]
    assert not [name for name in members if "__pycache__" in name]
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    assert members["images/base.sh"].mode == 0o755


def test_wheels_and_certificates_travel_with_the_build(build: ModuleType, tmp_path: Path) -> None:
    for name in ("torch-9-cp311.whl", "tornado-9.whl", "notes.txt", "my.pem"):
        (tmp_path / name).write_text(name)
    options = ("--wheels", str(tmp_path), "--pip-cert", str(tmp_path / "my.pem"))
    sent = {name for name in context(build, "notebook", *options) if name.startswith("wheels/")}
    assert sent == {"wheels/torch-9-cp311.whl", "wheels/tornado-9.whl", "wheels/ca.crt"}
    assert "wheels/torch-9-cp311.whl" not in context(build, "hub", *options)


def test_only_what_was_asked_for_becomes_an_argument(build: ModuleType) -> None:
    assert set(build.arguments("hub", build.parse([]))) <= {"VERSION", "REVISION"}
    asked = build.parse(
        ["--base", "b", "--index-url", "https://x/", "--torch", "torch==1", "--notebook", "n"]
    )
    arguments = build.arguments("notebook", asked)
    assert (arguments["BASE_IMAGE"], arguments["PIP_INDEX_URL"], arguments["TORCH_SPEC"]) == (
        "b",
        "https://x/",
        "torch==1",
    )
    assert "NOTEBOOK_IMAGE" not in arguments
    assert build.arguments("hub", asked)["NOTEBOOK_IMAGE"] == "n"


def test_a_base_is_named_by_its_digest_where_it_has_one(build: ModuleType, monkeypatch, tmp_path) -> None:
    docker(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    named = [build.pinned(build.parse(["--base", base])) for base in ("base:1", "own:1", "other:1@sha256:ef")]
    assert named == ["base:1@sha256:cd", "own:1", "other:1@sha256:ef"]


@pytest.mark.parametrize("image", ["hub", "notebook"])
def test_nothing_of_the_build_stays_in_an_image(image: str) -> None:
    text = (IMAGES / image / "Dockerfile").read_text()
    first, *middle, last = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    for stage in (first, last):
        assert not BUILD_ONLY & set(re.findall(r"^ARG (\w+)", stage, flags=re.MULTILINE))
    assert any("ARG PIP_CERT" in stage for stage in middle)
    assert "HEALTHCHECK" not in text


@pytest.mark.parametrize("image", ["hub", "notebook"])
def test_a_dockerfile_asks_for_extras_that_there_are(image: str, tmp_path: Path) -> None:
    dockerfile = (IMAGES / image / "Dockerfile").read_text()
    found = re.search(r"requirements\.py /build ([a-z -]+?)(?: --without|\n| >)", dockerfile)
    assert found
    result = subprocess.run(
        [sys.executable, IMAGES / "requirements.py", IMAGES.parent, *found.group(1).split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pydantic" in result.stdout


def test_an_unknown_extra_is_named() -> None:
    result = subprocess.run(
        [sys.executable, IMAGES / "requirements.py", IMAGES.parent, "hubb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode
    assert "no extra hubb" in result.stderr


def docker(folder: Path) -> None:
    """Write a fake `docker` that does nothing into a folder."""
    program = folder / "docker"
    program.write_text(FAKE_DOCKER)
    program.chmod(0o755)


def publish(folder: Path, *words: str, push_says: str = "") -> subprocess.CompletedProcess[str]:
    """Run images/publish with a fake `docker` that does nothing."""
    docker(folder)
    return subprocess.run(
        [sys.executable, IMAGES / "publish", *words, "--built", "--record", folder / "published.json"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PUSH_SAYS": push_says},
        capture_output=True,
        text=True,
        check=False,
    )


def test_publishing_records_the_digest_beside_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "published.json").write_text('{"notebook": {"image": "kept"}}')
    result = publish(tmp_path, "hub", "--registry", "reg:1", "--seen-as", "seen:2")
    assert result.stdout == "hub seen:2/minicluster/hub@sha256:ab\n", result.stderr
    record = json.loads((tmp_path / "published.json").read_text())
    assert record["notebook"] == {"image": "kept"}
    version = tomllib.loads((IMAGES.parent / "pyproject.toml").read_text())["project"]["version"]
    assert {key: record["hub"][key] for key in ("tag", "size_bytes", "revision")} == {
        "tag": version,
        "size_bytes": 7,
        "revision": "r1",
    }


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("no basic auth credentials", "docker login reg:1"),
        ("dial tcp: connect: connection refused", "nothing answers at reg:1"),
        ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/reg:1/ca.crt"),
    ],
)
def test_a_push_that_fails_says_what_to_do(tmp_path: Path, said: str, remedy: str) -> None:
    result = publish(tmp_path, "hub", "--registry", "reg:1", push_says=said)
    assert result.returncode
    assert said in result.stderr
    assert remedy in result.stderr
    assert not (tmp_path / "published.json").exists()


def test_an_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = publish(tmp_path, "my/other:1", "--registry", "reg:1")
    assert "no image my/other:1" in result.stderr


def test_publishing_lists_what_is_in_an_image(tmp_path: Path) -> None:
    result = publish(tmp_path, "hub", "--registry", "reg:1")
    assert result.returncode == 0, result.stderr
    listed = json.loads((tmp_path / "published-hub.cdx.json").read_text())
    assert listed["metadata"]["component"]["version"] == "sha256:1d"
    assert len({one["purl"] for one in listed["components"]}) == len(listed["components"]) > 0


@pytest.mark.full("only it installs the standard's own checks")
def test_the_list_is_what_the_standard_wants(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx", reason="its package comes with ./test full")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    publish(tmp_path, "hub", "--registry", "reg:1")
    listed = (tmp_path / "published-hub.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(listed) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(listed.replace("purl", "pearl")) is not None


# Images with another framework.


@pytest.mark.parametrize("image", ["notebook-jax", "notebook-tensorflow"])
def test_one_with_a_framework_is_built_on_the_notebook_image(
    build: ModuleType, image: str, monkeypatch, tmp_path: Path
) -> None:
    docker(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SystemExit, match=f"which is not there: images/build notebook {image}"):
        build.arguments(image, build.parse([]))
    asked = build.parse(
        ["--prefix", "base", "--tag", "1", "--framework", "jax[cuda12]", "--index-url", "https://x/"]
    )
    monkeypatch.setattr(build, "digests", lambda *_: [])
    assert build.arguments(image, asked) == {
        "NOTEBOOK_IMAGE": "basenotebook:1",
        "FRAMEWORK": image.removeprefix("notebook-"),
        "FRAMEWORK_SPEC": "jax[cuda12]",
        "PIP_INDEX_URL": "https://x/",
    }


def test_the_framework_s_dockerfile_asks_for_extras_that_there_are(build: ModuleType) -> None:
    extras = tomllib.loads((IMAGES.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(build.FRAMEWORKS.values()) <= extras.keys()
    last = (IMAGES / "framework" / "Dockerfile").read_text().split("\nFROM ")[-1]
    assert not BUILD_ONLY & set(re.findall(r"^ARG (\w+)", last, flags=re.MULTILINE))
    assert "images/framework/packages.sh" in context(build, "notebook-jax")


def test_users_see_whose_image_it_is(tmp_path: Path) -> None:
    docker(tmp_path)
    program = tmp_path / "docker"
    told = FAKE_DOCKER.replace("minicluster/hub:dev | reg", "minicluster/notebook-jax:dev | reg")
    program.write_text(told.replace("reg:1/minicluster/hub@", "reg:1/minicluster/minicluster-notebook-jax@"))
    words = ["notebook-jax", "--registry", "reg:1", "--built", "--record", tmp_path / "published.json"]
    result = subprocess.run(
        [sys.executable, IMAGES / "publish", *words],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PUSH_SAYS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    name = "minicluster-notebook-jax"
    assert result.stdout == f"{name} reg:1/minicluster/{name}@sha256:ab\n", result.stderr
    assert [*json.loads((tmp_path / "published.json").read_text())] == [name]
