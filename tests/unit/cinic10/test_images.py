"""The loader for CINIC-10's layout, on real PNG files."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from minicluster.train.loaders import SharedLoader, share

from .pictures import CLASSES, EACH, cinic10_data, picture, planes
from .pictures import root as root

Tree = Callable[..., Path]


@pytest.fixture(params=[True, False], ids=["decoded once", "decoded anew"])
def open_images(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., cinic10_data.Images]:
    cache = tmp_path / "cache" if request.param else False
    return lambda root, split="train": cinic10_data.Images(root, split, cache=cache)


def test_each_image_comes_with_its_class(root: Path, open_images: Callable[..., cinic10_data.Images]) -> None:
    images = open_images(root)
    assert images.classes == CLASSES
    assert len(images) == len(CLASSES) * EACH
    for index in range(len(images)):
        pixels, label = images[index]
        seed = 100 * (index // EACH)
        # In the order of the names: cifar10-train-1, cifar10-train-3 (grey), n..._0, n..._2.
        number = (1, 3, 0, 2)[index % EACH]
        assert label == index // EACH
        assert torch.equal(pixels, planes(picture(seed + number, "L" if number == 3 else "RGB")))


@pytest.mark.parametrize("processes", [0, 2])
def test_a_plain_loader_makes_batches(
    root: Path, open_images: Callable[..., cinic10_data.Images], processes: int
) -> None:
    images = open_images(root)
    loader = DataLoader(images, batch_size=5, num_workers=processes)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [5, 5, 2]
    assert all(pixels.dtype == torch.uint8 and pixels.shape[1:] == (3, 32, 32) for pixels, _ in batches)
    assert torch.cat([labels for _, labels in batches]).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(torch.cat([pixels for pixels, _ in batches])[6], images[6][0])


def test_ranks_divide_the_images_and_go_on_where_they_were(
    root: Path, open_images: Callable[..., cinic10_data.Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = open_images(root)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def taken(rank: int, steps: int, state: dict | None = None) -> tuple[list[int], dict]:
        monkeypatch.setenv("RANK", str(rank))
        loader = share(DataLoader(images, batch_size=2, shuffle=True))
        assert isinstance(loader, SharedLoader)
        if state:
            loader.load_state_dict(state)
        seen, batches = [], iter(loader)
        for _ in range(steps):
            seen += [number_of(pixels, images) for pixels in next(batches)[0]]
        return seen, loader.state_dict()

    first = [taken(rank, 1) for rank in (0, 1)]
    rest = [taken(rank, 2, first[rank][1])[0] for rank in (0, 1)]
    seen = [number for part in (first[0][0], first[1][0], *rest) for number in part]
    assert sorted(seen) == list(range(len(images)))


def number_of(pixels: torch.Tensor, images: cinic10_data.Images) -> int:
    return next(number for number in range(len(images)) if torch.equal(images[number][0], pixels))


def test_what_macos_and_others_leave_is_passed_over(
    root: Path, open_images: Callable[..., cinic10_data.Images]
) -> None:
    plain = open_images(root)
    for split in ("train", "valid", "test"):
        (root / split / "__MACOSX" / "cat").mkdir(parents=True)
        (root / split / ".ipynb_checkpoints").mkdir()
        (root / split / "cat" / "._cifar10-train-1.png").write_bytes(b"\0\5\x16\7")
        (root / split / "cat" / ".DS_Store").write_bytes(b"\0")
        (root / split / "cat" / "list.txt").write_text("no picture")
    (root / "train" / "._cat").write_bytes(b"\0")
    images = open_images(root)
    assert images.classes == plain.classes
    assert len(images) == len(plain)
    assert all(torch.equal(images[number][0], plain[number][0]) for number in range(len(plain)))


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-900])
    return "truncated"


def overwrite(path: Path) -> str:
    path.write_bytes(b"\0" * 500)
    return "not a PNG file"


def empty(path: Path) -> str:
    path.write_bytes(b"")
    return ""


def enlarge(path: Path) -> str:
    picture(1, side=64).save(path)
    return "64 x 64 pixels, not 32 x 32"


def unlink_target(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "directory"


@pytest.mark.parametrize("damage", [cut, overwrite, empty, enlarge, unlink_target])
def test_a_damaged_file_is_named(
    root: Path, open_images: Callable[..., cinic10_data.Images], damage: Callable[[Path], str]
) -> None:
    path = root / "train" / "cat" / "cifar10-train-3.png"
    message = damage(path)
    with pytest.raises(cinic10_data.DamagedImage) as caught:
        list(DataLoader(open_images(root), batch_size=4))
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert caught.value.__cause__ is None or message in str(caught.value.__cause__)
    assert not list(root.parent.glob("cache/*")), "half a cache was left"
    picture(103, "L").save(root / "again.png")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / "again.png").rename(path)
    assert len(list(DataLoader(open_images(root), batch_size=4))) == 3


@pytest.mark.parametrize("damage", ["cut", "wrong byte"])
def test_no_damage_gives_other_pixels(root: Path, damage: str) -> None:
    path = root / "train" / "airplane" / "cifar10-train-1.png"
    whole = path.read_bytes()
    images = cinic10_data.Images(root, "train", cache=False)
    refused = 0
    for at in range(0, len(whole), 3):
        after = b"" if damage == "cut" else bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        path.write_bytes(whole[:at] + after)
        try:
            assert torch.equal(images[0][0], planes(picture(1)))
        except cinic10_data.DamagedImage:
            refused += 1
    assert refused > len(whole) // 3 - 20


def test_a_wrong_layout_is_told_with_what_is_there(root: Path, tmp_path: Path) -> None:
    def problem(root: Path, split: str = "train") -> str:
        with pytest.raises(cinic10_data.WrongLayout) as caught:
            cinic10_data.Images(root, split, cache=tmp_path / "cache")
        assert caught.value.hint == (
            f"Expected: {root}/{{train,valid,test}}/CLASS/*.png, the same classes in each."
        )
        return caught.value.message

    assert problem(tmp_path / "absent").endswith("/absent has no folder train: there is no such folder.")
    assert problem(root.parent).endswith(" has no folder train: it holds cinic10.")
    assert problem(root, "validation").endswith(" has no folder validation: it holds test, train, valid.")
    assert problem(root / "train" / "cat").endswith("/cat has no folder train: it holds no folder.")
    shutil.rmtree(root / "test" / "frog")
    assert problem(root).endswith(f"The classes of train and test in {root} differ: frog.")
    shutil.rmtree(root / "test")
    for path in (root / "train" / "cat").iterdir():
        path.unlink()
    assert problem(root).endswith("/train/cat holds no PNG file.")
    shutil.rmtree(root / "train")
    (root / "train").mkdir()
    assert problem(root).endswith("/train has no folder for any class.")


def test_a_dataset_travels_as_its_arguments(root: Path, tmp_path: Path) -> None:
    images = cinic10_data.Images(root, "train", cache=tmp_path / "cache")
    packed = pickle.dumps(images)
    assert len(packed) < 500
    assert torch.equal(pickle.loads(packed)[7][0], images[7][0])


def test_the_package_alone_imports_neither_torch_nor_pillow() -> None:
    code = "import minicluster, sys; print(sorted({'torch', 'PIL', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_is_said_where_all_goes_well(root: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(
            DataLoader(
                cinic10_data.Images(root, "train", cache=tmp_path / "cache"), batch_size=4, shuffle=True
            )
        )
