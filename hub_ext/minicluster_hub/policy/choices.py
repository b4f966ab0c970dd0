"""Builds the policy and the placement of a choice, and lists all policies and placements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from minicluster.wire import OfferedOption, OfferedPolicy, OptionValue, PolicyChoice
from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.policy.policy_files import KINDS
from minicluster_hub.scheduling.base import Placement, Policy
from minicluster_hub.scheduling.placement import PLACEMENTS
from minicluster_hub.scheduling.policies import POLICIES

_NONE = CustomPolicies()
_NO_FILE = ": none is built in, the folder of policies has no {}.py, and no installed package provides it"


class ChoiceRefused(Exception):
    """An unknown policy, placement or option, or a policy that failed its trial. code: the error's code."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


def build(choice: PolicyChoice, custom: CustomPolicies = _NONE) -> tuple[Policy, Placement]:
    """Return policy and placement of a choice; a custom policy is not loaded yet. Raises ChoiceRefused."""
    placement = _named(PLACEMENTS, choice.placement, "placement")()
    if choice.policy in POLICIES:
        made = _named(POLICIES, choice.policy, "policy")
        return made(**_checked(choice.policy, _options(made), choice.options)), placement
    if choice.policy in custom.names():
        return custom.policy(choice.policy, choice.options), placement
    raise _unknown("policy", choice.policy, sorted([*POLICIES, *custom.names()]), _NO_FILE)


def offered_policies(custom: CustomPolicies = _NONE) -> tuple[OfferedPolicy, ...]:
    """Return the built-in policies, then the custom ones."""
    built_in = (_offered(name, _named(POLICIES, name, "policy")) for name in sorted(POLICIES))
    return (*built_in, *custom.offered())


def offered_placements() -> tuple[OfferedPolicy, ...]:
    return tuple(_offered(name, _named(PLACEMENTS, name, "placement")) for name in sorted(PLACEMENTS))


def _named(table: Mapping[str, str], name: str, what: str) -> Any:
    """Return the class that the table lists under a name."""
    if name not in table:
        raise _unknown(what, name, sorted(table))
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def _unknown(what: str, name: str, there: Sequence[str], more: str = "") -> ChoiceRefused:
    message = f"there is no {what} {name!r}{more.format(name)}"
    return ChoiceRefused("unknown_name", message, f"There are: {', '.join(there)}.")


def _options(made: Any) -> tuple[OfferedOption, ...]:
    """Return a policy's options: the fields of its dataclass that have a simple value."""
    fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    return tuple(
        OfferedOption(name=field.name, kind=str(field.type), default=field.default)
        for field in fields
        if field.init and str(field.type) in KINDS and isinstance(field.default, (bool, int, float, str))
    )


def _offered(name: str, made: Any) -> OfferedPolicy:
    about = import_module(made.__module__).__doc__ or ""
    return OfferedPolicy(name=name, summary=about.strip().split("\n", 1)[0], options=_options(made))


def _checked(
    policy: str, options: tuple[OfferedOption, ...], values: Mapping[str, OptionValue]
) -> Mapping[str, OptionValue]:
    """Return the values, checked against the policy's options. Raises ChoiceRefused."""
    kinds = {option.name: option.kind for option in options}
    for name, value in values.items():
        if name not in kinds:
            there = ", ".join(sorted(kinds)) or "none"
            raise ChoiceRefused("unknown_option", f"{policy} has no option {name!r}", f"It has: {there}.")
        wanted = KINDS[kinds[name]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            message = f"{policy}'s option {name} is of the kind {kinds[name]}, and {value!r} is not"
            raise ChoiceRefused("bad_option", message)
    return values
