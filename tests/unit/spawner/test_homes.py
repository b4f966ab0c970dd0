"""Users' home folders: one per name, for any name; examples are copied once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.engines.local.homes import folder_name
from minicluster_spawner.homes import examples_dir, make_home, make_user_site

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=300)


@given(NAMES)
def test_any_name_makes_one_folder_below_the_homes(name: str) -> None:
    folder = folder_name(name)
    assert folder not in {"", ".", ".."}
    assert "/" not in folder
    assert "\x00" not in folder
    assert not folder.startswith(".")
    assert len(folder.encode()) <= 255


@given(NAMES, NAMES)
def test_different_names_have_different_folders(first: str, second: str) -> None:
    assert (folder_name(first) == folder_name(second)) == (first == second)


@pytest.mark.parametrize("name", ["ada", "ada-l", "ada.l@lab.org", "a_b+c"])
def test_usual_names_are_kept_as_they_are(name: str) -> None:
    assert folder_name(name) == name


def test_a_home_is_private_and_gets_the_examples(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "ada"
    make_home(home, examples_dir())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / "quickstart.ipynb").read_bytes() == (examples_dir() / "quickstart.ipynb").read_bytes()


def test_examples_are_given_once(tmp_path: Path) -> None:
    examples, home = tmp_path / "examples", tmp_path / "home"
    examples.mkdir()
    for name in ("changed.ipynb", "deleted.ipynb"):
        (examples / name).write_text("given")
    make_home(home, examples)
    (home / "changed.ipynb").write_text("the user's")
    (home / "deleted.ipynb").unlink()
    (examples / "new.ipynb").write_text("given")
    make_home(home, examples)
    assert (home / "changed.ipynb").read_text() == "the user's"
    assert not (home / "deleted.ipynb").exists()
    assert (home / "new.ipynb").read_text() == "given"


def test_a_users_own_file_of_an_examples_name_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "quickstart.ipynb").write_text("the user's")
    make_home(home, examples_dir())
    assert (home / "quickstart.ipynb").read_text() == "the user's"


def test_without_examples_a_home_is_empty(tmp_path: Path) -> None:
    make_home(tmp_path / "home", None)
    assert not list((tmp_path / "home").iterdir())


def test_what_pip_installs_is_found_without_a_restart(tmp_path: Path) -> None:
    make_user_site(tmp_path)
    environment = {**os.environ, "PYTHONUSERBASE": str(tmp_path / ".local")}
    asked = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    result = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert Path(result.stdout.strip()).is_dir()
