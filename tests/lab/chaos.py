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

from .faults import WITHIN_S, Jobs, counting, kill, runs_again, task_containers
from .machines import Node
from .machines.processes import wait_for
from .recovering import EVERY, FAULTS, steps

Say = Callable[[str], None]
SHORT_STEPS = 40


@dataclass
class Tally:
    """recovery_s: from each fault to the next step; lost_steps: how many steps were done again."""

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
        on_platform = {role: self._of_role(role) for role in ("service", "hub", "proxy")}
        self.faults = {**on_nodes, "agent": self.kill_an_agent, **on_platform}

    def one_more(self) -> None:
        """Have one thing happen, and see that the training and a job beside it go on."""
        name = self.chance.choice(sorted(self.faults))
        attempt, before = self._now()
        struck_at = time.time()
        undo = self.faults[name]()
        try:
            step, at = self._next_step(struck_at, attempt)
        finally:
            undo()
        again = max(0, max(before) + 1 - step) if step <= max(before) else 0
        self.tally.note(name, at - struck_at, again)
        self.say(f"{name}: the next step after {at - struck_at:.2f} s, {again} steps again")
        assert step > EVERY, f"it began anew: {self.jobs.story(self.job)}"
        self._beside()

    def _now(self) -> tuple[int, dict[int, float]]:
        """Wait until the training is well under way; return its attempt and its steps."""

        def under_way() -> bool:
            attempt = self.jobs.job(self.job)["attempt"]
            return len(steps(self.jobs, self.job, attempt)) > 2 * EVERY

        wait_for(under_way, f"steps of job {self.job}: {self.jobs.story(self.job)}", WITHIN_S, 0.3)
        attempt = self.jobs.job(self.job)["attempt"]
        return attempt, steps(self.jobs, self.job, attempt)

    def _next_step(self, struck_at: float, attempt: int) -> tuple[int, float]:
        """Return the first step after the fault: of the next attempt, if this one does not go on."""
        found: list[tuple[float, int]] = []

        def seen() -> bool:
            now = self.jobs.job(self.job)["attempt"]
            later = steps(self.jobs, self.job, now).items()
            # What the ranks did before they heard of it does not count.
            grace_s = 0.0 if now > attempt else 1.0
            found[:] = sorted((at, step) for step, at in later if at > struck_at + grace_s)
            return bool(found)

        wait_for(seen, f"the next step of job {self.job}: {self.jobs.story(self.job)}", WITHIN_S, 0.1)
        return found[0][1], found[0][0]

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
        found = task_containers(self.cluster, node)
        if found:
            self.cluster.docker("kill", self.chance.choice(found), node=node)
        return lambda: None
