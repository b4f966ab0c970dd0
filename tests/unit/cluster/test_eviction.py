"""Which container is ended when a node's disk is full: only a tenant's, the largest first, one by one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster.wire import DISK_FULL_SIGNAL
from minicluster_hub.cluster.eviction.guard import Guard
from minicluster_hub.cluster.eviction.program import fullest
from minicluster_hub.cluster.eviction.rules import (
    KILL_AFTER_S,
    MUCH,
    REMOVE_AFTER_S,
    SETTLE_S,
    WINDOW_S,
    Disk,
    Eviction,
    EvictionStep,
    FreeSpace,
    Tenant,
    Unit,
    UsageHistory,
    Use,
    choose,
    reserve_bytes,
    tenant_of,
    use_of,
)
from minicluster_hub.engines.swarm.docker import DockerError, DockerUnavailable
from minicluster_hub.engines.swarm.names import NAME_LABEL, OWNER_LABEL, ROLE_LABEL

from ... import messages

GB = 10**9
LOW = Disk(4 * GB, 5 * GB)
NEED = Disk(2 * GB, 5 * GB)
INODES = Disk(400_000, 500_000, 3_000_000, Unit.INODES)


def tenant(name: str, **more: Any) -> Tenant:
    return Tenant(id=name, name=name, owner="ada", created_at=0.0, **more)


def history(*looks: tuple[float, list[Tenant]]) -> UsageHistory:
    found = UsageHistory()
    for now, tenants in looks:
        found.add(now, tenants)
    return found


@pytest.mark.parametrize(
    ("chosen", "total", "reserve"),
    [
        (0, 100 * GB, 5 * GB),
        (0, 8 * GB, GB),
        (0, 4000 * GB, 10 * GB),
        (0, 2 * GB, GB // 2),
        (3 * GB, 8 * GB, 3 * GB),
    ],
)
def test_the_reserve_is_a_share_of_the_disk_or_what_was_chosen(chosen: int, total: int, reserve: int) -> None:
    assert reserve_bytes(chosen, total) == reserve


def raw(role: str | None, **more: Any) -> dict[str, Any]:
    labels = {NAME_LABEL: "minicluster-task-7", OWNER_LABEL: "ada"} | ({ROLE_LABEL: role} if role else {})
    return {"Id": "abc", "Labels": labels, "State": "running", "Created": 5, "SizeRw": 7, **more}


@pytest.mark.parametrize(
    "role", [None, "hub", "service", "proxy", "registry", "eviction", "keeper", "lighthouse"]
)
def test_what_is_no_tenants_is_not_even_looked_at(role: str | None) -> None:
    assert tenant_of(raw(role), {}, {}) is None


@pytest.mark.parametrize("role", ["task", "server"])
def test_a_tenant_uses_its_layer_and_the_volumes_that_it_may_write_to(role: str) -> None:
    mounts = [
        {"Type": "volume", "Name": "home", "RW": True},
        {"Type": "volume", "Name": "keeper", "RW": False},
        {"Type": "tmpfs", "RW": True},
    ]
    found = tenant_of(raw(role, Mounts=mounts), {"home": 30, "keeper": 500}, {"abc": Use(9)})
    assert found == Tenant("abc", "minicluster-task-7", "ada", 5.0, True, 7, 30, Use(9))
    unknown = tenant_of(raw(role, Mounts=mounts), {}, {})
    assert unknown is not None and unknown.volume_bytes is None


def test_of_devices_that_lie_upon_each_other_one_counts() -> None:
    entries = [
        {"major": 253, "op": "write", "value": 10},
        {"major": 8, "op": "Write", "value": 12},
        {"major": 8, "op": "read", "value": 99},
    ]
    assert use_of({"blkio_stats": {"io_service_bytes_recursive": entries}}) == Use(written_bytes=12)
    assert use_of({"blkio_stats": {"io_service_bytes_recursive": None}}) == Use()


def test_what_the_kernel_remembers_of_files_is_told_with_control_groups_of_version_2_only() -> None:
    assert use_of({"memory_stats": {"stats": {"slab_reclaimable": 7, "cache": 9}}}) == Use(slab_bytes=7)
    assert use_of({"memory_stats": {"stats": {"cache": 9}}}) == Use()


sizes = st.integers(0, 20 * GB)
tenants = st.lists(
    st.builds(
        Tenant,
        id=st.uuids().map(str),
        name=st.just("x"),
        owner=st.just("ada"),
        created_at=st.sampled_from([0.0, 1000.0]),
        running=st.booleans(),
        layer_bytes=sizes,
        volume_bytes=st.none() | sizes,
        use=st.builds(Use, sizes, sizes),
    ),
    max_size=6,
)


@given(tenants, st.integers(5 * GB, 100 * GB))
def test_nobody_is_ended_while_there_is_room(found: list[Tenant], free: int) -> None:
    past = history((1000.0, [replace(one, layer_bytes=0) for one in found]), (1010.0, found))
    assert choose(1010.0, Disk(free, 5 * GB), found, past) is None


@given(tenants, st.data())
def test_whose_files_grew_most_is_ended_before_all_others(found: list[Tenant], data: st.DataObject) -> None:
    before = [
        replace(one, layer_bytes=data.draw(st.integers(0, one.layer_bytes)), volume_bytes=one.volume_bytes)
        for one in found
    ]
    past = history((1000.0, before), (1010.0, found))
    verdict = choose(1010.0, LOW, found, past)
    grown = {one.id: past.growth(1010.0, one).stored_bytes for one in found if one.running}
    if verdict is not None:
        assert verdict.tenant.running
    if grown and max(grown.values()) >= LOW.reserve // MUCH:
        assert verdict is not None and grown[verdict.tenant.id] == max(grown.values())


@given(tenants)
def test_who_uses_little_is_left_alone(found: list[Tenant]) -> None:
    little = [
        replace(one, layer_bytes=1, use=Use(LOW.reserve // MUCH - 1), volume_bytes=None) for one in found
    ]
    assert choose(1010.0, NEED, little, history((1000.0, little), (1010.0, little))) is None


def test_what_grew_before_the_window_is_not_held_against_it() -> None:
    old, new = tenant("old", layer_bytes=50 * GB), tenant("new", layer_bytes=GB)
    past = history((1000.0, [old, replace(new, layer_bytes=0)]), (1010.0, [old, new]))
    verdict = choose(1010.0, LOW, [old, new], past)
    assert verdict is not None and verdict.tenant == new
    later = 1010.0 + WINDOW_S + 1
    past.add(later, [old, new])
    assert choose(later, LOW, [old, new], past) is None


def test_in_need_whose_end_gives_most_back_is_ended() -> None:
    large, small = tenant("large", layer_bytes=3 * GB), tenant("small", layer_bytes=GB)
    past = history((1000.0, [large, small]))
    assert choose(1000.0, LOW, [large, small], past) is None
    verdict = choose(1000.0, NEED, [small, large], past)
    assert verdict is not None and verdict.tenant == large


def test_of_a_new_container_all_counts() -> None:
    new = replace(tenant("new", layer_bytes=2 * GB), created_at=990.0)
    verdict = choose(1000.0, LOW, [new], history((1000.0, [new])))
    assert verdict is not None and verdict.tenant == new


def test_a_home_that_grows_counts_from_when_its_size_was_known() -> None:
    seen = [tenant("server", volume_bytes=size) for size in (None, 40 * GB, 42 * GB)]
    past = history(*((1000.0 + at, [one]) for at, one in enumerate(seen)))
    assert past.growth(1002.0, seen[-1]).stored_bytes == 2 * GB


def test_a_file_that_is_removed_and_still_open_is_found_by_what_was_written() -> None:
    sly, tidy = tenant("sly", use=Use(9 * GB)), tenant("tidy", use=Use(GB // 10))
    past = history((1000.0, [tenant("sly"), tenant("tidy")]), (1010.0, [sly, tidy]))
    verdict = choose(1010.0, LOW, [tidy, sly], past)
    assert verdict is not None and verdict.tenant == sly


def test_one_at_a_time_and_the_next_one_only_after_room_had_time_to_come_back() -> None:
    now = 1000.0
    one, two = (replace(tenant(name, layer_bytes=2 * GB), created_at=now) for name in ("one", "two"))
    eviction, past = Eviction(), history((now, [one, two]))

    def step(at: float, *there: Tenant) -> tuple[EvictionStep, str] | None:
        past.add(now + at, there)
        order = eviction.next(now + at, LOW, there, past)
        return order and (order[0], order[1].tenant.id)

    assert step(0, one, two) == (EvictionStep.ASK, "one")
    assert step(KILL_AFTER_S - 1, one, two) is None
    assert step(KILL_AFTER_S, one, two) == (EvictionStep.KILL, "one")
    dead = replace(one, running=False)
    assert step(KILL_AFTER_S + 3, dead, two) is None
    assert step(REMOVE_AFTER_S, dead, two) == (EvictionStep.REMOVE, "one")
    assert step(REMOVE_AFTER_S + 3, two) is None
    assert step(REMOVE_AFTER_S + 3 + SETTLE_S - 1, two) is None
    assert step(REMOVE_AFTER_S + 3 + SETTLE_S, two) == (EvictionStep.ASK, "two")


class Engine:
    """A fake engine for the guard: a real one would need a full disk, as in the lab's tests."""

    def __init__(self, *containers: dict[str, Any]) -> None:
        self.containers = list(containers)
        self.done: list[tuple[str, str, int]] = []
        self.fault: DockerError | None = None

    def once(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.fault:
            raise self.fault
        if method == "containers":
            wanted = next(one for one in kwargs["filters"]["label"] if one.startswith(ROLE_LABEL))
            return [
                one for one in self.containers if f"{ROLE_LABEL}={one['Labels'].get(ROLE_LABEL)}" == wanted
            ]
        if method in ("kill", "remove_container"):
            self.done.append((method, args[0], kwargs.get("signal", 0)))
        return {"stats": {}, "df": {"Volumes": None}}.get(method)


def test_the_guard_asks_then_kills_then_removes_the_tenants_container_and_no_other() -> None:
    hub = raw("hub") | {"Id": "hub", "SizeRw": 90 * GB}
    engine = Engine(hub, raw("task") | {"SizeRw": 2 * GB, "Created": 1000})
    guard = Guard(engine, local_homes=True)  # pyright: ignore[reportArgumentType]
    for at in (0.0, KILL_AFTER_S, REMOVE_AFTER_S):
        guard.check(1000.0 + at, LOW)
    assert engine.done == [
        ("kill", "abc", DISK_FULL_SIGNAL),
        ("kill", "abc", 9),
        ("remove_container", "abc", 0),
    ]


def test_the_guard_goes_on_when_the_engine_was_away() -> None:
    engine = Engine(raw("task") | {"SizeRw": 2 * GB, "Created": 1000})
    guard = Guard(engine, local_homes=False)  # pyright: ignore[reportArgumentType]
    engine.fault = DockerUnavailable("restarting")
    guard.check(1000.0, LOW)
    engine.fault = None
    guard.check(1003.0, LOW)
    assert [what for what, _, _ in engine.done] == ["kill"]


def test_nobody_is_ended_while_room_comes_back() -> None:
    """An ended container's files are removed one by one: a million of them take a while."""
    filler, other = (replace(tenant(name, use=Use(0, 2 * GB)), created_at=1000.0) for name in ("one", "two"))
    eviction, past, left = Eviction(), history((1000.0, [filler, other])), replace(INODES, free=1000)
    assert eviction.next(1000.0, left, [filler, other], past) is not None
    assert eviction.next(1003.0, left, [other], past) is None
    for after in range(20):
        now, left = 1003.0 + SETTLE_S + 3 * after, replace(left, free=left.free + 1000)
        past.add(now, [other])
        assert eviction.next(now, left, [other], past) is None
    order = eviction.next(now + 3, left, [other], past)
    assert order is not None and order[1].tenant == other, "no more came"


def test_what_a_disk_lost_is_known_for_some_minutes() -> None:
    space = FreeSpace()
    looks = [(1000.0, 9 * GB), (1003.0, 10 * GB), (1006.0, GB), (1006.0 + WINDOW_S, GB)]
    assert [space.lost(now, free) for now, free in looks] == [0, 0, 9 * GB, 0]


def test_what_was_taken_unseen_ends_the_newest_and_not_who_wrote_a_little() -> None:
    """Neither sizes nor writes show blocks that `fallocate` takes beyond the end of a file."""
    wrote_little = tenant("little", layer_bytes=GB // 2, use=Use(GB // 2))
    found = [wrote_little, replace(tenant("hidden"), created_at=2.0), replace(tenant("old"), created_at=1.0)]
    past = history((1000.0, [replace(one, layer_bytes=0, use=Use()) for one in found]), (1010.0, found))
    assert choose(1010.0, replace(LOW, lost=50 * GB), found, past) is None
    verdict = choose(1010.0, replace(NEED, lost=50 * GB), found, past)
    assert verdict is not None and verdict.tenant.id == "hidden", verdict
    assert messages.WENT_UNSEEN in verdict.why


def test_what_somebody_filled_who_is_gone_is_not_taken_for_something_unseen() -> None:
    """A home stays full after its server ended; the next container is not ended for it."""
    filler, guess = tenant("filler", layer_bytes=20 * GB), tenant("newest")
    for found, disk, explained in (
        ([filler], LOW, True),
        ([guess], replace(NEED, lost=50 * GB), False),
    ):
        past, eviction = (
            history((1000.0, [replace(one, layer_bytes=0) for one in found]), (1010.0, found)),
            Eviction(),
        )
        order = eviction.next(1010.0, disk, found, past)
        assert order is not None and order[1].tenant == found[0]
        assert not eviction.explained
        assert eviction.next(1013.0, disk, [], past) is None
        assert eviction.explained is explained
        eviction.next(1016.0, disk, [], past)
        assert not eviction.explained
    space = FreeSpace()
    assert [space.lost(1000.0, 10 * GB), space.lost(1003.0, GB)] == [0, 9 * GB]
    space.forget()
    assert [space.lost(1006.0, GB), space.lost(1009.0, GB // 2)] == [0, GB - GB // 2]


def test_nobody_is_ended_for_a_disk_that_was_full_long_ago() -> None:
    found = [tenant("one"), tenant("other")]
    past = history((1000.0, found), (1010.0, found))
    assert choose(1010.0, replace(NEED, lost=NEED.reserve // MUCH - 1), found, past) is None


def spaces(*folders: str | Path) -> dict[tuple[str, Unit], FreeSpace]:
    return {(str(folder), unit): FreeSpace() for folder in folders for unit in Unit}


def test_the_disk_of_which_least_is_left_counts(tmp_path: Path) -> None:
    filesystem = os.statvfs(tmp_path)
    disk = fullest(spaces(tmp_path, "/"), 10**18, 1000.0)
    assert disk.low and disk.nearly_low and disk.in_need and (disk.reserve, disk.unit) == (10**18, Unit.BYTES)
    assert abs(disk.free - filesystem.f_bavail * filesystem.f_frsize) < 10 * GB
    assert "less than the reserve" in str(disk)


@pytest.mark.parametrize(
    ("inodes", "free", "unit"),
    [(10_000_000, 100_000, Unit.INODES), (10_000_000, 9_000_000, Unit.BYTES), (0, 0, Unit.BYTES)],
)
def test_a_disk_may_run_out_of_inodes_before_it_is_full(
    monkeypatch: pytest.MonkeyPatch, inodes: int, free: int, unit: Unit
) -> None:
    """A tenth of its bytes is free. The last case is btrfs, which reports no inodes."""
    filesystem = os.statvfs_result((4096, 4096, 10**8, 10**7, 10**7, inodes, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: filesystem)
    disk = fullest(spaces("/"), 0, 1000.0)
    assert (disk.unit, disk.low) == (unit, unit is Unit.INODES)


def test_who_made_most_files_is_ended_for_them() -> None:
    many, large = tenant("many", use=Use(0, 2 * GB)), tenant("large", layer_bytes=9 * GB, use=Use(9 * GB, 0))
    past = history((1000.0, [tenant("many"), tenant("large")]), (1010.0, [many, large]))
    verdict = choose(1010.0, INODES, [large, many], past)
    assert verdict is not None and verdict.tenant == many and "inodes" in verdict.why
    few = replace(many, use=Use(0, 1_000_000))
    past = history((1000.0, [tenant("many"), tenant("large")]), (1010.0, [few, large]))
    assert choose(1010.0, INODES, [large, few], past) is None


def test_where_nobody_is_seen_to_make_files_the_newest_is_ended_in_need() -> None:
    found = [replace(tenant("old"), created_at=1.0), replace(tenant("new"), created_at=2.0)]
    past = history((1000.0, found), (1010.0, found))
    assert choose(1010.0, INODES, found, past) is None
    verdict = choose(1010.0, replace(INODES, free=200_000), found, past)
    assert verdict is not None and verdict.tenant.id == "new" and verdict.a_guess
