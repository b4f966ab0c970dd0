"""A training's progress, from its loops with bars."""

import math

import pytest
import torch

from minicluster.train.whole import Whole


class Loader:
    """Like a loader of mc.prepare() that resumes within a pass."""

    def __init__(self, consumed=0):
        self.dataset = range(100)
        self.epoch = 3
        self._consumed = consumed

    def state_dict(self):
        return {"epoch": 3, "consumed": self._consumed, "within": self._consumed > 0}


def test_a_loop_over_epochs_tells_all():
    here = Whole()
    epochs = here.begin(range(20), 20)
    assert (here.done, here.total) == (0, 20)
    epochs.done = 3
    assert (here.done, here.total) == (3, 20)


def test_loops_within_it_refine_it_and_it_never_falls():
    here = Whole()
    epochs = here.begin(range(20), 20)
    epochs.done = 3
    training = here.begin(Loader(), 10)
    training.done = 5
    assert here.done == pytest.approx(3.5)
    here.end(training)
    testing = here.begin(Loader(), 4)
    testing.done = 1
    assert here.done == pytest.approx(3.5)
    here.end(testing)
    epochs.done = 4
    assert (here.done, here.total) == (4, 20)


def test_a_pass_through_the_data_tells_the_speed_but_not_how_many_come():
    here = Whole()
    for _ in range(2):
        loop = here.begin(Loader(), 10)
        loop.done = 5
        assert here.total is None
        loop.done = 10
        here.end(loop)
    assert here.done == pytest.approx(2.0)


def test_a_pass_that_goes_on_begins_where_it_was():
    here = Whole()
    loop = here.begin(Loader(consumed=40), 10)
    assert here.done == pytest.approx(0.4)
    loop.done = 6
    assert here.done == pytest.approx(1.0)


def test_of_several_loops_one_after_the_other_nobody_knows_how_many_come():
    here = Whole()
    here.end(here.begin(range(5), 5))
    here.begin(range(5), 5)
    assert here.total is None


def test_a_loop_that_is_left_takes_those_within_it_along():
    here = Whole()
    outer = here.begin(range(3), 3)
    inner = here.begin(range(5), 5)
    here.end(outer)
    here.end(inner)
    assert here.total is None and here.begin(range(2), 2) is not None


@pytest.mark.parametrize("total", [None, math.inf, math.nan, -1, 0])
def test_a_total_that_is_none_tells_no_end(total):
    here = Whole()
    outer = here.begin(iter("abc"), total)
    outer.done = 2
    here.begin(iter("abc"), total).done = 1
    assert here.done == 2 and not here.total


def test_a_models_gradients_count_once_and_the_first_optimizers_steps():
    here, model = Whole(), torch.nn.Linear(8, 2)
    model.bias.requires_grad_(False)
    first, second = (torch.optim.SGD([model.weight], lr=0.1) for _ in range(2))
    for _ in range(2):
        here.add(model)
        here.follow(first)
    here.follow(second)
    first.step()
    second.step()
    assert (here.gradient_bytes, here.steps) == (8 * 2 * 4, 1)
    assert "stepped" not in str(first.state_dict())


def test_a_strangers_loader_is_left_alone():
    class Stateful:
        dataset = iter("abc")

        def state_dict(self):
            raise AssertionError

    assert Whole().begin(Stateful(), None).passes
