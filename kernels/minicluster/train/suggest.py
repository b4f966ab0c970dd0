"""mc.suggest: asks the sweep for one of its trial's parameters."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from minicluster.train.calls import WrongCall, called_as
from minicluster.train.trials import RunningTrial, SuggestFailed, running_trial
from minicluster.wire.sweeps.trials import CHOICE_CHARS, PARAMETER_CHARS, Choices, NumberRange

_LIKE = 'lr = mc.suggest("lr", 1e-5, 1e-1, log=True) or width = mc.suggest("width", [32, 64, 128])'
_PLAIN = (bool, int, float, str, type(None))
_FIX_LIKE = 'mc.fix_parameters({"lr": 0.01, "width": 64})'
_said: set[str] = set()
_fixed: dict[str, Any] = {}


@called_as(_FIX_LIKE)
def fix_parameters(parameters: Mapping[str, Any], /) -> None:
    """Have mc.suggest return these outside of a sweep: a trial again, or the best one with more epochs.

    parameters: by name; of a list of objects, the name that the sweep's table shows. The rest is as before.
    Raises WrongCall, also in a %%sweep.
    """
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise WrongCall("mc.fix_parameters() takes a dict of names and values.", f"Like this: {_FIX_LIKE}")
    if running_trial() is not None:
        raise WrongCall(
            "mc.fix_parameters() in a %%sweep would leave nothing to search for.",
            "Take the line out, or write %%distribute instead of %%sweep.",
        )
    _fixed.clear()
    _fixed.update(parameters)


@called_as(_LIKE)
def suggest(
    name: str,
    low: float | Sequence[Any],
    high: float | None = None,
    /,
    *,
    log: bool = False,
    step: float | None = None,
    int: bool = False,
) -> Any:
    """Return a parameter of this trial: `lr = mc.suggest("lr", 1e-5, 1e-1, log=True)`.

    With two numbers, a number from low to high, both included. log: values are drawn evenly by their
    logarithm. step: only low, low + step, and so on. int: only whole numbers. With a list, one of its items:
    `width = mc.suggest("width", [32, 64, 128])`. All ranks of a trial get the same, and so does a repeated
    attempt. Outside of a %%sweep it returns what mc.fix_parameters fixed, else the middle of the range or the
    first choice, and says so once. Raises SuggestFailed and WrongCall.
    """
    if not isinstance(name, str) or not 0 < len(name) <= PARAMETER_CHARS:
        raise WrongCall(
            f"mc.suggest() takes a name of 1 to {PARAMETER_CHARS} characters first.", f"Like this: {_LIKE}"
        )
    if high is None:
        choices = _choices(name, low, plain=not (log or step or int))
        if name in _fixed:
            return _fixed_choice(name, choices)
        index = round(_ask(name, Choices(choices=tuple(map(_label, choices))), 0.0))
        return choices[index]
    among = _range(name, low, high, log=log, step=step, whole=int)
    value = _fixed_number(name, among) if name in _fixed else _ask(name, among, _middle(among))
    return round(value) if int else value


def _choices(name: str, given: Any, *, plain: bool) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given or not plain:
        raise WrongCall(
            f"mc.suggest({name!r}) takes two numbers, or one list with at least one choice.",
            f"Like this: {_LIKE}",
        )
    return list(given)


def _label(choice: Any) -> Any:
    """Return a choice's name: the same on all ranks."""
    if isinstance(choice, float) and not math.isfinite(choice):
        return str(choice)
    if isinstance(choice, _PLAIN):
        return choice[:CHOICE_CHARS] if isinstance(choice, str) else choice
    text = getattr(choice, "__name__", None) or (repr(choice) if isinstance(choice, tuple | list) else None)
    return (text if isinstance(text, str) else type(choice).__name__)[:CHOICE_CHARS]


def _range(name: str, low: Any, high: Any, *, log: bool, step: float | None, whole: bool) -> NumberRange:
    try:
        return NumberRange(low=float(low), high=float(high), log=log, step=step, whole=whole)
    except (TypeError, ValueError) as error:
        problems = getattr(error, "errors", None)
        text = problems()[0]["msg"].removeprefix("Value error, ") if problems else str(error)
        raise WrongCall(f"mc.suggest({name!r}): {text}.", f"Like this: {_LIKE}") from None


def _middle(among: NumberRange) -> float:
    if among.log:
        middle = math.sqrt(among.low) * math.sqrt(among.high)
    else:
        middle = among.low + (among.high - among.low) / 2
    step = among.step or (1.0 if among.whole else None)
    if step is None:
        return middle
    return min(among.high, among.low + round((middle - among.low) / step) * step)


def _fixed_choice(name: str, choices: Sequence[Any]) -> Any:
    """Return the choice that is fixed: the object itself, or one of this name."""
    wanted = _fixed[name]
    for choice in choices:
        label = _label(choice)
        if choice is wanted or (label == wanted and type(label) is type(wanted)):
            return choice
    shown = ", ".join(repr(_label(choice)) for choice in choices)
    raise SuggestFailed(f"mc.suggest({name!r}) has the choices {shown}; {wanted!r} is fixed, which is none.")


def _fixed_number(name: str, among: NumberRange) -> float:
    wanted = _fixed[name]
    if isinstance(wanted, int | float) and among.low <= wanted <= among.high:
        return float(wanted)
    text = f"mc.suggest({name!r}) takes a number from {among.low:g} to {among.high:g}; {wanted!r} is fixed."
    raise SuggestFailed(text, f"Change the range, or the line with {_FIX_LIKE.partition('(')[0]}.")


def _ask(name: str, among: NumberRange | Choices, default: float) -> float:
    trial = running_trial()
    if trial is None:
        shown = among.choices[0] if isinstance(among, Choices) else default
        _say_once(name, shown)
        return default
    return _of_trial(trial, name, among)


def _of_trial(trial: RunningTrial, name: str, among: NumberRange | Choices) -> float:
    if os.getpid() != trial.pid:
        raise SuggestFailed(
            f"mc.suggest({name!r}) was called in a process that the cell started.",
            "Call it in the cell itself, and pass the value on.",
        )
    answer = trial.channel.ask("suggest", {"name": name, "among": among.model_dump(mode="json")})
    if answer is None:
        raise SuggestFailed(f"mc.suggest({name!r}): this rank's agent does not answer.")
    if "error" in answer:
        raise SuggestFailed(answer["error"], answer.get("hint", ""))
    return float(answer["value"])


def _say_once(name: str, value: Any) -> None:
    if name not in _said:
        _said.add(name)
        text = f"mc.suggest: outside of a sweep, {name} is {value!r}; %%sweep searches for a better one."
        print(text, file=sys.stderr)  # noqa: T201
