"""What a publishing job makes: the same layer each time, of files that others may have."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from minicluster.publishing.layer import cell_source
from minicluster.wire import LAYER_FILE, LAYER_ROOT, RECIPE_FILE, Pin, Recipe
from minicluster_hub.catalogue.layer import LayerRefused, check_layer

from .conftest import Environment

PINS = (Pin(name="tinycolours", version="1.0"), Pin(name="tinyshape", version="2.0"))


def made(environment: Environment, output: Path, pins: tuple[Pin, ...] = PINS) -> Recipe:
    """Run the job's cell as a rank does."""
    output.mkdir()
    done = environment.run(cell_source(pins), more={"MINICLUSTER_OUTPUT": str(output)})
    assert done.returncode == 0, done.stdout + done.stderr
    return Recipe.model_validate_json((output / RECIPE_FILE).read_bytes())


def test_made_twice_it_is_the_same_to_the_last_bit(environment: Environment, tmp_path: Path) -> None:
    recipes = [made(environment, tmp_path / name) for name in ("one", "two")]
    assert recipes[0] == recipes[1]
    assert (tmp_path / "one" / LAYER_FILE).read_bytes() == (tmp_path / "two" / LAYER_FILE).read_bytes()
    assert [pin.sha256 == "" for pin in recipes[0].packages] == [False, False]
    check_layer(tmp_path / "one" / LAYER_FILE, recipes[0], 1 << 20)


def test_it_holds_modules_and_commands_of_root_without_times(
    environment: Environment, tmp_path: Path
) -> None:
    recipe = made(environment, tmp_path / "out")
    with tarfile.open(tmp_path / "out" / LAYER_FILE) as archive:
        members = {member.name: member for member in archive}
    site = f"{LAYER_ROOT}/lib/python{recipe.python}/site-packages"
    assert {f"{site}/tinyshape.py", f"{site}/tinycolours/__init__.py"} <= set(members)
    assert members[f"{LAYER_ROOT}/bin/tinycolours"].mode == 0o755
    assert {(one.uid, one.gid, one.mtime) for one in members.values()} == {(0, 0, 0)}
    assert not [name for name in members if name.endswith(".pyc") or "__pycache__" in name]
    assert list(members) == sorted(members)


def test_what_pip_says_is_the_jobs_error(environment: Environment, tmp_path: Path) -> None:
    pins = (Pin(name="tinycolours", version="9.9"),)
    done = environment.run(cell_source(pins), more={"MINICLUSTER_OUTPUT": str(tmp_path)})
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()
    assert any(
        "ERROR: Could not find a version that satisfies the requirement tinycolours==9.9" in line
        for line in last
    ), done.stderr
    assert not list(tmp_path.iterdir())


def entry(name: str, **more: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def layer_of(path: Path, *entries: tarfile.TarInfo) -> Recipe:
    import hashlib

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for one in entries:
            archive.addfile(one, io.BytesIO(bytes(one.size)) if one.isreg() else None)
    path.write_bytes(gzip.compress(plain.getvalue()))
    return Recipe(
        packages=PINS,
        python="3.12",
        machine="x86_64",
        layer_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        layer_bytes=path.stat().st_size,
        diff_sha256=hashlib.sha256(plain.getvalue()).hexdigest(),
    )


GOOD = entry(f"{LAYER_ROOT}/lib/a.py", size=10)


@pytest.mark.parametrize(
    "bad",
    [
        entry("etc/passwd", size=1),
        entry(f"{LAYER_ROOT}/../../etc/passwd", size=1),
        entry(f"/{LAYER_ROOT}/lib/b.py", size=1),
        entry(f"{LAYER_ROOT}/lib/.wh.a.py"),
        entry(f"{LAYER_ROOT}/lib/.wh..wh..opq"),
        entry(f"{LAYER_ROOT}/bin/su", mode=0o4755),
        entry(f"{LAYER_ROOT}/lib/b.py", uid=1000),
        entry(f"{LAYER_ROOT}/lib/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry(f"{LAYER_ROOT}/lib/pipe", type=tarfile.FIFOTYPE),
        entry(f"{LAYER_ROOT}/lib/hard", type=tarfile.LNKTYPE, linkname="etc/shadow"),
        entry(f"{LAYER_ROOT}/lib/out", type=tarfile.SYMTYPE, linkname="../../../etc/shadow"),
        entry(f"{LAYER_ROOT}/lib/abs", type=tarfile.SYMTYPE, linkname="/etc/shadow"),
    ],
    ids=lambda one: f"{one.name}-{one.mode:o}-{one.type!r}",
)
def test_a_layer_that_does_more_than_add_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    path = tmp_path / LAYER_FILE
    check_layer(path, layer_of(path, GOOD), 1 << 20)
    with pytest.raises(LayerRefused):
        check_layer(path, layer_of(path, GOOD, bad), 1 << 20)


def test_a_link_inside_is_taken(tmp_path: Path) -> None:
    path = tmp_path / LAYER_FILE
    link = entry(f"{LAYER_ROOT}/bin/b", type=tarfile.SYMTYPE, linkname="../lib/a.py")
    check_layer(path, layer_of(path, GOOD, link), 1 << 20)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / LAYER_FILE
    recipe = layer_of(path, entry(f"{LAYER_ROOT}/lib/big", size=5 << 20))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(LayerRefused, match="larger than this cluster takes"):
        check_layer(path, recipe, 1 << 20)


def test_a_layer_that_is_not_its_recipes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / LAYER_FILE
    recipe = layer_of(path, GOOD)
    with pytest.raises(LayerRefused, match="unpacked"):
        check_layer(path, recipe.model_copy(update={"diff_sha256": "0" * 64}), 1 << 20)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(LayerRefused, match="not the one"):
        check_layer(path, recipe, 1 << 20)
