"""A cluster that is not left in peace: jobs run all the time, and one thing after the other befalls it.

What was done and what it cost is kept, for the table at the end.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from ..machines import LabError, Node
from ..machines.processes import wait_for
from .jobs import TERMINAL, WITHIN_S, Jobs, counting, kill, runs_again, task_containers
from .recovering import EVERY, FAULTS, steps

Say = Callable[[str], None]
SHORT_STEPS = 40
PLATFORM = ("service", "hub", "proxy")
"""The attempt goes on without them; of all else it dies."""


@dataclass
class Tally:
    """recovery_s: from the last step before each fault to the next one; lost_steps: those done again."""

    recovery_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost_steps: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    short_jobs: int = 0

    def note(self, fault: str, seconds: float, lost_steps: int) -> None:
        self.recovery_s[fault].append(seconds)
        self.lost_steps[fault].append(lost_steps)

    @property
    def faults(self) -> int:
        return sum(len(times) for times in self.recovery_s.values())

    def table(self) -> str:
        rows = [f"{'fault':14}{'times':>7}{'p50 s':>9}{'max s':>9}{'steps again':>13}{'most':>7}"]
        for fault, seconds in sorted(self.recovery_s.items()):
            again = self.lost_steps[fault]
            middle = statistics.median(seconds)
            rows.append(
                f"{fault:14}{len(seconds):>7}{middle:>9.2f}{max(seconds):>9.2f}{sum(again):>13}{max(again):>7}"
            )
        return "\n".join([*rows, f"short jobs that ran beside: {self.short_jobs}, all of them complete"])


class Chaos:
    """One long training, `job`, is struck again and again, by what `chance` says."""

    def __init__(self, jobs: Jobs, job: int, chance: random.Random, tally: Tally, say: Say) -> None:
        self.jobs, self.job, self.chance, self.tally, self.say = jobs, job, chance, tally, say
        self.cluster = jobs.cluster
        on_nodes = {name: self._of_node(name) for name in FAULTS}
        on_platform = {role: self._of_role(role) for role in PLATFORM}
        self.faults = {**on_nodes, "agent": self.kill_an_agent, **on_platform}
        self._round: list[str] = []

    def one_more(self) -> None:
        """Have one thing happen, and see that the training and a job beside it go on."""
        name = self._next_fault()
        attempt, ranks = self._under_way()
        struck_at = time.time()
        undo = self.faults[name]()
        try:
            now = self._wait_step(attempt if name in PLATFORM else attempt + 1, time.time())
        finally:
            undo()
        if now == attempt:
            seconds, again, first = self._pause(attempt, struck_at), 0, EVERY + 1
        else:
            seconds, again, first = self._recovery(attempt, ranks, now)
        self.tally.note(name, seconds, again)
        self.say(f"{name}: a pause of {seconds:.2f} s, {again} steps again")
        assert first > EVERY, f"it began anew: {self.jobs.story(self.job)}"
        self._beside()

    def _next_fault(self) -> str:
        """Return what comes next: all of them by turns, in an order of its own in each round."""
        if not self._round:
            self._round = self.chance.sample(sorted(self.faults), len(self.faults))
        return self._round.pop()

    def _under_way(self) -> tuple[int, int]:
        """Wait until the training has a snapshot in this attempt; return the attempt and its ranks."""
        found: list[int] = []

        def look() -> bool:
            job = self.jobs.job(self.job)
            found[:] = [job["attempt"], len(job["nodes"])]
            return job["state"] == "running" and len(steps(self.jobs, self.job, found[0])) > 2 * EVERY

        self._wait(look, "steps")
        return found[0], found[1]

    def _wait_step(self, attempt: int, moment: float) -> int:
        """Wait for a step of an attempt, or of a later one, after a moment; return the attempt."""
        now = attempt

        def look() -> bool:
            nonlocal now
            now = self.jobs.job(self.job)["attempt"]
            return now >= attempt and any(at > moment for at in steps(self.jobs, self.job, now).values())

        self._wait(look, "the next step")
        return now

    def _pause(self, attempt: int, struck_at: float) -> float:
        """Return a rank's longest pause between two steps, from the fault until it is undone."""
        self._wait_step(attempt, time.time())
        seen = steps(self.jobs, self.job, attempt).values()
        times = sorted(at for at in seen if at > struck_at - 1)
        return max(later - earlier for earlier, later in pairwise(times))

    def _recovery(self, attempt: int, ranks: int, now: int) -> tuple[float, int, int]:
        """Return the pause before a later attempt's first step, how many were done again, and its number."""
        after = steps(self.jobs, self.job, now)
        first = min(after)
        done = [one for rank in range(ranks) for one in steps(self.jobs, self.job, attempt, rank).items()]
        pause_s = after[first] - max(at for _, at in done)
        return pause_s, max(0, max(step for step, _ in done) + 1 - first), first

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        def seen() -> bool:
            job = self.jobs.job(self.job)
            assert job["state"] not in TERMINAL, (job, self.jobs.story(self.job))
            return look()

        try:
            wait_for(seen, f"{what} of job {self.job}", WITHIN_S, 0.2)
        except LabError as error:
            story, why = self.jobs.story(self.job), self.jobs.why(self.job)
            raise AssertionError(f"{error}: {story}\n{why}") from error

    def _beside(self) -> None:
        """A short job on any node runs once and is complete."""
        job = self.jobs.submit(counting(SHORT_STEPS, 0.02), nodes=1)
        done = self.jobs.wait(job)
        assert done["state"] == "succeeded", (done, self.jobs.story(job))
        told = [line for line in self.jobs.log(job).splitlines() if line.startswith("step ")]
        assert told == [f"step {number}" for number in range(SHORT_STEPS)], told
        self.tally.short_jobs += 1

    # --- what befalls it: each starts, and returns how it is undone ------------------------------

    def _of_node(self, fault: str) -> Callable[[], Callable[[], None]]:
        strike, undo = FAULTS[fault]

        def happen() -> Callable[[], None]:
            name = self.chance.choice(self.jobs.job(self.job)["nodes"])
            node = next(node for node in self.cluster.lab.nodes if node.name == name)
            self.say(f"{fault}: {name}")
            strike(node)
            return lambda: self._undo(node, undo)

        return happen

    def _undo(self, node: Node, undo: Callable[[Node], None]) -> None:
        undo(node)
        wait_for(lambda: self.jobs.nodes()[node.name]["up"], f"{node.name} to be up", WITHIN_S, 0.5)

    def _of_role(self, role: str) -> Callable[[], Callable[[], None]]:
        def happen() -> Callable[[], None]:
            self.say(f"{role}: killed")
            killed = kill(self.cluster, role)
            back = runs_again(self.cluster, role, killed)
            return lambda: wait_for(back, f"the {role} to be back", WITHIN_S, 0.5)

        return happen

    def kill_an_agent(self) -> Callable[[], None]:
        name = self.chance.choice(self.jobs.job(self.job)["nodes"])
        node = next(node for node in self.cluster.lab.nodes if node.name == name)
        self.say(f"agent: killed on {name}")
        found: list[str] = []

        def look() -> bool:
            found[:] = task_containers(self.cluster, node)
            return len(found) == 1

        # A short job's gang may be warm there for some seconds.
        self._wait(look, f"the only agent on {name}")
        self.cluster.docker("kill", *found, node=node)
        return lambda: None
