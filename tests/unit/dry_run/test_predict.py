"""From timed steps to predictions: the network's part, the ways to communicate, epochs, memory."""

import pytest

from minicluster.dry_run.measured import CPU, Collective, Ended, Epoch, RankFindings, Sizes, Step, Traced
from minicluster.dry_run.predict import (
    Link,
    StepModel,
    epoch_steps,
    exposed_s,
    memory_of,
    node_counts,
    rows,
)
from minicluster.wire.comm import CommMethod

LINK = Link(8.0, known=True, latency_s=0.0, efficiency=1.0)
"""1 GB in a second."""
GB = 10**9


def step(seconds, *collectives):
    made = tuple(Collective(at_s=at, size_bytes=size, blocks=False) for at, size in collectives)
    return Step(seconds=seconds, collectives=made)


def of_times(**times):
    return RankFindings(
        rank=0, ended=Ended.STEPS, times={name: tuple(steps) for name, steps in times.items()}
    )


TIMED = of_times(
    alone=[step(1.0)] * 3,
    ddp=[step(1.1, (0.5, GB), (1.0, GB))] * 3,
    bf16=[step(1.2, (0.5, GB // 2), (1.0, GB // 2))] * 3,
    powersgd=[step(1.5, (1.0, GB // 100))] * 3,
    average=[step(1.4, (0.0, GB))] * 3,
)


def test_a_ring_sends_each_byte_almost_twice():
    assert LINK.reduce_s(GB, 1) == 0
    assert LINK.reduce_s(GB, 2) == pytest.approx(1.0)
    assert LINK.reduce_s(GB, 4) == pytest.approx(1.5)
    assert Link(8.0, latency_s=0.1, efficiency=1.0).reduce_s(0, 3) == pytest.approx(0.4)


def test_what_the_backward_pass_hides_costs_nothing():
    early, late = Collective(at_s=0.0, size_bytes=GB), Collective(at_s=2.0, size_bytes=0)
    assert exposed_s((early, late), LINK, 2) == 0
    assert exposed_s((early, Collective(at_s=0.4, size_bytes=0)), LINK, 2) == pytest.approx(0.6)


def test_collectives_go_on_the_network_one_after_the_other():
    both = (Collective(at_s=0.0, size_bytes=GB), Collective(at_s=0.0, size_bytes=GB))
    assert exposed_s(both, LINK, 2) == pytest.approx(2.0)


def test_a_rank_that_waits_at_once_hides_nothing():
    blocking = [Collective(at_s=at, size_bytes=GB, blocks=True) for at in (0.0, 5.0)]
    assert exposed_s(blocking, LINK, 2) == pytest.approx(2.0)
    assert exposed_s((), LINK, 2) == 0


def test_what_a_cpu_exchanges_slows_what_it_computes_meanwhile():
    early, late = Collective(at_s=0.0, size_bytes=GB), Collective(at_s=2.0, size_bytes=0)
    # For a second, half of the core exchanges: half a second of computing is left for later.
    assert exposed_s((early, late), LINK, 2, taken=0.5) == pytest.approx(0.5)
    # The network is the slower one still: nothing is added to it.
    assert exposed_s((early, Collective(at_s=0.4, size_bytes=0)), LINK, 2, taken=0.5) == pytest.approx(0.6)
    blocking = [Collective(at_s=at, size_bytes=GB, blocks=True) for at in (0.0, 5.0)]
    assert exposed_s(blocking, LINK, 2, taken=0.5) == pytest.approx(2.0)


def test_exchanging_takes_of_one_core_only_and_nothing_of_a_gpus_rank():
    slow = Link(1.0, efficiency=1.0)
    assert slow.taken(1) == pytest.approx(0.125)
    assert LINK.taken(1) == 0.5
    assert LINK.taken(8) == pytest.approx(0.0625)
    hidden = [step(3.0, (0.5, GB), (2.5, 0))]
    on_cpu = of_times(alone=[step(3.0)], ddp=hidden).model_copy(update={"device": CPU})
    on_gpu = on_cpu.model_copy(update={"device": "NVIDIA RTX"})
    added = [StepModel(one, 1, LINK).predict(CommMethod("ddp"), 2).exposed_s for one in (on_cpu, on_gpu)]
    assert added == [pytest.approx(0.5), 0]


def test_each_way_to_communicate():
    model = StepModel(TIMED, 1, LINK)
    on_two = {name: found[2].step_s for name, found in rows(model, (1, 2))}
    assert on_two["ddp"] == pytest.approx(1.1 + 1.5)
    assert on_two["bf16"] == on_two["fp16"] == pytest.approx(1.2 + 0.5)
    assert on_two["powersgd"] == pytest.approx(1.5 + 0.01)
    assert on_two["localsgd"] == pytest.approx(1.0 + (0.4 + 1.0) / 8)
    assert on_two["diloco"] == pytest.approx(1.0 + (0.4 + 1.0) / 50)
    whole = CommMethod("localsgd", {"period": 4, "sent": "fp32"})
    assert model.predict(whole, 2).step_s == pytest.approx(1.0 + (0.4 + 2.0) / 4)


def test_the_cells_own_way_comes_first():
    asked = CommMethod("localsgd", {"period": 4})
    names = [name for name, _ in rows(StepModel(TIMED, 1, LINK), (2,), asked)]
    assert names[:2] == ["localsgd:period=4", "ddp"]


def test_one_node_communicates_with_nobody():
    model = StepModel(TIMED, 1, LINK)
    assert {found[1].step_s for _, found in rows(model, (1,))} == {1.0}


def test_ranks_of_one_node_need_no_network():
    model = StepModel(TIMED, 2, LINK)
    assert model.predict(CommMethod("ddp"), 1).exposed_s == 0
    assert (
        model.predict(CommMethod("ddp"), 2).exposed_s
        > StepModel(TIMED, 1, LINK).predict(CommMethod("ddp"), 2).exposed_s
    )


def test_auto_is_the_choice_of_a_training_that_measures_so():
    model = StepModel(TIMED, 1, LINK)
    assert model.chosen(2).name == "localsgd"
    fast = StepModel(TIMED, 1, Link(10_000.0, efficiency=1.0, latency_s=0.0))
    assert fast.chosen(2).name == "ddp"


def test_a_cell_without_ddp_has_one_row():
    model = StepModel(of_times(own=[step(1.0, (0.9, GB))]), 1, LINK)
    ((name, found),) = rows(model, (1, 2))
    assert (name, found[1].step_s, found[2].step_s) == ("own", 1.0, 2.0)
    assert list(rows(StepModel(of_times(), 1, LINK), (1, 2))) == []


def test_what_was_not_timed_has_no_row():
    model = StepModel(of_times(alone=[step(1.0)], ddp=[step(1.0, (0.5, GB))]), 1, LINK)
    assert model.methods == ("ddp",)


def test_steps_of_an_epoch():
    shared = Epoch(batches=4, samples=100, batch_size=10, shared=True)
    assert [epoch_steps(shared, ranks) for ranks in (1, 2, 3)] == [10, 5, 4]
    whole = Epoch(batches=10, samples=100, batch_size=10)
    assert [epoch_steps(whole, ranks) for ranks in (1, 2, 3)] == [10, 10, 10]


def test_some_numbers_of_nodes_stand_for_many():
    assert node_counts(3) == (1, 2, 3)
    assert node_counts(40) == (1, 2, 4, 8, 16, 32, 40)


def test_parts_of_memory_add_up_to_the_peak():
    sizes = Sizes(weights=10, gradients=10, optimizer=20)
    timed = RankFindings(rank=0, ended=Ended.STEPS, sizes=sizes, growth_bytes=100)
    traced = RankFindings(rank=1, ended=Ended.STEPS, traced=Traced(peak=75, left=45))
    found = memory_of(timed, traced)
    assert (found.activations, found.other, found.peak) == (30, 30, 100)
    assert memory_of(timed, None).peak == 100
