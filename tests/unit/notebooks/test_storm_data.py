"""The module beside storm_images.ipynb: its storms are Holland's, and its tiles and turns lose no centre."""

from __future__ import annotations

import importlib
import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "notebooks"))
storm_data = importlib.import_module("storm_data")

VIEW = storm_data.View(side=128, km_per_pixel=8.0, tile=32)


def moment(latitude: float = 20.0, deficit_hpa: float = 50.0) -> storm_data.Moment:
    return storm_data.Moment(1, 0, latitude, -50.0, -4.0, 3.0, deficit_hpa)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("storms")
    storm_data.make(made, storms=12, photographed=6, shots=3, view=VIEW, moments=14)
    return made


@pytest.mark.parametrize("deficit_hpa", [10.0, 50.0, 90.0])
def test_the_wind_is_hollands(deficit_hpa: float) -> None:
    """It is strongest at the core's radius, where without the earth's rotation it is sqrt(B dp / (rho e))."""
    storm = moment(deficit_hpa=deficit_hpa)
    radius = np.linspace(1, 400, 4000, dtype=np.float32)
    wind = storm_data.profile(radius, storm)
    highest = radius[wind.argmax()]
    assert highest == pytest.approx(storm.core_km, rel=0.05)
    expected = math.sqrt(storm.peakedness * deficit_hpa * 100 / 1.15 / math.e)
    assert wind.max() == pytest.approx(expected, rel=0.08) and wind.max() < expected
    assert wind[0] < 0.3 * wind.max() and wind[-1] < 0.7 * wind.max(), "calm in the eye, weaker far out"


def test_stronger_storms_have_smaller_cores() -> None:
    assert moment(deficit_hpa=90).core_km < moment(deficit_hpa=20).core_km < moment(30, 20).core_km


def test_a_track_goes_west_in_the_tropics_and_turns_to_the_north_east() -> None:
    lives = [storm_data.track(storm, 40) for storm in range(20)]
    starts = [life[0] for life in lives]
    assert np.mean([one.east_m_s for one in starts]) < -3
    far = [one for life in lives for one in life if one.latitude > 35]
    assert far and np.mean([one.east_m_s for one in far]) > 3
    for life in lives:
        for one, later in pairwise(life):
            km = (later.latitude - one.latitude) * storm_data.KM_PER_DEGREE
            assert km == pytest.approx(one.north_m_s * 3.6 * storm_data.STEP_H, abs=1e-6)


def test_the_same_seed_makes_the_same_storms() -> None:
    again = storm_data.track(3, 10)
    assert storm_data.track(3, 10) == again != storm_data.track(4, 10)
    pixels, *centre = storm_data.picture(again[5], VIEW)
    others, *same = storm_data.picture(again[5], VIEW)
    assert np.array_equal(pixels, others) and centre == same


def test_the_eye_is_where_it_is_said_to_be() -> None:
    """The wind is strongest around the centre, and turns: both halves of a cut through it are high."""
    view = storm_data.View(side=256, km_per_pixel=4.0, tile=64)
    for hour in range(4):
        storm = storm_data.Moment(7, hour, 15.0, -50.0, -4.0, 3.0, 80.0)
        pixels, row, column = storm_data.picture(storm, view)
        rows, columns = np.indices(pixels.shape)
        km = np.hypot(rows + 0.5 - row, columns + 0.5 - column) * view.km_per_pixel
        wall = pixels[(km > 0.7 * storm.core_km) & (km < 1.5 * storm.core_km)]
        assert wall.mean() > 2 * pixels[km > 6 * storm.core_km].mean()


def test_tiles_are_the_picture_and_hold_its_centre(folder: Path) -> None:
    shots = storm_data.shots_in(folder)
    assert len(shots) == 6 * 3
    for shot in shots:
        tiles = storm_data.tiles_in(folder, shot.number)
        assert tiles.shape == (16, 32, 32) and tiles.dtype == np.uint8
        whole = storm_data.joined(tiles, VIEW)
        assert np.array_equal(storm_data.tiles_of(whole, VIEW), tiles)
        tile = storm_data.tile_at(shot, VIEW)
        top, left = tile // 4 * 32, tile % 4 * 32
        assert top <= shot.row < top + 32 and left <= shot.column < left + 32


def test_what_is_learned_is_balanced_and_held_out_storms_are_not_in_it(folder: Path) -> None:
    tiles = storm_data.Tiles(folder, VIEW, times=2, others=3)
    learned = [shot for shot in storm_data.shots_in(folder) if not shot.held_out]
    assert {shot.storm for shot in learned} == {1, 2, 3, 4}
    truths = torch.stack([tiles[index][1] for index in range(len(tiles))])
    assert len(tiles) == 5 * len(learned) and truths[:, 0].sum() == 2 * len(learned)
    shot = learned[0]
    pixels, truth = tiles[0]
    assert np.array_equal(
        pixels[0].numpy(), storm_data.tiles_in(folder, shot.number)[storm_data.tile_at(shot, VIEW)]
    )
    assert truth.tolist() == pytest.approx([1, shot.row % 32 / 32, shot.column % 32 / 32])


def test_turning_a_tile_takes_its_centre_along() -> None:
    torch.manual_seed(0)
    seen = set()
    for _ in range(100):
        pixels = torch.zeros(1, 1, 32, 32)
        pixels[0, 0, 4, 20] = 1
        turned, truth = storm_data.turned(pixels, torch.tensor([[1.0, 4.5 / 32, 20.5 / 32]]))
        row, column = (truth[0, 1:] * 32).long().tolist()
        assert turned[0, 0, row, column] == 1
        seen.add((row, column))
    assert len(seen) == 8


def test_the_networks_fit_what_they_are_given(folder: Path) -> None:
    tiles = storm_data.tiles_in(folder, 0)
    row, column = storm_data.centre_in(storm_data.Finder(VIEW.tile), tiles, VIEW)
    assert 0 <= row < VIEW.side and 0 <= column < VIEW.side
    life = storm_data.steps_of(storm_data.tracks_in(folder)[0])
    assert life.shape == (14, 3)
    assert storm_data.continued(storm_data.Continuer(), life[:5], 6).shape == (6, 2)


def test_a_track_that_is_written_is_read_again(folder: Path) -> None:
    assert storm_data.tracks_in(folder) == [storm_data.track(storm, 14) for storm in range(12)]


def test_a_folder_that_is_made_again_has_only_the_new_pictures(tmp_path: Path) -> None:
    for photographed in (3, 1):
        shots = storm_data.make(tmp_path, storms=4, photographed=photographed, shots=2, view=VIEW, moments=8)
        names = sorted(path.stem for path in (tmp_path / "pictures").iterdir())
        assert names == [f"{shot.number:05}" for shot in shots] and len(shots) == 2 * photographed
