"""The example notebooks to their ends on one machine, as `./run` has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from .. import notebooks

pytestmark = [
    pytest.mark.full("minutes of training for each example; the gate has the quickstart, in a browser"),
    pytest.mark.timeout(1200),
]


async def test_the_quickstart(ada: Visitor, tree: Path) -> None:
    async with open_kernel(ada, "quickstart.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "quickstart.ipynb")
        await notebooks.check_quickstart(kernel, cells)


async def test_ranks_that_stay(ada: Visitor, tree: Path) -> None:
    async with open_kernel(ada, "fast_hands.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "fast_hands.ipynb")
        await notebooks.check_fast_hands(kernel, cells)


async def test_the_papers_experiment_on_one_node_two_and_three(ada: Visitor, tree: Path) -> None:
    async with open_kernel(ada, notebooks.EXPERIMENT) as kernel:
        cells = await notebooks.run_all(kernel, tree, notebooks.EXPERIMENT)
        await notebooks.check_experiment(kernel, cells)
        accuracies = [
            await notebooks.value(kernel, f"{name}['accuracy']") for name in ("one", "two", "three")
        ]
    # There are ten digits: a guess is right once in ten times, and these few steps teach some of them.
    assert accuracies[0] > 0.3, accuracies


async def test_one_mix_of_jobs_under_three_policies(admin: Visitor, tree: Path) -> None:
    async with open_kernel(admin, "schedulearn.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "schedulearn.ipynb", notebooks.SHORT_MIX)
        await notebooks.check_policies(kernel, cells)


async def test_who_may_not_choose_a_policy_is_told_who_may(ada: Visitor, tree: Path) -> None:
    async with open_kernel(ada, "schedulearn.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "schedulearn.ipynb", notebooks.SHORT_MIX)
        await notebooks.check_one_policy(kernel, cells)


async def test_where_ranks_are_and_what_they_send(ada: Visitor, tree: Path) -> None:
    async with open_kernel(ada, "placement.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "placement.ipynb", notebooks.SHORT_TRAFFIC)
        await notebooks.check_traffic(kernel, cells)
        await notebooks.check_nothing_to_choose(kernel, cells)


async def test_what_a_lost_node_costs(ada: Visitor, tree: Path) -> None:
    pytest.importorskip("torchft")
    async with open_kernel(ada, "fault_tolerance.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "fault_tolerance.ipynb")
        await notebooks.check_losses(kernel, cells)


async def test_storms_in_large_pictures(ada: Visitor, tree: Path) -> None:
    pytest.importorskip("litserve")
    async with open_kernel(ada, "storm_images.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "storm_images.ipynb", notebooks.FEW_STORMS)
        await notebooks.check_storms(kernel, cells, machines=1)
