"""From a choice to a policy and a placement, and what there is to choose from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from minicluster.wire import OfferedOption, OfferedPolicy, OptionValue, PolicyChoice
from minicluster_hub.rules.errors import ChoiceRefused
from minicluster_hub.rules.installed import installed, offered_installed
from minicluster_hub.rules.own import OwnPolicy
from minicluster_hub.scheduling.base import Placement, Policy
from minicluster_hub.scheduling.placement import PLACEMENTS
from minicluster_hub.scheduling.policies import POLICIES

_KINDS = {"bool": bool, "int": int, "float": (int, float), "str": str}


def build(choice: PolicyChoice) -> tuple[Policy, Placement]:
    """Return what a choice means; a lab's own policy is yet to be loaded. Raises ChoiceRefused."""
    placement = _named(PLACEMENTS, choice.placement, "placement")()
    if choice.source is not None:
        return OwnPolicy(choice.policy, choice.options, choice.source), placement
    if choice.policy not in POLICIES and choice.policy in (brought := installed()):
        return OwnPolicy(choice.policy, choice.options, None, brought[choice.policy]), placement
    made = _named(POLICIES, choice.policy, "policy")
    return made(**_checked(choice.policy, _options(made), choice.options)), placement


def offered_policies() -> tuple[OfferedPolicy, ...]:
    """Return the built-in ones, then those of installed packages."""
    built_in = (_offered(name, _named(POLICIES, name, "policy")) for name in sorted(POLICIES))
    return (*built_in, *offered_installed())


def offered_placements() -> tuple[OfferedPolicy, ...]:
    return tuple(_offered(name, _named(PLACEMENTS, name, "placement")) for name in sorted(PLACEMENTS))


def _named(table: Mapping[str, str], name: str, what: str) -> Any:
    """Return the class behind a name."""
    if name not in table:
        there = ", ".join(sorted({*table, *(installed() if table is POLICIES else ())}))
        raise ChoiceRefused("unknown_name", f"there is no {what} {name!r}", f"There are: {there}.")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def _options(made: Any) -> tuple[OfferedOption, ...]:
    """Return the fields of a policy's dataclass that have a simple value."""
    fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    return tuple(
        OfferedOption(name=field.name, kind=str(field.type), default=field.default)
        for field in fields
        if field.init and str(field.type) in _KINDS and isinstance(field.default, (bool, int, float, str))
    )


def _offered(name: str, made: Any) -> OfferedPolicy:
    told = import_module(made.__module__).__doc__ or ""
    return OfferedPolicy(name=name, summary=told.strip().split("\n", 1)[0], options=_options(made))


def _checked(
    policy: str, options: tuple[OfferedOption, ...], values: Mapping[str, OptionValue]
) -> Mapping[str, OptionValue]:
    """Return the values if the policy takes them. Raises ChoiceRefused."""
    kinds = {option.name: option.kind for option in options}
    for name, value in values.items():
        if name not in kinds:
            there = ", ".join(sorted(kinds)) or "none"
            raise ChoiceRefused("unknown_option", f"{policy} has no option {name!r}", f"It has: {there}.")
        wanted = _KINDS[kinds[name]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            message = f"{policy}'s option {name} is of the kind {kinds[name]}, and {value!r} is not"
            raise ChoiceRefused("bad_option", message)
    return values
