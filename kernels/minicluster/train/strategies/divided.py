"""The divided models of this process: how each was before, so that it can be put together again."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

if TYPE_CHECKING:
    from minicluster.train.strategies.layout import Layout
    from minicluster.train.strategies.options import StrategyOptions

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class StagedModel:
    """Base of what a cell trains in place of a model of which its rank has some stages only.

    model: the whole model. stage: what of it is here. divided: None: all of it is here.
    """

    model: nn.Module
    stage: Any
    divided: Divided | None


@dataclass
class ModuleForm:
    """A module's class, fields and hooks before it was divided, and its parameters themselves."""

    kind: type
    fields: frozenset[str]
    hooks: Mapping[str, frozenset[Any]]
    parameters: Mapping[str, nn.Parameter]
    added_fields: frozenset[str] = frozenset()
    added_hooks: Mapping[str, frozenset[Any]] = field(default_factory=dict)


class WholeForm:
    """How a model was before it was divided, without what its parameters held."""

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict(keep_vars=True)
        self.names = list(state)
        """The names in the model's state_dict, in its order."""
        self.sizes = {name: one.nbytes for name, one in model.named_parameters()}
        """The bytes of each parameter, whole, by its first name."""
        self.counts = {name: one.numel() for name, one in model.named_parameters()}
        self.size_bytes = sum(one.nbytes for one in set(state.values()) if isinstance(one, torch.Tensor))
        self._modules = {name: _form(module) for name, module in model.named_modules()}
        self._places = {id(one): _Place.of(one) for one in self.parameters.values() if not one.is_meta}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's own parameters, by their full names; one with several names has all of them."""
        return {
            f"{name}.{own}".lstrip("."): parameter
            for name, form in self._modules.items()
            for own, parameter in form.parameters.items()
        }

    def note_what_was_added(self, model: nn.Module) -> None:
        """Call it when the model has been divided: what is added later is the cell's own."""
        for name, form in self._modules.items():
            module = model.get_submodule(name)
            form.added_fields = frozenset(vars(module)) - form.fields
            form.added_hooks = {
                kind: frozenset(getattr(module, kind, ())) - form.hooks[kind] for kind in _HOOKS
            }

    def free(self, keep: Callable[[nn.Parameter], bool] = lambda _: False) -> None:
        """Give back the memory of the whole parameters, whose parts are elsewhere now."""
        for parameter in set(self.parameters.values()):
            if not keep(parameter):
                parameter.data = parameter.data.new_empty(0)

    def restore(self, model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Make the model whole again, in place, with these values of parameters and buffers."""
        for name, form in self._modules.items():
            module = model.get_submodule(name)
            if type(module) is not form.kind:
                module.__class__ = form.kind
            for added in form.added_fields & frozenset(vars(module)):
                delattr(module, added)
            for kind, added_hooks in form.added_hooks.items():
                hooks = getattr(module, kind)
                # torch adds some at the first forward pass.
                late = [key for key, hook in hooks.items() if _is_of_strategy(hook)]
                for key in (*added_hooks, *late):
                    hooks.pop(key, None)
        self._leave_meta(state)
        for name, form in self._modules.items():
            model.get_submodule(name)._parameters.update(form.parameters)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                place = self._places.get(id(parameter))
                parameter.data = place.filled(state[name]) if place else state[name].to(parameter.dtype)
                parameter.grad = None
            for name, buffer in model.named_buffers():
                if name in state:
                    buffer.data = state[name].to(buffer.dtype)

    def _leave_meta(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace parameters of the meta device, which cannot take values."""
        fresh: dict[int, nn.Parameter] = {}
        for name, parameter in self.parameters.items():
            if parameter.is_meta:
                empty = torch.empty(0, dtype=parameter.dtype, device=state[name].device)
                fresh.setdefault(id(parameter), nn.Parameter(empty, parameter.requires_grad))
        for form in self._modules.values():
            form.parameters = {own: fresh.get(id(one), one) for own, one in form.parameters.items()}


def _is_of_strategy(hook: Any) -> bool:
    """Return whether a hook is one of torch's for divided models."""
    called = getattr(hook, "hook", hook)
    return str(getattr(called, "__module__", "")).startswith("torch.distributed.")


@dataclass(frozen=True)
class _Place:
    """Where a parameter's values were: in memory that others may still look at."""

    storage: StorageWeakRef
    offset: Any
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, parameter: nn.Parameter) -> _Place:
        reference = StorageWeakRef(parameter.untyped_storage())
        return cls(
            reference, parameter.storage_offset(), parameter.shape, parameter.stride(), parameter.dtype
        )

    def filled(self, values: torch.Tensor) -> torch.Tensor:
        """Return these values in the memory where they were, if it is still there; else in their own."""
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or storage.device != values.device:
            return values.to(self.dtype)
        there = torch.empty(0, dtype=self.dtype, device=storage.device)
        return there.set_(storage, self.offset, self.size, self.stride).copy_(values)


def _form(module: nn.Module) -> ModuleForm:
    return ModuleForm(
        type(module),
        frozenset(vars(module)),
        {kind: frozenset(getattr(module, kind, ())) for kind in _HOOKS},
        {name: one for name, one in module._parameters.items() if one is not None},
    )


@dataclass(eq=False)
class Divided:
    """A divided model.

    plan: what was divided, as it was found or given. state: returns the parts that this rank holds, by their
    names in the whole model. parameters: those of this rank, by the same names. copies: how many ranks hold
    the same undivided parameter. pipeline: the object that mc.prepare returned, if it is one.
    seen: bytes that a step sends and that only a step shows, by what sends them. number: which of the
    process's divided models it is; all ranks count alike.
    """

    strategy: str
    layout: Layout
    options: StrategyOptions
    plan: Any
    whole: WholeForm
    state: Callable[[], dict[str, Any]]
    parameters: Mapping[str, nn.Parameter]
    copies: int = 1
    pipeline: weakref.ref[Any] | None = None
    optimizers: list[DividedOptimizer] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    number: int = 0

    @property
    def shares(self) -> int:
        """Into how many shares the data is divided: ranks that compute the same samples have one."""
        return self.layout.mesh.size() if self.layout.share is None else self.layout.share[1]

    def optimizer(self, optimizer: Optimizer) -> DividedOptimizer | None:
        return next((one for one in self.optimizers if one.optimizer() is optimizer), None)


@dataclass(eq=False)
class DividedOptimizer:
    """An optimizer of a divided model. groups: for each group, the names of the whole model's parameters."""

    optimizer: weakref.ref[Optimizer]
    groups: tuple[tuple[str, ...], ...]


_count = itertools.count(1)
_divided: weakref.WeakKeyDictionary[nn.Module, Divided] = weakref.WeakKeyDictionary()
_parts: weakref.WeakSet[Any] = weakref.WeakSet()


def register(model: nn.Module, divided: Divided) -> None:
    """Remember a model that was divided."""
    divided.number = next(_count)
    _divided[model] = divided
    for module in model.modules():
        _parts.add(module)


def note_part(part: Any) -> None:
    """Remember an object that each rank has a part of: an optimizer, a pipeline."""
    _parts.add(part)


def all_divided() -> Iterator[tuple[nn.Module, Divided]]:
    """Yield the divided models that are still used, in the order in which they were divided."""
    yield from list(_divided.items())


def forget(model: nn.Module) -> None:
    _divided.pop(model, None)


def is_part(value: object) -> bool:
    """Return whether a rank holds only a part of an object: it cannot be compared with other ranks'."""
    try:
        return value in _parts
    except TypeError:
        return False


def divided_of(model: object) -> Divided | None:
    """Return how a model was divided; None for any other object. Wrappers are looked through."""
    if isinstance(model, StagedModel):
        return model.divided
    inner: Any = model
    while isinstance(inner, nn.Module):
        if inner in _divided:
            return _divided[inner]
        wraps = isinstance(inner, DistributedDataParallel)
        inner = inner.module if wraps else getattr(inner, "_orig_mod", None)
    return None


def strategy_of(model: object) -> str | None:
    """Return the strategy that made what mc.prepare returned; None for a model that is as it was."""
    known = divided_of(model)
    return known.strategy if known else "pipeline" if isinstance(model, StagedModel) else None
