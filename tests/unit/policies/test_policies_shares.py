"""The characteristic behaviour of policies by past usage of jobs and owners."""

from dataclasses import replace
from math import inf

import pytest

from minicluster_hub.scheduling.base import Usage
from minicluster_hub.scheduling.policies.fair_share import FairShare
from minicluster_hub.scheduling.policies.las import Las

from ..scheduling.small_lab import NOW, again_in_s, planned, runs, waits


class TestLas:
    rule = Las(thresholds_slot_s=(1200.0, 120_000.0), promoted_after=8.0)

    @pytest.mark.parametrize("least", [2, 9, 12])
    def test_one_that_lost_nodes_has_its_moments_or_none(self, least):
        again_s = again_in_s(Las(promoted_after=16.0), runs(1, 1, least=least, most=least), waits(2, 12))
        assert again_s is None or again_s > 0

    def test_a_newcomer_takes_slots_from_who_has_had_its_first_portion(self):
        """Twelve slots for 100 s are 1,200 slot-seconds."""
        jobs = [runs(1, 12, since=NOW - 100.0), waits(2, 12)]
        assert planned(self.rule, *jobs) == {2: 12}

    def test_inside_a_queue_nobody_loses_slots(self):
        jobs = [runs(1, 12, since=NOW - 99.0), waits(2, 12, since=NOW - 5000.0)]
        assert planned(self.rule, *jobs) == {1: 12}
        assert again_in_s(self.rule, *jobs) == 1.0, "when job 1 falls to the second queue"
        jobs = [runs(1, 12, since=NOW - 99.999), waits(2, 12, since=NOW - 5000.0)]
        assert again_in_s(self.rule, *jobs) == 1.0, "never sooner: rounding must not make it ask for ever"

    def test_inside_a_queue_it_is_first_in_first_out(self):
        assert list(planned(self.rule, waits(2, 5), waits(1, 5, since=NOW - 90.0))) == [1, 2]

    def test_each_queue_goes_before_the_next(self):
        used = [
            waits(number, 12, consumed_slot_s=12 * had_s) for number, had_s in ((1, 2e4), (2, 9e3), (3, 9.0))
        ]
        used = [replace(job, submitted_at=NOW - 20_100.0) for job in used]
        patient = replace(self.rule, promoted_after=inf)
        assert planned(patient, *used) == {3: 12}
        assert planned(patient, *used[:2]) == {2: 12}

    def test_who_waited_for_many_times_its_run_is_promoted_and_stays_for_as_long_as_it_has_run(self):
        """Job 1 has run for 200 s on 12 slots: it is promoted after waiting for 1,600 s."""
        ran = {"consumed_slot_s": 2400.0}
        newcomer = waits(2, 12)
        started_at = NOW - 1600.0 - 200.0
        assert planned(self.rule, waits(1, 12, submitted_at=started_at, **ran), newcomer) == {2: 12}
        promoted = {"submitted_at": started_at - 1.0, **ran}
        assert planned(self.rule, waits(1, 12, **promoted), newcomer) == {1: 12}
        for ran_s, expected in ((199.0, {1: 12}), (201.0, {2: 12})):
            again = runs(
                1, 12, **{**promoted, "submitted_at": started_at - 1.0 - ran_s, "since": NOW - ran_s}
            )
            assert planned(self.rule, again, newcomer) == expected
            if ran_s == 199.0:
                assert again_in_s(self.rule, again, newcomer) == pytest.approx(1.25), (
                    "5 s less than 4 times 399"
                )


class TestFairShare:
    rule = FairShare(kept_after_s=3600.0)

    def test_who_has_had_least_by_weight_is_first(self):
        jobs = [waits(1, 12, owner="ada"), waits(2, 12, owner="bob")]
        usage = {"ada": Usage(1e6), "bob": Usage(9e5)}
        assert planned(self.rule, *jobs, usage=usage) == {2: 12}
        assert planned(self.rule, *jobs, usage={**usage, "ada": Usage(1e6, weight=2.0)}) == {1: 12}

    def test_two_owners_who_come_at_once_share(self):
        jobs = [waits(number, 3, owner="ada") for number in range(1, 5)]
        jobs += [waits(number, 3, owner="bob") for number in range(5, 9)]
        assert planned(self.rule, *jobs) == {1: 3, 2: 3, 5: 3, 6: 3}
        assert planned(self.rule, *jobs, usage={"ada": Usage(weight=3.0)}) == {1: 3, 2: 3, 3: 3, 5: 3}

    def test_who_is_alone_borrows_everything(self):
        assert planned(self.rule, *(waits(number, 4) for number in (1, 2, 3))) == {1: 4, 2: 4, 3: 4}

    def test_what_was_borrowed_is_taken_back_but_not_a_share(self):
        """Ada has all twelve slots, and her share is six; her latest jobs give slots back first."""
        ada = [runs(number, 3, since=NOW - 5000.0 + number) for number in (1, 2, 3, 4)]
        bob = [waits(number, 3, owner="bob") for number in (5, 6, 7)]
        assert planned(self.rule, *ada, *bob) == {1: 3, 2: 3, 5: 3, 6: 3}

    def test_borrowers_take_turns(self):
        """A share is four slots; cid does not use three of his."""
        jobs = [waits(number, owner="ada") for number in range(1, 9)]
        jobs += [waits(number, owner="bob") for number in range(11, 19)]
        found = planned(self.rule, runs(20, 1, owner="cid"), *jobs)
        assert sum(number < 10 for number in found) == 6 and len(found) == 12

    def test_what_may_not_be_moved_is_not_taken_back(self):
        ada = [runs(number, 6, movable=False) for number in (1, 2)]
        assert planned(self.rule, *ada, waits(3, 6, owner="bob")) == {1: 6, 2: 6}

    def test_slots_are_kept_for_a_large_gang_that_has_waited_for_long(self):
        ada = runs(1, 6, movable=False, time_limit_s=90_000.0)
        small = [waits(number, 3, owner="cid", time_limit_s=99_000.0) for number in (3, 4)]
        gang = waits(2, 10, owner="bob", since=NOW - 3500.0)
        assert planned(self.rule, ada, gang, *small) == {1: 6, 3: 3, 4: 3}
        assert again_in_s(self.rule, ada, gang, *small) == 100.0
        patient = replace(gang, since=NOW - 3600.0)
        assert planned(self.rule, ada, patient, *small) == {1: 6}
        fits = replace(patient, min_replicas=6)
        assert planned(self.rule, ada, fits, *small, usage={"bob": Usage(1e6)}) == {1: 6, 2: 6}
