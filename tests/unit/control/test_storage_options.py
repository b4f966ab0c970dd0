"""A user's storage limit: by quota, else by the settings, else by the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster_hub.scheduling.limits import Quotas
from minicluster_hub.storage.options import StorageOptions

QUOTAS = Quotas.read(
    {
        "ada": {"storage_gb": 5},
        "bob": {"slots": 4},
        "group:small": {"storage_gb": 1},
        "group:large": {"storage_gb": 9, "slots": 1},
        "group:silent": {"slots": 2},
        "*": {"storage_gb": 3},
    }
)


@pytest.mark.parametrize(
    ("owner", "groups", "gb"),
    [
        ("ada", ("large",), 5),  # a user's own quota takes precedence over groups'
        ("bob", (), 3),  # a quota of slots does not limit storage
        ("bob", ("small", "large", "silent"), 9),  # the most generous
        ("eve", ("silent",), 3),
        ("eve", (), 3),
    ],
)
def test_whose_quota_counts(owner: str, groups: tuple[str, ...], gb: float) -> None:
    quotas = Quotas(QUOTAS.of_users, groups_of=lambda _: groups)
    assert quotas.storage_gb(owner) == gb


def test_without_a_word_nobody_has_a_quota_of_their_own() -> None:
    assert Quotas.read({"*": {"slots": 1}, "ada": {"storage_gb": None}}).storage_gb("ada") is None


@pytest.mark.parametrize(("storage_gb", "most"), [(0.001, 1_000_000), (0.0, None), (1e9, None)])
def test_the_default_is_a_quarter_of_the_disk_at_most(
    tmp_path: Path, storage_gb: float, most: int | None
) -> None:
    store: Any = SimpleNamespace(storage=None)  # nothing is limited here
    options = StorageOptions(storage_gb=storage_gb)
    limits = {"ada": 7.0}
    storage = options.storage(store, limits.get, tmp_path / "service")
    quarter = shutil.disk_usage(tmp_path).total // 4
    assert storage.limit_of("bob") == (most or quarter)
    assert storage.limit_of("ada") == 7_000_000_000
    assert storage.disk.reserve_bytes == 2_000_000_000
