"""docs/scheduling.md: its custom policies work as written, and it names all policies and placements."""

import re
from pathlib import Path

import pytest

from minicluster.wire import PolicyChoice
from minicluster_hub.policy.choices import build, offered_policies
from minicluster_hub.policy.custom_policy import CustomPolicies, CustomPolicy
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.placement import PLACEMENTS
from minicluster_hub.scheduling.policies import POLICIES

from .small_lab import runs, snapshot, waits

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDE = (DOCS / "scheduling.md").read_text()
FEWEST, AT_NIGHT = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
MIDNIGHT = 20_000 * 86_400.0
HOUR_S = 3600.0


@pytest.fixture
def started(tmp_path):
    """Load a policy's file as the service does."""
    running, own = [], CustomPolicies.in_processes(tmp_path)

    def start(source, **options):
        (tmp_path / "ours.py").write_text(source)
        policy, placement = build(PolicyChoice(policy="ours", options=options), own)
        assert isinstance(policy, CustomPolicy)
        policy.load()
        running.append(policy)
        return policy, placement

    yield start
    for policy in running:
        policy.close()


def planned(policy, here):
    return [grant.job_id for grant in policy.plan(here).grants]


def test_a_policy_in_ten_lines_lets_those_go_first_who_have_fewest_slots(started):
    assert len(FEWEST[FEWEST.index("def plan") :].splitlines()) <= 10
    policy, placement = started(FEWEST)
    here = snapshot(
        runs(1, 6, owner="ada", movable=False),
        runs(2, 2, owner="bob", movable=False),
        waits(3, 2, owner="ada", since=0.0),
        waits(4, 2, owner="bob", since=10.0),
        waits(5, 2, owner="eve", since=20.0),
        waits(6, 8, owner="eve", since=30.0),
    )
    assert planned(policy, here) == [1, 2, 5, 6, 4, 3]
    placed = assign(here, policy, placement).places
    assert placed.keys() == {1, 2, 5}, "nobody overtakes the gang that does not fit yet"


def test_the_policy_with_options_starts_large_gangs_at_night(started):
    jobs = (runs(1, 2, since=MIDNIGHT), waits(2, 4, since=MIDNIGHT), waits(3, 1, since=MIDNIGHT + 1))
    policy, _ = started(AT_NIGHT)
    at_noon = snapshot(*jobs, now=MIDNIGHT + 12 * HOUR_S)
    assert planned(policy, at_noon) == [1, 3]
    assert policy.plan(at_noon).again_at == pytest.approx(MIDNIGHT + 20 * HOUR_S)
    in_the_evening = snapshot(*jobs, now=MIDNIGHT + 20 * HOUR_S)
    assert planned(policy, in_the_evening) == [1, 2, 3]
    assert policy.plan(in_the_evening).again_at is None
    others, _ = started(AT_NIGHT, large_slots=1, night_from_h=12.0)
    assert planned(others, at_noon) == [1, 2, 3]


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_has_three_lines_and_its_picture(name):
    found = re.search(rf"### `{name}`\n\n(.*?)\n\n!\[{name}\]\((.*?)\)", GUIDE, re.DOTALL)
    assert found, f"{name} is missing"
    text, picture = found.groups()
    assert 2 <= len(text.splitlines()) <= 3
    assert (DOCS / picture).read_text().startswith("<svg")


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_placement_is_told(name):
    assert f"\n| `{name}` | " in GUIDE


def test_every_link_and_every_option_that_is_named_is_there():
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (DOCS / target).is_file(), target
    offered = {option.name for policy in offered_policies() for option in policy.options}
    assert {"quantum_s", "age_bound_s"} <= offered
    assert "`age_bound_s`" in GUIDE and '"quantum_s"' in GUIDE
