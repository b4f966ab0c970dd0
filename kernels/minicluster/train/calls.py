"""Makes the errors for wrong arguments of mc's helpers show a correct call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from minicluster.errors import MiniclusterError

F = TypeVar("F", bound=Callable[..., Any])


class WrongCall(MiniclusterError, TypeError):
    """A helper was called with wrong arguments."""


def called_as(like: str) -> Callable[[F], F]:
    """Raise WrongCall with this example if a helper's arguments are wrong. Right calls cost nothing."""

    def decorate(call: F) -> F:
        @wraps(call)
        def checked(*args: Any, **named: Any) -> Any:
            try:
                return call(*args, **named)
            except TypeError:
                try:
                    inspect.signature(call).bind(*args, **named)
                except TypeError as misfit:
                    raise WrongCall(f"mc.{call.__name__}(): {misfit}.", f"Like this: {like}") from None
                raise

        return cast(F, checked)

    return decorate
