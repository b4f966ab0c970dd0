"""How JAX's arrays are pickled: through NumPy, so that a notebook without JAX can have them, too."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext, suppress
from typing import Any

from minicluster.pickling.refusal import KindRefused

_SHARDED = (
    "each rank has a part of it only; gather it inside the cell, on all ranks: "
    "jax.experimental.multihost_utils.process_allgather(x, tiled=True)"
)
_DONATED = "was donated to a compiled function (donate_argnums), so nothing is in it; send what that returned"


def reduce_jax_array(obj: Any) -> tuple[Any, ...] | None:
    """Return what an array of JAX is pickled as; None for other objects. Raises KindRefused."""
    kind = type(obj)
    jax = sys.modules.get("jax")
    if jax is None or not is_jax_array(kind):
        return None
    if obj.is_deleted():
        raise KindRefused(obj, _DONATED)
    if not (obj.is_fully_addressable or obj.is_fully_replicated):
        raise KindRefused(obj, _SHARDED)
    numpy = sys.modules["numpy"]
    if jax.dtypes.issubdtype(obj.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(obj)
        return make_jax_array, (numpy.asarray(data), False, str(jax.random.key_impl(obj)))
    # A copy: JAX's own memory is read-only, and a changed one shall be a new object.
    return make_jax_array, (numpy.array(obj), bool(getattr(obj, "weak_type", False)))


def is_jax_array(kind: type) -> bool:
    """Whether a type is that of JAX's arrays or keys, which never change. Tracers have others."""
    return f"{kind.__module__}".startswith("jax") and kind.__name__ in ("ArrayImpl", "PRNGKeyArray")


def make_jax_array(content: Any, weak: bool = False, key_kind: str = "") -> Any:
    """Make an array of JAX with this content; where JAX cannot be imported, return NumPy's."""
    try:
        jax = importlib.import_module("jax")
    except Exception:  # A broken one may raise anything: the other values must still arrive.
        return content
    if key_kind:
        return jax.random.wrap_key_data(jax.numpy.asarray(content), impl=key_kind)
    wide = content.dtype.itemsize == 16 or (content.dtype.itemsize == 8 and content.dtype.kind in "iuf")
    with _with_64_bits(jax) if wide else nullcontext():
        made = jax.numpy.asarray(content)
    if weak:
        with suppress(AttributeError, TypeError):  # Only promotions of types depend on it.
            made.aval = made.aval.update(weak_type=True)
    return made


def _with_64_bits(jax: Any) -> Any:
    """Let an array keep its 64 bits, whatever this process has set for arrays that it makes."""
    switch = getattr(jax, "enable_x64", None)
    if switch is None:
        switch = importlib.import_module("jax.experimental").enable_x64
    return switch(True)
