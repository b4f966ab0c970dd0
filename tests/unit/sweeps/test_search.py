"""The search of a sweep: what it draws, what it prunes, and that it can be made again from the store."""

import math

import pytest

from minicluster.wire import JobState
from minicluster.wire.sweeps.sweeps import PruneMethod, SearchMethod, SweepSettings, TrialState
from minicluster.wire.sweeps.trials import Choices, NumberRange
from minicluster_hub.store.jobs.sweeps import ParameterRecord, TrialRecord
from minicluster_hub.sweeps.ranking import best_of
from minicluster_hub.sweeps.search import History, Search, SuggestRefused, grid_points

X = NumberRange(low=-2, high=2)
KIND = Choices(choices=("plain", "wide", "deep"))


def settings(**more):
    return SweepSettings(**{"metric": "loss", "seed": 1, **more})


def record(number, state=None, value=None):
    return TrialRecord(
        sweep_id=1,
        number=number,
        job_id=100 + number,
        state=state,
        value=value,
        step=None,
        pruned_at=None,
        left_at=None,
        left_step=None,
        error="",
        created_at=1.0,
        ended_at=float(number) if state else None,
        job_state=JobState.SUCCEEDED if state else JobState.RUNNING,
        started_at=1.0,
        job_ended_at=None,
    )


def run(search, number, x=None, steps=3):
    """Run a trial of (x - 1)² that converges; return what it drew, and whether it was pruned."""
    drawn = search.suggest(number, "x", X)
    loss = (drawn - 1) ** 2
    for step in range(steps):
        if search.report(number, [(step, loss + 1 / (1 + step))]):
            search.tell(number, TrialState.PRUNED, None)
            return drawn, True
    search.tell(number, TrialState.COMPLETE, loss)
    return drawn, False


def test_a_trial_gets_the_same_parameter_whenever_it_asks():
    search = Search(settings(), History())
    first = [search.suggest(0, "x", X), search.suggest(0, "kind", KIND)]
    assert [search.suggest(0, "x", X), search.suggest(0, "kind", KIND)] == first
    assert search.suggest(1, "x", X) != first[0]


@pytest.mark.parametrize("method", [SearchMethod.TPE, SearchMethod.RANDOM, SearchMethod.CMAES])
def test_what_all_trials_asked_for_is_drawn_ahead_and_counts_once_it_is_asked_for(method):
    search = Search(settings(search=method), History())
    assert search.draw_ahead(0) == []
    for number in range(12):
        search.suggest(number, "kind", KIND)
        if number % 2:
            search.suggest(number, "sometimes", X)
        run(search, number)
    ahead = {one.name: one for one in search.draw_ahead(12)}
    assert list(ahead) == ["kind", "x"]
    assert ahead["kind"].value in (0, 1, 2) and -2 <= ahead["x"].value <= 2
    assert search.suggest(12, "x", X, given=ahead["x"].value) == ahead["x"].value
    assert search.suggest(12, "x", X) == ahead["x"].value
    assert [one.name for one in search.draw_ahead(12)] == ["kind"]
    search.tell(12, TrialState.COMPLETE, 1.0)
    assert [one.name for one in search.draw_ahead(13)] == ["x"], "trial 12 did not ask for kind"
    assert 5 <= search.suggest(13, "x", NumberRange(low=5, high=6)) <= 6


def test_trials_of_before_a_restart_tell_what_is_drawn_ahead():
    history = History(
        [record(0, TrialState.COMPLETE, 1.0), record(1, TrialState.FAILED), record(2)],
        {
            0: [ParameterRecord("x", X, 0.5), ParameterRecord("kind", KIND, 1.0)],
            2: [ParameterRecord("x", X, 1.5)],
        },
        {},
    )
    search = Search(settings(), history)
    assert [one.name for one in search.draw_ahead(2)] == ["kind"]
    assert [one.name for one in search.draw_ahead(3)] == ["x", "kind"]


def test_nothing_is_drawn_ahead_on_a_grid():
    search = Search(settings(search=SearchMethod.GRID), History())
    search.suggest(0, "kind", KIND)
    search.tell(0, TrialState.COMPLETE, 1.0)
    assert search.draw_ahead(1) == []


@pytest.mark.parametrize("method", [SearchMethod.TPE, SearchMethod.CMAES])
def test_the_search_comes_closer_to_the_optimum(method):
    search = Search(settings(search=method, prune=PruneMethod.NONE), History())
    drawn = [run(search, number)[0] for number in range(30)]
    assert abs(min(drawn, key=lambda x: abs(x - 1)) - 1) < 0.2
    late = sorted(abs(x - 1) for x in drawn[20:])
    assert late[len(late) // 2] < 0.6


def test_bad_trials_are_pruned_once_there_are_some_to_compare_with():
    search = Search(settings(search=SearchMethod.RANDOM), History())
    found = [run(search, number) for number in range(30)]
    assert not any(pruned for _, pruned in found[:5])
    pruned, kept = ([abs(x - 1) for x, early in found[5:] if early is which] for which in (True, False))
    assert pruned
    assert kept
    assert sum(pruned) / len(pruned) > sum(kept) / len(kept)


def test_steps_that_come_together_are_compared_one_by_one():
    search = Search(settings(search=SearchMethod.RANDOM), History())
    for number in range(5):
        search.suggest(number, "x", X)
        search.report(number, [(0, number / 10), (1, number / 10)])
        search.tell(number, TrialState.COMPLETE, number / 10)
    search.suggest(5, "x", X)
    assert search.report(5, [(step, 99.0) for step in range(8)]), "no other trial has a step 7"


def test_nothing_is_pruned_without_a_pruner():
    search = Search(settings(prune=PruneMethod.NONE), History())
    assert not any(run(search, number)[1] for number in range(15))


def test_a_search_made_again_knows_its_trials_and_draws_no_trial_twice():
    before = Search(settings(search=SearchMethod.RANDOM), History())
    drawn = {number: run(before, number)[0] for number in range(6)}
    running = before.suggest(6, "x", X)
    trials = [record(number, TrialState.COMPLETE, (x - 1) ** 2) for number, x in drawn.items()]
    history = History(
        [*trials, record(6), record(7)],
        {number: [ParameterRecord("x", X, x)] for number, x in {**drawn, 6: running}.items()},
        {number: {0.0: 1.0, 1.0: 0.5} for number in drawn} | {6: {0.0: 9.0}},
    )
    after = Search(settings(search=SearchMethod.RANDOM), history)
    assert after.suggest(6, "x", X) == running
    fresh = [after.suggest(number, "x", X) for number in (7, 8, 9)]
    assert not {*fresh} & {*drawn.values(), running}
    assert after.report(6, [(1, 9.0)])
    after.tell(6, TrialState.PRUNED, None)


def test_choices_that_change_are_refused():
    search = Search(settings(), History())
    search.suggest(0, "kind", KIND)
    with pytest.raises(SuggestRefused, match="choices differ"):
        search.suggest(1, "kind", Choices(choices=("plain", "wide")))


def test_a_value_that_is_no_number_prunes_nothing():
    search = Search(settings(), History())
    search.suggest(0, "x", X)
    assert not search.report(0, [(0, math.nan)])
    search.tell(0, TrialState.FAILED, None)


def test_importance_names_the_parameter_that_matters():
    search = Search(settings(search=SearchMethod.RANDOM, prune=PruneMethod.NONE), History())
    assert search.importance() == {}
    for number in range(40):
        x, _ = search.suggest(number, "x", X), search.suggest(number, "idle", X)
        search.tell(number, TrialState.COMPLETE, (x - 1) ** 2)
    shares = search.importance()
    assert shares["x"] > 0.7
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_grid_with_conditions_is_walked_once():
    search, found = Search(settings(search=SearchMethod.GRID), History()), []
    while search.has_more():
        number = len(found)
        search.start(number)
        kind = search.suggest(number, "kind", KIND)
        depth = search.suggest(number, "depth", NumberRange(low=1, high=2, whole=True)) if kind else None
        found.append((kind, depth))
        search.tell(number, TrialState.COMPLETE, 1.0)
    assert sorted(found, key=str) == [(0.0, None), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)]


def test_trials_at_the_same_time_take_different_points_of_a_grid():
    search = Search(settings(search=SearchMethod.GRID), History())
    search.start(0)
    assert not search.has_more(), "nobody knows the grid before the first trial has asked"
    drawn = {search.suggest(0, "kind", KIND)}
    for number in (1, 2):
        assert search.has_more()
        search.start(number)
        drawn.add(search.suggest(number, "kind", KIND))
    assert drawn == {0.0, 1.0, 2.0}
    assert not search.has_more()


@pytest.mark.parametrize(
    ("among", "points"),
    [
        (NumberRange(low=0, high=1, step=0.25), [0, 0.25, 0.5, 0.75, 1]),
        (NumberRange(low=1, high=3, whole=True), [1, 2, 3]),
        (NumberRange(low=5, high=5), [5]),
        (KIND, [0, 1, 2]),
    ],
)
def test_the_points_of_a_grid(among, points):
    assert grid_points("x", among) == pytest.approx(points)


@pytest.mark.parametrize(
    "among", [X, NumberRange(low=1, high=9, log=True), NumberRange(low=0, high=1, step=1e-4)]
)
def test_a_range_without_steps_has_no_grid(among):
    with pytest.raises(SuggestRefused, match="x"):
        grid_points("x", among)


def test_the_best_trial_is_complete_and_the_first_of_equal_ones():
    trials = [
        record(0, TrialState.FAILED, 0.0),
        record(1, TrialState.COMPLETE, 0.5),
        record(2, TrialState.COMPLETE, 0.5),
        record(3, TrialState.PRUNED, 0.1),
        record(4, TrialState.COMPLETE, 0.7),
        record(5),
    ]
    assert best_of(settings(), trials).number == 1
    assert best_of(settings(maximize=True), trials).number == 4
    assert best_of(settings(), trials[:1]) is None
