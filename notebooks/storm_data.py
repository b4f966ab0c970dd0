"""For storm_images.ipynb: tracks of storms, pictures of their wind, and tiles of these pictures.

All of it is made by a model. No storm here was ever seen, and no picture comes from a satellite: data of that
kind ship in no package. Given the same seed, the same storms are made everywhere.

- Wind and pressure around a centre: Holland, "An analytic model of the wind and pressure profiles in
  hurricanes" (Monthly Weather Review 108, 1980). The size of its core: Vickery and Wadhera,
  "Statistical models of Holland pressure profile parameter and radius to maximum winds" (Journal of Applied
  Meteorology and Climatology 47, 2008); its peakedness: Powell et al. (Journal of Wind Engineering 93, 2005).
- Tracks: a steering wind that blows to the west in the tropics and to the east further north, a drift to the
  north, and a disturbance that fades. These are round numbers of our own, chosen to give such tracks.

    ROOT/tracks.csv           a row for each storm and moment
    ROOT/pictures.csv         a row for each picture: where its centre is, in pixels
    ROOT/pictures/NUMBER.npy  the tiles of a picture, (tiles, side, side) bytes, row by row

A module beside a notebook travels with each cell that uses it. It needs NumPy and torch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

Field = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

STEP_H = 6
"""Hours between two moments of a track."""
KM_PER_DEGREE = 111.2
_AIR_KG_M3 = 1.15
_EARTH_PER_S = 7.292e-5
_HIGHEST_M_S = 80.0
"""The wind that is 255 in a picture."""
_INFLOW_RAD = np.radians(20)
_TESTED = 5
"""Each fifth storm is held out."""


@dataclass(frozen=True)
class Moment:
    """A storm at a moment. east_m_s, north_m_s: how its centre moves until the next one.

    deficit_hpa: by how much the pressure in its centre is lower than around it.
    """

    storm: int
    hour: int
    latitude: float
    longitude: float
    east_m_s: float
    north_m_s: float
    deficit_hpa: float

    @property
    def core_km(self) -> float:
        """The radius of the strongest wind (Vickery and Wadhera 2008, equation for all storms)."""
        return float(np.exp(3.015 - 6.291e-5 * self.deficit_hpa**2 + 0.0337 * self.latitude))

    @property
    def peakedness(self) -> float:
        """Holland's B (Powell et al. 2005)."""
        return float(np.clip(1.881 - 0.00557 * self.core_km - 0.01295 * self.latitude, 0.8, 2.5))

    @property
    def held_out(self) -> bool:
        return self.storm % _TESTED == 0


def profile(radius_km: Field, moment: Moment) -> Field:
    """Return the wind in m/s at these distances from the centre (Holland 1980, gradient wind)."""
    radius_m = np.maximum(radius_km, 0.1) * 1000
    turning = 2 * _EARTH_PER_S * np.sin(np.radians(moment.latitude)) * radius_m / 2
    near = (moment.core_km * 1000 / radius_m) ** moment.peakedness
    driven = moment.peakedness * moment.deficit_hpa * 100 / _AIR_KG_M3 * near * np.exp(-near)
    return (np.sqrt(driven + turning**2) - turning).astype(np.float32)


def track(storm: int, moments: int, seed: int = 0) -> list[Moment]:
    """Return the life of one storm, a moment each STEP_H hours."""
    chance = np.random.default_rng((seed, storm))
    latitude, longitude = chance.uniform(10, 20), chance.uniform(-70, -40)
    strongest_hpa, peak_h = chance.uniform(25, 90), chance.uniform(0.3, 0.8) * moments * STEP_H
    own, disturbance = chance.normal(0, 0.7, 2), np.zeros(2)
    found: list[Moment] = []
    for hour in range(0, moments * STEP_H, STEP_H):
        disturbance = 0.7 * disturbance + chance.normal(0, 0.3, 2)
        steering = np.array([-6 + 14 / (1 + np.exp((27 - latitude) / 3)), 2.5])
        east, north = steering + own + disturbance
        deficit_hpa = 8 + strongest_hpa * np.exp(-(((hour - peak_h) / 36) ** 2))
        found.append(
            Moment(storm, hour, *map(float, (latitude, longitude, east, north, np.round(deficit_hpa, 2))))
        )
        longitude += east * 3.6 * STEP_H / (KM_PER_DEGREE * np.cos(np.radians(latitude)))
        latitude += north * 3.6 * STEP_H / KM_PER_DEGREE
    return found


@dataclass(frozen=True)
class View:
    """What a picture shows: a square of so many pixels, cut into square tiles."""

    side: int = 512
    km_per_pixel: float = 4.0
    tile: int = 64

    @property
    def tiles_across(self) -> int:
        return self.side // self.tile


def picture(moment: Moment, view: View, seed: int = 0) -> tuple[Bytes, float, float]:
    """Return the speed of the wind as a picture, and the row and column of the centre in it.

    Rows go to the south, columns to the east. The storm's wind turns against the clock and inwards; half of
    the storm's own motion is added to it near the centre, and to all of it a smooth wind of other weather,
    and noise.
    """
    chance = np.random.default_rng((seed, moment.storm, moment.hour))
    row, column = chance.uniform(0.1, 0.9, 2) * view.side
    south, east = (
        (np.arange(view.side, dtype=np.float32) + 0.5 - centre) * view.km_per_pixel
        for centre in (row, column)
    )
    radius = np.hypot(south[:, None], east[None, :])
    speed = profile(radius, moment)
    share = speed / max(float(speed.max()), 1.0)
    away = np.maximum(radius, 1.0)
    outward = east[None, :] / away, -south[:, None] / away  # to the east, to the north
    around = -outward[1], outward[0]
    motion = moment.east_m_s / 2, moment.north_m_s / 2
    wind = [
        speed * (np.cos(_INFLOW_RAD) * around[axis] - np.sin(_INFLOW_RAD) * outward[axis])
        + share * motion[axis]
        + weather(view, chance)
        for axis in range(2)
    ]
    seen = np.hypot(*wind) + chance.normal(0, 1.5, radius.shape)
    return (seen / _HIGHEST_M_S * 255).clip(0, 255).astype(np.uint8), float(row), float(column)


def weather(view: View, chance: np.random.Generator) -> Field:
    """Return a smooth field of wind in m/s: waves of 400 to 2000 km in random directions."""
    along = np.arange(view.side, dtype=np.float32) * view.km_per_pixel
    total = np.zeros((view.side, view.side), np.float32)
    for _ in range(4):
        angle, phase = chance.uniform(0, 2 * np.pi, 2)
        length_km = chance.uniform(400, 2000)
        across, down = np.cos(angle) * along, np.sin(angle) * along
        total += 2.5 * np.sin(2 * np.pi / length_km * (down[:, None] + across[None, :]) + phase)
    return total


def tiles_of(whole: Bytes, view: View) -> Bytes:
    """Cut a picture into (tiles, tile, tile), row by row."""
    across, tile = view.tiles_across, view.tile
    return whole.reshape(across, tile, across, tile).swapaxes(1, 2).reshape(-1, tile, tile)


def joined(tiles: Bytes, view: View) -> Bytes:
    """Put a picture together again."""
    across, tile = view.tiles_across, view.tile
    return tiles.reshape(across, across, tile, tile).swapaxes(1, 2).reshape(view.side, view.side)


@dataclass(frozen=True)
class Shot:
    """A picture of the folder: which storm and hour it shows, and where its centre is, in pixels."""

    number: int
    storm: int
    hour: int
    row: float
    column: float

    @property
    def held_out(self) -> bool:
        return self.storm % _TESTED == 0


def make(root: Path, storms: int, photographed: int, shots: int, view: View, moments: int = 20) -> list[Shot]:
    """Write tracks of `storms` storms, and `shots` pictures of each of the first `photographed` ones.

    Pictures of an earlier call are removed.
    """
    (root / "pictures").mkdir(parents=True, exist_ok=True)
    for earlier in (root / "pictures").glob("*.npy"):
        earlier.unlink()
    lives = [track(storm, moments) for storm in range(storms)]
    _write(root / "tracks.csv", [moment for life in lives for moment in life])
    taken: list[Shot] = []
    for life in lives[:photographed]:
        for moment in life[2 :: max(1, (moments - 2) // shots)][:shots]:
            whole, row, column = picture(moment, view)
            np.save(root / "pictures" / f"{len(taken):05}.npy", tiles_of(whole, view))
            taken.append(Shot(len(taken), moment.storm, moment.hour, row, column))
    _write(root / "pictures.csv", taken)
    return taken


def _write(path: Path, rows: Sequence[Moment | Shot]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _read(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def shots_in(root: Path) -> list[Shot]:
    """Return the pictures of a folder that `make` wrote."""
    return [
        Shot(int(row["number"]), int(row["storm"]), int(row["hour"]), float(row["row"]), float(row["column"]))
        for row in _read(root / "pictures.csv")
    ]


def tiles_in(root: Path, number: int) -> Bytes:
    """Return the tiles of a picture, mapped: only what is used is read from the disk."""
    return np.load(root / "pictures" / f"{number:05}.npy", mmap_mode="r")


# The centre in a tile: what the convolutional network learns.


class Tiles(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tiles of the pictures that are not held out: (1, side, side) bytes, and (has, row, column).

    has: 1 where the tile has the centre, which is at row, column, from 0 to 1 in it. Of each picture the tile
    with the centre comes `times` times in an epoch, and `others` tiles without it once.
    """

    def __init__(self, root: Path, view: View, times: int = 4, others: int = 12) -> None:
        self._root, self._view = root, view
        self._open: dict[int, Bytes] = {}
        self._items: list[tuple[Shot, int]] = []
        for shot in shots_in(root):
            if not shot.held_out:
                own, count = tile_at(shot, view), view.tiles_across**2
                chance = np.random.default_rng(shot.number)
                without = [tile for tile in chance.permutation(count).tolist() if tile != own][:others]
                self._items += [(shot, tile) for tile in [own] * times + without]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shot, tile = self._items[index]
        if shot.number not in self._open:
            self._open[shot.number] = tiles_in(self._root, shot.number)
        pixels = torch.from_numpy(np.array(self._open[shot.number][tile]))[None]
        if tile != tile_at(shot, self._view):
            return pixels, torch.zeros(3)
        within = [place % self._view.tile / self._view.tile for place in (shot.row, shot.column)]
        return pixels, torch.tensor([1.0, *within])


def tile_at(shot: Shot, view: View) -> int:
    """Return the number of the tile that has the centre."""
    return int(shot.row) // view.tile * view.tiles_across + int(shot.column) // view.tile


def turned(pixels: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn and mirror a batch, drawn anew for each: a storm's speeds look alike from all sides."""
    has, row, column = truth.unbind(1)
    for _ in range(int(torch.randint(4, ()))):
        pixels, row, column = torch.rot90(pixels, 1, (2, 3)), 1 - column, row
    if torch.rand(()) < 0.5:
        pixels, column = pixels.flip(3), 1 - column
    return pixels, torch.stack([has, row, column], dim=1)


class Finder(nn.Module):
    """Says of (N, 1, side, side) bytes whether the centre is there (a logit), and where (from 0 to 1)."""

    def __init__(self, side: int = 64) -> None:
        super().__init__()
        planes = (1, 16, 32, 32, 32)
        halved = [
            layer
            for few, many in pairwise(planes)
            for layer in (nn.Conv2d(few, many, 3, stride=2, padding=1), nn.ReLU())
        ]
        self.layers = nn.Sequential(*halved, nn.Flatten(), nn.Linear(32 * (side // 16) ** 2, 64), nn.ReLU())
        self.says = nn.Linear(64, 3)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found = self.says(self.layers(pixels.float() / 128 - 0.5))
        return torch.cat([found[:, :1], found[:, 1:].sigmoid()], dim=1)


def finder_loss(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the loss of both answers; where a tile has no centre, the place does not count."""
    has = truth[:, 0]
    asked = nn.functional.binary_cross_entropy_with_logits(found[:, 0], has)
    off = (found[:, 1:] - truth[:, 1:]).abs().sum(dim=1)
    return asked + 4 * (off * has).sum() / has.sum().clamp(min=1)


@torch.no_grad()
def centre_in(model: nn.Module, tiles: Bytes, view: View) -> tuple[float, float]:
    """Return the row and column of the centre in a picture, by its most likely tile."""
    found = model(torch.from_numpy(np.array(tiles))[:, None])
    best = int(found[:, 0].argmax())
    row, column = found[best, 1:].tolist()
    return (best // view.tiles_across + row) * view.tile, (best % view.tiles_across + column) * view.tile


# The next step of a track: what the recurrent network learns.


def steps_of(moments: Sequence[Moment]) -> torch.Tensor:
    """Return a track as (moments, 3): how far it goes until the next moment, in 100 km to the east and north,
    and its latitude / 30.
    """
    km = 3.6 * STEP_H / 100
    return torch.tensor([(one.east_m_s * km, one.north_m_s * km, one.latitude / 30) for one in moments])


def tracks_in(root: Path) -> list[list[Moment]]:
    """Return the tracks of a folder that `make` wrote, by the number of their storm."""
    lives: dict[int, list[Moment]] = {}
    for row in _read(root / "tracks.csv"):
        values = [float(row[field.name]) for field in fields(Moment)]
        moment = Moment(int(values[0]), int(values[1]), *values[2:])
        lives.setdefault(moment.storm, []).append(moment)
    return list(lives.values())


class Continuer(nn.Module):
    """Reads tracks (N, moments, 3) as in `steps_of`; says of each moment how far the step after it goes.

    It gives (N, moments, 2), in 100 km; an untrained one nearly repeats the last step.
    """

    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.reads = nn.GRU(3, hidden, batch_first=True)
        self.says = nn.Linear(hidden, 2)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return steps[..., :2] + self.says(self.reads(steps)[0])


@torch.no_grad()
def continued(model: nn.Module, seen: torch.Tensor, count: int) -> torch.Tensor:
    """Return the next `count` steps of a track (moments, 3), in 100 km each: (count, 2)."""
    steps = seen
    for _ in range(count):
        ahead = model(steps[None])[0, -1]
        latitude = steps[-1, 2] + steps[-1, 1] * 100 / KM_PER_DEGREE / 30
        steps = torch.cat([steps, torch.cat([ahead, latitude[None]])[None]])
    return steps[len(seen) :, :2]
