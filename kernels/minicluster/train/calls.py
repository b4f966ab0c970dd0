"""How a helper is called, said when it was called otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from minicluster.errors import MiniclusterError

F = TypeVar("F", bound=Callable[..., Any])


class WrongCall(MiniclusterError, TypeError):
    """A helper was called with what it does not take."""


def called_as(like: str) -> Callable[[F], F]:
    """Say how the helper below is called when its arguments do not fit. A call that fits costs nothing."""

    def decorate(call: F) -> F:
        @wraps(call)
        def checked(*args: Any, **named: Any) -> Any:
            try:
                return call(*args, **named)
            except TypeError:
                if problem := _misfit(call, args, named):
                    raise WrongCall(f"mc.{call.__name__}(): {problem}.", f"Like this: {like}") from None
                raise

        return cast(F, checked)

    return decorate


def _misfit(call: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Return in which way arguments do not fit; empty when they do."""
    try:
        inspect.signature(call).bind(*args, **named)
    except TypeError as error:
        return str(error)
    return ""
