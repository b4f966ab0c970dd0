"""For cinic10.ipynb, and what is laid out like CINIC-10: its images, a batch made ready, and networks.

    ROOT/{train,valid,test}/CLASS/*.png, 32 x 32 pixels each

A module beside a notebook travels with each cell that uses it. It needs torch, Pillow and, to keep decoded
images, Linux.
"""

from __future__ import annotations

import gc
import hashlib
import io
import os
import struct
import sys
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL.PngImagePlugin import PngImageFile
from torch import nn
from torch.utils.data import Dataset

from minicluster.errors import MiniclusterError
from minicluster.train.snapshots.session import finish_writing

SPLITS = ("train", "valid", "test")


class WrongLayout(MiniclusterError):
    """A folder that does not hold images as it should."""


@dataclass(frozen=True)
class Listing:
    """The files of a split in one order everywhere."""

    folder: Path
    classes: tuple[str, ...]
    names: list[str]
    labels: list[int]

    def digest(self) -> str:
        """Return another one where a file has another name, size or time of its last change.

        To ask each file takes ten times as long as to list them. Raises OSError.
        """
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            facts = [os.stat(name, dir_fd=folder) for name in self.names]
        finally:
            os.close(folder)
        files = [(fact.st_size, fact.st_ctime_ns) for fact in facts]
        found = hashlib.sha256(repr((self.folder.resolve(), self.names, files)).encode())
        return found.hexdigest()


class Images(Dataset[tuple[torch.Tensor, int]]):
    """The images of one split: `loader = DataLoader(Images("/data/cinic10", "train"), 100, shuffle=True)`.

    Each is a (3, 32, 32) tensor of bytes with the number of its class in `classes`; what a batch needs
    besides (augmented, normalized) is done on the device, for all of it at once. All files are decoded
    once, by the first rank of a node that asks, into a file that the node's ranks share, of 3 kB for
    each image. cache: the folder of that file, False for none: then files are decoded when they are
    asked for, and num_workers of the loader says by how many processes. It travels as its arguments: a
    rank looks into its own node's folder. Not on Linux there is none. Raises WrongLayout, DamagedImage.
    """

    def __init__(self, root: str | Path, split: str, cache: str | Path | bool = True) -> None:
        self._arguments = root, split, cache
        self._listing = listed(Path(root), split)
        self._pixels: torch.Tensor | None = None
        if cache is not False and sys.platform == "linux":
            self._keep(None if cache is True else Path(cache))

    @property
    def classes(self) -> tuple[str, ...]:
        return self._listing.classes

    def __len__(self) -> int:
        return len(self._listing.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indexes: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return a whole batch: DataLoader asks for it in one call."""
        labels = [self._listing.labels[index] for index in indexes]
        return list(zip(self._images(indexes).unbind(), labels, strict=True))

    def __reduce__(self) -> tuple[type[Images], tuple[str | Path, str, str | Path | bool]]:
        return Images, self._arguments

    def _images(self, indexes: list[int]) -> torch.Tensor:
        if self._pixels is not None:
            return self._pixels.index_select(0, torch.tensor(indexes))  # Four times as fast as [indexes].
        names = [self._listing.names[index] for index in indexes]
        return torch.from_numpy(decode(self._listing.folder, names))

    def _keep(self, asked: Path | None) -> None:
        listing, cache = self._listing, asked or default_folder()
        try:
            self._pixels = decoded_once(cache, listing.digest, listing.folder, listing.names)
        except OSError as error:
            warnings.warn(
                f"The images are decoded anew in each epoch, since {cache} cannot hold them "
                f"({error.strerror}). Images(..., cache=FOLDER) takes another folder.",
                stacklevel=3,
            )


def listed(root: Path, split: str) -> Listing:
    """Find the files of a split. Raises WrongLayout."""
    folder = root / split
    classes = _classes(root, split)
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = sorted(_files(folder / name))
        if not files:
            raise _wrong(root, f"{folder / name} holds no PNG file.")
        names += [f"{name}/{file}" for file in files]
        labels += [label] * len(files)
    return Listing(folder, classes, names, labels)


def _classes(root: Path, split: str) -> tuple[str, ...]:
    """Return the names of the classes; a class that one split lacks would shift the numbers."""
    splits = _folders(root)
    if split not in splits:
        there = f"it holds {_some(splits)}" if root.is_dir() else "there is no such folder"
        raise _wrong(root, f"{root} has no folder {split}: {there}.")
    classes = _folders(root / split)
    if not classes:
        raise _wrong(root, f"{root / split} has no folder for any class.")
    for other in sorted({*SPLITS} & {*splits}):
        if differing := sorted({*classes} ^ {*_folders(root / other)}):
            raise _wrong(root, f"The classes of {split} and {other} in {root} differ: {_some(differing)}.")
    return tuple(classes)


def _folders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and _is_ours(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(path: Path) -> list[str]:
    """Return the names of the PNG files in a folder."""
    names = (entry.name for entry in os.scandir(path))
    return [name for name in names if name.lower().endswith(".png") and _is_ours(name)]


def _is_ours(name: str) -> bool:
    """Tell files of the data set from what macOS puts beside them (._name, .DS_Store, __MACOSX)."""
    return not name.startswith((".", "__MACOSX"))


def _wrong(root: Path, found: str) -> WrongLayout:
    expected = f"Expected: {root}/{{{','.join(SPLITS)}}}/CLASS/*.png, the same classes in each."
    return WrongLayout(found, expected)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") if names else "no folder"


# From PNG files to bytes: the one part of a loader that costs time.

SIDE = 32
SHAPE = (3, SIDE, SIDE)
"""Of an image: red, green and blue planes."""
IMAGE_BYTES = 3 * SIDE * SIDE
_LARGEST_FILE_BYTES = 1 << 20


class DamagedImage(MiniclusterError):
    """A file of a data set that is not the picture that it should be."""


def decode(folder: Path, names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return the images of some files as (N, 3, 32, 32); grey ones have three equal planes.

    Raises DamagedImage.
    """
    pixels = np.frombuffer(b"".join([_rows(f"{folder}/{name}") for name in names]), np.uint8)
    images = np.empty((len(names), *SHAPE), np.uint8)
    for plane in range(3):
        images[:, plane] = pixels[plane::3].reshape(-1, SIDE, SIDE)
    return images


def _rows(path: str) -> bytes:
    """Return an image row by row, three bytes for each pixel."""
    try:
        # Not Image.open(), which looks for the format first: with _content() a sixth of the time.
        image = PngImageFile(io.BytesIO(_content(path)))
        if image.size == (SIDE, SIDE):
            return image.tobytes() if image.mode == "RGB" else image.convert("RGB").tobytes()
        trouble = f"it has {image.width} x {image.height} pixels, not {SIDE} x {SIDE}"
    except (OSError, SyntaxError, ValueError, struct.error, zlib.error) as error:
        trouble = getattr(error, "strerror", None) or str(error)
    raise DamagedImage(
        f"The image {path} cannot be used: {trouble}.", "Copy or unpack it once more, or remove it."
    )


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _LARGEST_FILE_BYTES)
    finally:
        os.close(file)


# A split's images, decoded once for all ranks of a node: one file that is there whole, or not there.

_AT_ONCE = 128
"""How many images a process decodes before it writes them."""


def default_folder() -> Path:
    """Return where decoded images are kept: in a job, with the task's own files, which end with it."""
    scratch = os.environ.get("MINICLUSTER_SCRATCH")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(scratch or Path(cache) / "minicluster") / "images"


def decoded_once(cache: Path, digest: Callable[[], str], folder: Path, names: Sequence[str]) -> torch.Tensor:
    """Return the images of a folder's files as (N, 3, 32, 32), mapped from the cache's file.

    Who comes first makes the file, with all cores that it has; the others wait. digest: tells whether
    the cache has these very files. Where it has none at all, they are decoded while that is found out.
    Raises OSError where there is no room, DamagedImage.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(cache):
        making = _Making(cache / "unfinished", folder, names)
        try:
            if not any(cache.iterdir()):
                making.begin()
            path = cache / digest()
            if not path.exists():
                making.begin()
                making.finish(path)
        finally:
            making.end()
    return torch.from_file(str(path), size=len(names) * IMAGE_BYTES, dtype=torch.uint8).view(-1, *SHAPE)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder, however its holder ends; who was forked meanwhile and still writes holds it, too."""
    import fcntl  # Not on Windows, where a laptop's notebook still decodes files one by one.

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class _Making:
    """Processes that decode the files into one file, which nobody uses before it is whole.

    Each takes the next images that nobody has taken yet: they end together, whatever else the cores do.
    """

    _WORD_BYTES = 8

    def __init__(self, path: Path, folder: Path, names: Sequence[str]) -> None:
        self._path, self._folder, self._names = path, folder, names
        self._processes: list[ForkProcess] = []
        # A file whose place all share: whoever reads takes the next, and can die without holding up others.
        self._todo = os.memfd_create("todo")
        os.pwrite(self._todo, array("q", range(0, len(names), _AT_ONCE)).tobytes(), 0)

    def begin(self) -> None:
        """Start the processes, unless they are. Raises OSError where there is no room."""
        if self._processes:
            return
        with self._path.open("wb") as file:
            # All room at once: a full disk is told here, and not by a signal later.
            os.posix_fallocate(file.fileno(), 0, len(self._names) * IMAGE_BYTES)
        # A process forked while a snapshot is written would inherit locks that nobody frees.
        finish_writing()
        fork = get_context("fork")
        self._processes = [fork.Process(target=self._try) for _ in os.sched_getaffinity(0)]
        for process in self._processes:
            process.start()

    def finish(self, path: Path) -> None:
        """Wait for them and give the file its name. Raises DamagedImage."""
        for process in self._processes:
            process.join()
        if any(process.exitcode for process in self._processes):
            os.lseek(self._todo, 0, os.SEEK_SET)
            self._write_rest()  # All of it, here: its error is raised here, and nothing is missing.
        self._path.rename(path)

    def end(self) -> None:
        """Leave nothing behind but a file that is whole."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        os.close(self._todo)
        self._path.unlink(missing_ok=True)

    def _try(self) -> None:
        gc.freeze()  # To search what came with the fork for garbage would copy all of its memory.
        try:
            self._write_rest()
        except BaseException:
            os._exit(1)

    def _write_rest(self) -> None:
        """Decode until all is taken."""
        with self._path.open("r+b") as file:
            while first := os.read(self._todo, self._WORD_BYTES):
                at = int.from_bytes(first, sys.byteorder)
                file.seek(at * IMAGE_BYTES)
                file.write(decode(self._folder, self._names[at : at + _AT_ONCE]).data)


# What happens to a whole batch at once, on the device where it is.

MEAN = (0.47889522, 0.47227842, 0.43047404)
STD = (0.24205776, 0.23828046, 0.25874835)
"""Of the red, green and blue values of CINIC-10, from its authors (github.com/BayesWatch/cinic-10)."""


def augmented(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Shift each image of a batch (N, C, H, W) by up to `padding` pixels, and mirror half of them.

    What comes in at the edges is black. The choice is drawn from the CPU's random state.
    """
    count, height, width = len(images), images.shape[2], images.shape[3]
    top, left = torch.randint(2 * padding + 1, (2, count)).to(images.device)
    mirrored = (torch.rand(count) < 0.5).to(images.device)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, top, left, H, W), nothing copied
    cut = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(mirrored[:, None, None, None], cut.flip(3), cut)


def normalized(
    images: torch.Tensor, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> torch.Tensor:
    """Turn bytes (N, C, H, W) into floats whose channels have the mean 0 and the deviation 1."""
    scale = 1 / (255 * torch.tensor(std, device=images.device))
    shift = torch.tensor(mean, device=images.device) / torch.tensor(std, device=images.device)
    return images * scale[:, None, None] - shift[:, None, None]


# Residual networks for pictures of 32 x 32 pixels, after He et al. 2015 (arxiv.org/abs/1512.03385): those of
# the paper's ImageNet part, with a first layer for small pictures, as is usual for CIFAR-10 and CINIC-10:
# 3 x 3 with stride 1, and no pooling after it. resnet20 is of the paper's CIFAR-10 part: a quarter as wide.

_STEM_PLANES, _NARROW_PLANES = 64, 16


class Residual(nn.Module):
    """Adds what comes in to what its layers make of it; `short` where both differ in shape."""

    def __init__(self, layers: nn.Sequential, short: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.short = short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.short(x))


def _convolution(planes_in: int, planes_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(planes_in, planes_out, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(planes_out)]


def _residual(layers: list[nn.Module], planes_in: int, planes_out: int, stride: int) -> Residual:
    same = stride == 1 and planes_in == planes_out
    short = nn.Identity() if same else nn.Sequential(*_convolution(planes_in, planes_out, 1, stride))
    return Residual(nn.Sequential(*layers), short)


def basic(planes_in: int, planes: int, stride: int) -> Residual:
    """Two layers of 3 x 3 (figure 5, left, of the paper)."""
    layers = [*_convolution(planes_in, planes, 3, stride), nn.ReLU(), *_convolution(planes, planes, 3)]
    return _residual(layers, planes_in, planes, stride)


def bottleneck(planes_in: int, planes: int, stride: int) -> Residual:
    """1 x 1 to fewer planes, 3 x 3 there, 1 x 1 to four times as many (figure 5, right)."""
    layers = [
        *_convolution(planes_in, planes, 1),
        nn.ReLU(),
        *_convolution(planes, planes, 3, stride),
        nn.ReLU(),
        *_convolution(planes, 4 * planes, 1),
    ]
    return _residual(layers, planes_in, 4 * planes, stride)


def _network(
    block: Callable[[int, int, int], Residual],
    widening: int,
    depths: tuple[int, ...],
    classes: int,
    stem_planes: int = _STEM_PLANES,
) -> nn.Sequential:
    """Stack blocks: the planes double and the picture halves from one stage to the next."""
    layers: list[nn.Module] = [*_convolution(3, stem_planes, 3), nn.ReLU()]
    planes_in = stem_planes
    for stage, depth in enumerate(depths):
        planes = stem_planes << stage
        for number in range(depth):
            layers.append(block(planes_in, planes, 2 if stage and not number else 1))
            planes_in = widening * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(planes_in, classes))


def resnet20(classes: int = 10) -> nn.Sequential:
    """Return a narrow network of 20 layers for (N, 3, 32, 32), for CPUs; it gives (N, classes)."""
    return _network(basic, 1, (3, 3, 3), classes, _NARROW_PLANES)


def resnet18(classes: int = 10) -> nn.Sequential:
    """Return a network of 18 layers for (N, 3, 32, 32); it gives (N, classes)."""
    return _network(basic, 1, (2, 2, 2, 2), classes)


def resnet50(classes: int = 10) -> nn.Sequential:
    """Return a network of 50 layers for (N, 3, 32, 32); it gives (N, classes)."""
    return _network(bottleneck, 4, (3, 4, 6, 3), classes)


MODELS: dict[str, Callable[[int], nn.Sequential]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet50": resnet50,
}
"""By name, for settings."""
