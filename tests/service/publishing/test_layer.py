"""The layer of a publishing job: the same bytes each time, with only public files."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from minicluster.publishing.layer import cell_source, write_layer
from minicluster.wire import LAYER_FILE, LAYER_ROOT, RECIPE_FILE, Pin, Recipe
from minicluster_hub.images.layer import LayerRefused, check_layer

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
    assert any("ERROR: " in line and "tinycolours==9.9" in line for line in last), done.stderr
    assert not list(tmp_path.iterdir())


def entry(name: str, **more: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def recipe_of(path: Path, plain: bytes) -> Recipe:
    """Compress an archive as a layer; return its recipe."""
    path.write_bytes(gzip.compress(plain))
    return Recipe(
        packages=PINS,
        python="3.12",
        machine="x86_64",
        layer_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        layer_bytes=path.stat().st_size,
        diff_sha256=hashlib.sha256(plain).hexdigest(),
    )


def archive_of(*entries: tarfile.TarInfo) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for one in entries:
            archive.addfile(one, io.BytesIO(bytes(one.size)) if one.isreg() else None)
    return plain.getvalue()


def layer_of(path: Path, *entries: tarfile.TarInfo) -> Recipe:
    return recipe_of(path, archive_of(*entries))


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
        entry("opt", type=tarfile.SYMTYPE, linkname="home"),
        entry(LAYER_ROOT, type=tarfile.SYMTYPE, linkname="lib"),
        entry(LAYER_ROOT, size=1),
        entry("opt", type=tarfile.DIRTYPE, mode=0o777),
        entry(f"{LAYER_ROOT}/x/x/y", type=tarfile.SYMTYPE, linkname="x/x/x/../../../.."),
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


def link(name: str, target: str) -> tarfile.TarInfo:
    return entry(f"{LAYER_ROOT}/{name}", type=tarfile.SYMTYPE, linkname=target)


def test_what_publishing_writes_is_taken(tmp_path: Path) -> None:
    long = "/".join(["lib", *(f"{'folder' * 8}{depth}" for depth in range(8))])
    for name in ("lib/a.py", "lib/näme.py", f"{long}/b.py"):
        (tmp_path / "base" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "base" / name).write_bytes(b"x" * 1000)
    (tmp_path / "base/lib64").symlink_to("lib")
    (tmp_path / "base/lib/libx.so").symlink_to("libx.so.1")
    (tmp_path / "base/lib/far").symlink_to(long.removeprefix("lib/"))
    write_layer(tmp_path / "base", tmp_path / LAYER_FILE)
    plain = gzip.decompress((tmp_path / LAYER_FILE).read_bytes())
    check_layer(tmp_path / LAYER_FILE, recipe_of(tmp_path / LAYER_FILE, plain), 1 << 20)


def test_nothing_comes_through_a_link_of_the_layer(tmp_path: Path) -> None:
    path = tmp_path / LAYER_FILE
    for name in ("lib64/a.py", "lib64"):
        bad = entry(f"{LAYER_ROOT}/{name}", size=1)
        with pytest.raises(LayerRefused, match="lies below a link"):
            check_layer(path, layer_of(path, GOOD, link("lib64", "lib"), bad), 1 << 20)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.XHDTYPE, "extended header of"),
        (tarfile.XGLTYPE, "neither a file nor a folder nor a link"),
        (tarfile.SOLARIS_XHDTYPE, "neither a file nor a folder nor a link"),
        (tarfile.GNUTYPE_LONGNAME, "neither a file nor a folder nor a link"),
        (tarfile.GNUTYPE_LONGLINK, "neither a file nor a folder nor a link"),
        (tarfile.GNUTYPE_SPARSE, "neither a file nor a folder nor a link"),
    ],
)
def test_a_header_that_takes_memory_is_not_read(tmp_path: Path, kind: bytes, words: str) -> None:
    path = tmp_path / LAYER_FILE
    header = entry("x", type=kind, size=4 << 30).tobuf(tarfile.USTAR_FORMAT)
    recipe = recipe_of(path, header + bytes(4 << 20))
    with pytest.raises(LayerRefused, match=words):
        check_layer(path, recipe, 1 << 30)


def sealed(header: bytearray) -> bytes:
    """Return a header with the right checksum."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def changed(place: int, data: bytes) -> bytes:
    """Return an archive of one file with a changed header."""
    plain = bytearray(archive_of(GOOD))
    plain[place : place + len(data)] = data
    plain[:512] = sealed(plain[:512])
    return bytes(plain)


def with_records(records: bytes) -> bytes:
    header = entry("x", type=tarfile.XHDTYPE, size=len(records)).tobuf(tarfile.USTAR_FORMAT)
    return header + records.ljust(512, b"\0") + archive_of(GOOD)


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(changed(257, b"\0" * 8), id="no POSIX header"),
        pytest.param(changed(257, b"ustar  \0"), id="GNU's header"),
        pytest.param(changed(345, b"a"), id="a prefix"),
        pytest.param(changed(100, b"\0" + b"004755\0"), id="a mode behind a zero"),
        pytest.param(changed(124, b"\0" + b"0000001000\0"), id="a size behind a zero"),
        pytest.param(changed(124, b"\x80" + bytes(9) + b"\2\0"), id="a binary size"),
        pytest.param(with_records(b"42 SCHILY.xattr.security.capability=12345\n"), id="rights"),
        pytest.param(with_records(b"25 GNU.sparse.realsize=1\n"), id="a sparse file"),
        pytest.param(with_records(b"12 path=a/b\n" * 2), id="two names"),
        pytest.param(with_records(b"99 path=a/b\n"), id="a record that is too short"),
        pytest.param(with_records(b"14 path=/etc/x\n"), id="a record that is too long"),
        pytest.param(archive_of(GOOD)[:1024], id="no end"),
        pytest.param(archive_of(GOOD) + archive_of(GOOD), id="two archives"),
    ],
)
def test_what_two_readers_may_understand_in_two_ways_is_refused(tmp_path: Path, plain: bytes) -> None:
    path = tmp_path / LAYER_FILE
    recipe = recipe_of(path, plain)
    with pytest.raises(LayerRefused, match="the layer's archive"):
        check_layer(path, recipe, 1 << 20)


@pytest.mark.full("it is about memory")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    path = tmp_path / LAYER_FILE
    recipe = layer_of(path, *(entry(f"{LAYER_ROOT}/lib/{number}") for number in range(20_000)))
    tracemalloc.start()
    check_layer(path, recipe, 1 << 30)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 << 20


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
