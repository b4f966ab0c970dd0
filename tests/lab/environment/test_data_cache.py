"""The nodes' caches of data sets: damage, two jobs at once, no space, a killed agent."""

from __future__ import annotations

import os
import re

from ... import messages
from ..cluster import LabCluster
from ..jobs import WITHIN_S, Jobs
from ..machines import Node
from ..machines.processes import wait_for
from .data import PIECE_BYTES, PIECES, DataSets, Sample, damage, data_set_agent, files_on, ready, sets

__all__ = ["ready", "sets"]  # fixtures
NODES = ["node1", "node2", "node3"]
SLOW_MBIT = 30
"""A rate that is slow enough to observe a fetch: four pieces take 9 s."""


def wait_reason(jobs: Jobs, job: int, pattern: str) -> None:
    """Wait until the job's reason has this text."""
    wait_for(
        lambda: re.search(pattern, jobs.job(job).get("reason", "")),
        f"job {job} to say {pattern!r}",
        WITHIN_S,
        0.1,
    )


def test_two_jobs_want_the_same_at_once_and_a_file_is_damaged_later(
    jobs: Jobs, sets: DataSets, ready: LabCluster
) -> None:
    """Each node fetches it once for both; later damage is found, and only damaged data is fetched again."""
    node = ready.lab.nodes[1]
    birds = sets.push("birds", pieces=4)
    node.limit_rate(SLOW_MBIT)
    before = node.bytes_received()
    try:
        both = sets.submit(birds), sets.submit(birds)
        for job in both:
            wait_reason(jobs, job, r"fetching birds: .*node2 \d+ %")
    finally:
        node.unlimit()
    for job in both:
        sets.check_read(birds, job)
    assert birds.size_bytes < node.bytes_received() - before < 1.5 * birds.size_bytes
    assert sets.nodes_with(birds) == NODES

    sound = files_on(node, birds)
    damaged = damage(node, birds)
    sets.check_read(birds, sets.submit(birds))
    mended = files_on(node, birds)
    assert [name for name in sound if not same(sound[name], mended[name])] == [damaged]


def test_a_cache_that_is_full_drops_what_is_unused_for_the_longest_time(jobs: Jobs, sets: DataSets) -> None:
    third = PIECES // 3 + 1
    held, unused, newer = (sets.push(name, third) for name in ("held", "unused", "newer"))
    large, too_large = sets.push("large", 2 * third), sets.push("toolarge", PIECES + 1)
    holder = sets.submit(held, stay=True)
    jobs.wait_log(holder, held.read)
    sets.check_read(unused, sets.submit(unused))
    assert kept(sets, held, unused) == [held, unused]

    sets.check_read(newer, sets.submit(newer))
    assert kept(sets, held, unused, newer) == [held, newer], "the older one is in use"

    waits = sets.submit(large)
    pattern = rf"fetching large: .*waits: large has {megabytes(large)}, {messages.CACHE_HOLDS} 100 MB, "
    wait_reason(jobs, waits, rf"{pattern}and {megabytes(held)} {messages.IN_USE_BY_OTHERS}")
    assert kept(sets, held, newer) == [held, newer], "nothing goes for what cannot come yet"
    jobs.stop(holder)
    sets.check_read(large, waits)
    assert kept(sets, held, newer, large) == [large], "both had to go"

    sets.check_read(unused, sets.submit(unused))
    assert kept(sets, large, unused) == [unused]
    sets.check_read(held, sets.submit(held))
    sets.check_read(unused, sets.submit(unused))
    sets.check_read(newer, sets.submit(newer))
    assert kept(sets, held, unused, newer) == [unused, newer], "what was read again is not the oldest"

    failed = jobs.wait(sets.submit(too_large))
    assert failed["state"] == "failed"
    assert f"has {megabytes(too_large)}, and {messages.CACHE_HOLDS} 100 MB" in failed["error"]["message"]
    assert "--data-cache" in failed["error"]["hint"]
    assert kept(sets, unused, newer) == [unused, newer], "nothing went for what can never come"


def same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing was written in between."""
    return (one.st_ino, one.st_mtime_ns) == (other.st_ino, other.st_mtime_ns)


def kept(sets: DataSets, *samples: Sample) -> list[Sample]:
    """Return the data sets on the nodes; check that all nodes have the same."""
    nodes = {sample.name: sets.nodes_with(sample) for sample in samples}
    assert all(of in ([], NODES) for of in nodes.values()), nodes
    return [sample for sample in samples if nodes[sample.name]]


def megabytes(sample: Sample) -> str:
    return f"{sample.size_bytes / 1e6:.0f} MB"


def test_a_data_set_agent_that_is_killed_goes_on_where_it_was(
    jobs: Jobs, sets: DataSets, ready: LabCluster
) -> None:
    node = ready.lab.nodes[2]
    fish = sets.push("fish", pieces=PIECES)
    node.limit_rate(SLOW_MBIT)
    try:
        job = sets.submit(fish)
        wait_reason(jobs, job, r"fetching fish: .*node3 ([4-9]\d) %")
        there = whole_files(node, fish)
        ready.docker("kill", *data_set_agent(ready, node), node=node)
        assert 0 < len(there) < PIECES
    finally:
        node.unlimit()
    sets.check_read(fish, job)
    now = files_on(node, fish)
    assert all(same(there[name], now[name]) for name in there), "what was there is not fetched again"


def whole_files(node: Node, sample: Sample) -> dict[str, os.stat_result]:
    return {name: stat for name, stat in files_on(node, sample).items() if stat.st_size == PIECE_BYTES}


def test_a_rank_that_joins_a_fault_tolerant_job_finds_the_data_too(jobs: Jobs, sets: DataSets) -> None:
    plants = sets.push("plants", pieces=2)
    busy = jobs.submit("import time\nwhile True: time.sleep(1)\n", slots_per_node=2)
    (node,) = jobs.wait(busy, "running")["nodes"]
    job = sets.submit(plants, stay=True, nodes={"min": 2, "max": 3}, fault_tolerant=True)
    for rank in range(2):
        jobs.wait_log(job, plants.read, rank)
    assert sorted([node, *sets.nodes_with(plants)]) == NODES
    jobs.stop(busy)
    jobs.wait_log(job, plants.read, rank=2)
    assert sets.nodes_with(plants) == NODES
    assert jobs.job(job)["attempt"] == 1, jobs.history(job)
