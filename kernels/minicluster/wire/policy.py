"""The order of jobs: the active policy and placement, the others that can be chosen, and a change of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from minicluster.wire.base import MOST, Message
from minicluster.wire.limits import OPTION_CHARS, Name

OptionValue = (
    bool | Annotated[int, Field(ge=-MOST, le=MOST)] | float | Annotated[str, Field(max_length=OPTION_CHARS)]
)


class PolicyChoice(Message):
    """PUT api/policy. options: of the policy, by name, an option that is left out has its default."""

    policy: str = Field(min_length=1, max_length=64)
    placement: str = Field(default="pack", min_length=1, max_length=64)
    options: dict[Name, OptionValue] = Field(default_factory=dict, max_length=32)


class OfferedOption(Message):
    """kind: of its value: int, float, bool or str."""

    name: str
    kind: str
    default: OptionValue


class OfferedPolicy(Message):
    """A policy or a placement that can be chosen. summary: what it does, in a line.

    distribution: the installed package that brings it, with its version; "": it is built in, or a file of the
    lab's own.
    """

    name: str
    summary: str
    options: tuple[OfferedOption, ...] = ()
    distribution: str = ""


class ActivePolicy(Message):
    """The active policy. since: seconds since the epoch. by: who chose it, "": the cluster's settings."""

    choice: PolicyChoice
    by: str = ""
    since: float = 0.0


class WhatIfFigures(Message):
    """Of the same jobs under one policy. Times are in seconds; average, median and p99 of the time from a
    job's submission to its end.

    restarts: moves per job. evenness: Jain's index of the users' slowdown, 1: equal for all.
    busy: the slots' utilization, from 0 to 1.
    """

    average_s: float
    median_s: float
    p99_s: float
    longest_wait_s: float
    makespan_s: float
    restarts: float
    evenness: float
    busy: float


class WhatIfRow(Message):
    """trouble: why there are no figures."""

    policy: str
    figures: WhatIfFigures | None = None
    trouble: str = ""


class WhatIfReport(Message):
    """GET api/policy/what-if: how each policy would have run the jobs of a period.

    jobs: how many were simulated. left_out: how many were not: they do not fit on this cluster now, or are
    too many. really: the figures of what actually happened. assumed: the simulator's assumptions, in words.
    """

    since: float
    until: float
    jobs: int
    left_out: int = 0
    placement: str
    really: WhatIfFigures | None = None
    policies: tuple[WhatIfRow, ...] = ()
    assumed: tuple[str, ...] = ()


class PolicyReport(Message):
    """GET api/policy. trouble: why the service took back the one before, "" if it did not.

    batch_queue: the queue of others that orders the jobs, as people call it: no policy can be chosen then;
    "": the active policy orders them. shadow: for admins, the last result of GET api/policy/what-if.
    """

    in_force: ActivePolicy
    trouble: str = ""
    batch_queue: str = ""
    policies: tuple[OfferedPolicy, ...] = ()
    placements: tuple[OfferedPolicy, ...] = ()
    shadow: WhatIfReport | None = None
