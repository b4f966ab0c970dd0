"""A trial of a sweep: what its ranks know of it, and what they ask while they run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from minicluster.wire.base import MOST, Count, Message

PARAMETER_CHARS = 100
CHOICE_CHARS = 200
MOST_CHOICES = 100
MOST_PARAMETERS = 100
"""Of one trial."""

ParameterName = Annotated[str, Field(min_length=1, max_length=PARAMETER_CHARS)]
_Number = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
_Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
Choice = bool | _Whole | _Number | Annotated[str, Field(max_length=CHOICE_CHARS)] | None
"""A choice as people see it: a plain value, or the name of any other object."""


class TrialRef(Message):
    """Which trial a job is. metric: the name that decides; prunes: whether the trial may end early."""

    sweep: Count
    number: Count
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    prunes: bool = False


class NumberRange(Message):
    """Numbers from low to high, both included. log: their logarithms are drawn evenly. step: from low on.

    whole: only whole numbers.
    """

    kind: Literal["number"] = "number"
    low: _Number
    high: _Number
    log: bool = False
    step: Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False)] | None = None
    whole: bool = False

    @model_validator(mode="after")
    def _sound(self) -> NumberRange:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, which is above high, {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log=True takes only numbers above 0, and low is {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log=True and step= exclude each other")
        if self.whole:
            self._check_whole()
        return self

    def _check_whole(self) -> None:
        for name, value in (("low", self.low), ("high", self.high), ("step", self.step or 1.0)):
            if value != int(value) or abs(value) > MOST:
                raise ValueError(f"int=True takes only whole numbers, and {name} is {value:g}")


class Choices(Message):
    """A list to choose from. The rank has the objects; the service sees their names and answers an index."""

    kind: Literal["choices"] = "choices"
    choices: tuple[Choice, ...] = Field(min_length=1, max_length=MOST_CHOICES)


Among = Annotated[NumberRange | Choices, Field(discriminator="kind")]


class SuggestParameter(Message):
    """POST api/tasks/suggest: a parameter of an attempt's trial. All ranks get the same answer."""

    attempt: Count
    name: ParameterName
    among: Among


class SuggestedParameter(Message):
    """value: a number of the range, or the index of the choice."""

    value: float


class DrawAhead(Message):
    """POST api/tasks/draw-ahead: draw what an attempt's trial will probably ask for, as all before it did."""

    attempt: Count


class DrawnParameter(SuggestedParameter):
    """A parameter that was drawn before a rank asked for it."""

    name: ParameterName
    among: Among


class DrawnParameters(Message):
    """Empty for the first trials of a sweep. What is asked for nevertheless differently is drawn then."""

    drawn: tuple[DrawnParameter, ...] = Field(default=(), max_length=MOST_PARAMETERS)


class LeaveTrial(Message):
    """POST api/tasks/leave: the ranks of a pruned trial leave at this call of mc.log with the metric.

    step: of that call, if it has one.
    """

    attempt: Count
    call: Count
    step: float | None = None
