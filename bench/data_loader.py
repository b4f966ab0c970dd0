"""How fast cinic10_data.py loads images in CINIC-10's layout, against a loop that only decodes.

The loop opens and decodes each file with Pillow, without batches, labels or shuffling. With as many cores,
it is compared with the first epoch (list files, decode, cache, batch) and with a later epoch. They take turns
in one run on one machine, so only the ratio is meaningful. Also prints the speed of a loader without a cache,
where torch's worker processes send each batch.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from parts.targets import Target, close
from PIL import Image
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).resolve().parents[1] / "notebooks"))
cinic10_data = importlib.import_module("cinic10_data")

BOUND = 0.9
BATCH = 100
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    targets = []
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        root = Path(folder) / "pictures"
        paths = make_tree(root, chosen.images)
        size = sum(path.stat().st_size for path in paths) / len(paths)
        print(f"{len(paths)} PNG files of {size:.0f} bytes on average, in batches of {BATCH}")
        for processes in (1, 2):
            os.sched_setaffinity(0, cores[:processes])
            speeds = [measure(root, paths, processes) for _ in range(chosen.rounds)]
            targets += report(processes, speeds)
        os.sched_setaffinity(0, cores)
        print(f"augmented and normalized on the CPU, one thread: {prepared_per_second():.0f} images/s")
    close(targets)


def make_tree(root: Path, count: int) -> list[Path]:
    """Write images with about the file size of CINIC-10's: smooth, with a little noise."""
    chance = np.random.default_rng(0)
    paths = []
    for number in range(count):
        folder = root / "train" / f"class-{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        smooth = Image.fromarray(chance.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((32, 32))
        noisy = np.asarray(smooth) + chance.normal(0, 6, (32, 32, 3))
        paths.append(folder / f"cifar10-train-{number}.png")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1])
    return paths


def measure(root: Path, paths: list[Path], processes: int) -> dict[str, tuple[float, float]]:
    """Return for each variant images/s of elapsed time, and images/s of all processes' CPU time."""
    workers = processes if processes > 1 else 0
    with tempfile.TemporaryDirectory(dir=root.parent) as cache:
        kept = Path(cache) / "kept"
        ways: dict[str, Callable[[], None]] = {
            "loop": lambda: decode_all(paths, processes),
            "first": lambda: epoch(cinic10_data.Images(root, "train", cache=kept), 0),
            "next": lambda: epoch(cinic10_data.Images(root, "train", cache=kept), 0),
            "unkept": lambda: epoch(cinic10_data.Images(root, "train", cache=False), workers),
        }
        speeds = {name: per_second(len(paths), way) for name, way in ways.items()}
        shutil.rmtree(kept)
    return speeds


def per_second(count: int, way: Callable[[], None]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), cpu_s()
    way()
    return count / (time.perf_counter() - began), count / (cpu_s() - cpu)


def cpu_s() -> float:
    return sum(os.times()[:4])


def decode_all(paths: list[Path], processes: int) -> None:
    shares = [paths[number::processes] for number in range(processes)]
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=decode, args=(share,)) for share in shares]
    for other in others:
        other.start()
    for other in others:
        other.join()


def decode(paths: list[Path]) -> None:
    for path in paths:
        with Image.open(path) as image:
            image.load()


def epoch(images: cinic10_data.Images, workers: int) -> None:
    seen = sum(len(labels) for _, labels in DataLoader(images, BATCH, shuffle=True, num_workers=workers))
    assert seen == len(images)


def prepared_per_second() -> float:
    batch = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    rounds = 50
    return per_second(rounds * BATCH, lambda: prepare(batch, rounds))[0]


def prepare(batch: torch.Tensor, rounds: int) -> None:
    for _ in range(rounds):
        cinic10_data.normalized(cinic10_data.augmented(batch))


def report(processes: int, speeds: list[dict[str, tuple[float, float]]]) -> list[Target]:
    """Print the medians; on a busy machine, those by CPU time are more reliable."""
    for which, unit in enumerate(("images/s", "images per CPU second")):
        values = {way: statistics.median(speed[way][which] for speed in speeds) for way in speeds[0]}
        listed = ", ".join(f"{way} {speed:.0f}" for way, speed in values.items())
        print(f"{processes} process(es), {unit}: {listed}")
    return [
        Target(
            f"data_loader_{way}_epoch_{processes}_over_loop",
            statistics.median(speed[way][0] / speed["loop"][0] for speed in speeds),
            BOUND,
            at_most=False,
        )
        for way in ("first", "next")
    ]


if __name__ == "__main__":
    main()
