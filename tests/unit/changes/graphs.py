"""Compares object graphs: equal values, and the same sharing of objects."""

from __future__ import annotations

import copyreg
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

_ATOMS = (int, complex, bool, str, bytes, type(None), type(...), range, slice)
_STAY = (
    type(threading.Lock()),
    type(threading.RLock()),
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_OF_THE_PROCESS = {"id", "hooks_dict_ref", "extra_dict_ref", "step", "_opt_called"}
"""Ids of hooks, and a scheduler's wrapper that counts optimizer steps, which torch does not pickle."""
_OF_CLASSES = {"__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__firstlineno__"}
_OF_CLASSES |= {
    "__static_attributes__",
    "__annotate_func__",
    "__annotations_cache__",
    "_abc_impl",
    "__slotnames__",
}


class Pairs:
    """The correspondence between two graphs' objects. Once seen, a pair is fixed."""

    def __init__(self) -> None:
        self._other: dict[Any, Any] = {}
        self._alive: list[Any] = []

    def differences(self, one: Any, other: Any, path: str = "") -> list[str]:
        """Return the paths at which the graphs differ."""
        found: list[str] = []
        todo = [(path, one, other)]
        walked: set[tuple[int, int]] = set()
        while todo:
            path, a, b = todo.pop()
            if (id(a), id(b)) in walked:
                continue
            walked.add((id(a), id(b)))
            self._alive += [a, b]
            if difference := self._differs(a, b):
                found.append(f"{path}: {difference}")
                continue
            below, under = list(_parts(a)), list(_parts(b))
            if [step for step, _ in below] != [step for step, _ in under]:
                found.append(f"{path}: {[step for step, _ in below]} against {[step for step, _ in under]}")
                continue
            todo += [(path + step, x, y) for (step, x), (_, y) in zip(below, under, strict=True)]
        return found

    def _differs(self, a: Any, b: Any) -> str:
        if _kind(a) != _kind(b):
            return f"a {type(a).__name__} against a {type(b).__name__}"
        if isinstance(a, float):
            return "" if a == b or (a != a and b != b) else f"{a!r} against {b!r}"
        if _is_atom(a):
            return "" if a == b else f"{a!r} against {b!r}"
        if isinstance(a, tuple | frozenset | types.MethodType):
            return ""
        return self._pair(id(a), id(b)) or self._memory(a, b)

    def _pair(self, a: Any, b: Any) -> str:
        known = self._other.setdefault(("to", a), b), self._other.setdefault(("from", b), a)
        return "" if known == (b, a) else "is another object"

    def _memory(self, a: Any, b: Any) -> str:
        """Compare the memory that arrays and tensors share."""
        owners = _memory_of(a), _memory_of(b)
        if owners[0] is None or owners[1] is None:
            return "" if owners[0] is owners[1] else "is of another memory"
        # Keep the owners alive: the address of freed memory could be reused by another object.
        self._alive += owners
        where = [("memory", _address(owner)) for owner in owners]
        return self._pair(*where) and "is of another memory"


def _is_atom(value: Any) -> bool:
    if isinstance(value, types.FunctionType | type):
        return not _of_notebook(value)
    module = type(value).__module__
    return (
        isinstance(value, (*_ATOMS, types.ModuleType, types.BuiltinFunctionType))
        or module in ("datetime", "pathlib", "pathlib._local", "decimal")
        or type(value).__name__ in ("dtype", "device", "layout", "memory_format")
        or (module == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"))
    )


def _kind(value: Any) -> Any:
    kind = type(value)
    return kind.__qualname__ if _of_notebook(kind) else kind


def _of_notebook(value: Any) -> bool:
    return getattr(value, "__module__", "") in ("__main__", None)


def _memory_of(value: Any) -> Any:
    """Return the array or storage that owns a value's memory; None if the value has none."""
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        owner = value
        while type(owner.base).__name__ == "ndarray":
            owner = owner.base
        return owner
    return value.untyped_storage() if _is_strided(value) and value.untyped_storage().nbytes() else None


def _address(owner: Any) -> int:
    return owner.data_ptr() if hasattr(owner, "data_ptr") else owner.__array_interface__["data"][0]


def _is_strided(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not (value.is_nested or torch.nn.parameter.is_lazy(value))
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if _is_atom(value) or isinstance(value, (float, *_STAY)):
        return
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.CellType):
        yield from ((".contents", it) for it in _contents(value))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        own = {name: it for name, it in vars(value).items() if name not in _OF_CLASSES}
        # Python creates a namedtuple's methods for each class.
        yield from ((f".{n}", it) for n, it in own.items() if not hasattr(it, "__code__") or _of_notebook(it))
    elif type(value).__module__.startswith("pandas"):
        yield from _of_pandas(value)
    elif (found := _of_numbers(value)) is not None:
        yield from found
    else:
        yield from _of_container(value)
        yield from _of_object(value)


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _of_function(value: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield ".__defaults__", value.__defaults__
    yield ".__kwdefaults__", value.__kwdefaults__
    yield ".__dict__", tuple(value.__dict__.items())
    yield ".__closure__", value.__closure__


def _of_pandas(value: Any) -> Iterator[tuple[str, Any]]:
    for name in ("columns", "index", "name", "dtypes"):
        if (it := getattr(value, name, None)) is not None:
            yield f".{name}", repr(it)
    yield ".values", value.to_numpy().tolist()
    yield ".attrs", repr(getattr(value, "attrs", None))


def _of_numbers(value: Any) -> list[tuple[str, Any]] | None:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        flags = value.flags.writeable
        return [
            (".array", (str(value.dtype), value.shape, flags, tuple(map(_listed, (value,))))),
            *_mask(value),
        ]
    if torch is not None and isinstance(value, torch.UntypedStorage):
        return [(".storage", value.tolist())]
    if torch is not None and isinstance(value, torch.Tensor):
        if torch.nn.parameter.is_lazy(value):
            return []
        plain = value.detach()
        if plain.is_nested:
            return [(".tensors", [one.tolist() for one in plain.unbind()])]
        place = (value.stride(), value.storage_offset()) if _is_strided(value) else value.layout
        plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
        return [(".tensor", (value.dtype, tuple(value.shape), place, value.requires_grad, (_listed(plain),)))]
    return None


def _mask(value: Any) -> list[tuple[str, Any]]:
    if not hasattr(value, "mask"):
        return []
    return [(".mask", value.mask.tolist()), (".fill_value", str(value.fill_value))]


def _listed(value: Any) -> Any:
    return [value.tolist()] if "bfloat" not in str(value.dtype) else [value.float().tolist()]


def _of_container(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple | deque):
        yield from ((f"[{place}]", it) for place, it in enumerate(value))
        yield ".maxlen", getattr(value, "maxlen", None)
    elif isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        for place, (key, it) in enumerate(kind.items(value)):
            # Ids of hooks differ between processes.
            yield f"<{place}>", 0 if kind is OrderedDict and isinstance(key, int) else key
            yield f"[{key!r:.20}]" if isinstance(key, str) else f"[{place}]", it
        yield ".factory", value.default_factory if isinstance(value, defaultdict) else None
    elif isinstance(value, set | frozenset):
        ordered = sorted(value, key=lambda it: repr(getattr(it, "mark", it)))
        yield from (("{}", it) for it in ordered)


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    have = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    have |= getattr(value, "__dict__", {})
    yield from ((f".{name}", have[name]) for name in sorted(have.keys() - _OF_THE_PROCESS))
    kind = type(value)
    own = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    if own and not isinstance(value, list | dict | set | deque | tuple | frozenset):
        reduced = value.__reduce_ex__(4)
        yield from ((".reduced", list(it) if isinstance(it, Iterator) else it) for it in reduced[1:])
