"""Finds in a model what a strategy divides: a short table that a person reads, changes and passes back.

For FSDP and pipelines a plan is a list of names of modules; for tensor parallelism it says for each name how
the module's weight is cut. A name may have `*` in place of one of its parts: `blocks.*.mlp.up`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from minicluster.train.calls import called_as
from minicluster.train.strategies.options import StrategyImpossible

COLUMN, ROW, SEQUENCE = "column", "row", "sequence"
_LARGE_SHARE = 16
"""A module without lists of blocks is wrapped by its parts that have at least a 16th of the parameters."""
_LISTS = (nn.ModuleList, nn.ModuleDict)

_FAMILIES: tuple[tuple[tuple[str, ...], str], ...] = (
    # Llama, Mistral, Qwen, OPT, GPT-J, Whisper, CLIP
    (("q_proj", "k_proj", "v_proj"), "o_proj"),
    (("q_proj", "k_proj", "v_proj"), "out_proj"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("fc1",), "fc2"),
    (("fc_in",), "fc_out"),
    (("c_fc",), "c_proj"),
    # torch.nn.TransformerEncoderLayer and TransformerDecoderLayer
    (("linear1",), "linear2"),
    # BERT, RoBERTa, ViT
    (("attention.self.query", "attention.self.key", "attention.self.value"), "attention.output.dense"),
    (("attention.attention.query", "attention.attention.key", "attention.attention.value"),
     "attention.output.dense"),
    (("intermediate.dense",), "output.dense"),
    # DistilBERT
    (("q_lin", "k_lin", "v_lin"), "out_lin"),
    (("lin1",), "lin2"),
    # T5
    (("q", "k", "v"), "o"),
    (("wi_0", "wi_1"), "wo"),
    (("wi",), "wo"),
    # the first Llama
    (("wq", "wk", "wv"), "wo"),
    (("w1", "w3"), "w2"),
    # GPT-NeoX, BLOOM, Falcon: without their fused query_key_value
    (("dense_h_to_4h",), "dense_4h_to_h"),
)  # fmt: skip
"""Linear layers that belong together: those that are cut by columns, and the one after them, by rows.

A layer that holds q, k and v in one matrix (c_attn, qkv, query_key_value) is not here: its columns would be
mixed, so its attention stays whole.
"""


@called_as('mc.plan(model, strategy="tensor")')
def plan(model: nn.Module, strategy: str = "fsdp") -> list[str] | dict[str, str]:
    """Return what mc.prepare would divide, to be read, changed and passed as `plan=`.

    strategy: "fsdp" and "hybrid": names of the modules whose parameters are gathered together. "tensor": for
    each name, "column", "row" or "sequence". "pipeline": of the parts of the model's sequence.
    Raises StrategyImpossible.
    """
    if not isinstance(model, nn.Module):
        raise StrategyImpossible(f"mc.plan() takes a model (torch.nn.Module), not {type(model).__name__}.")
    if strategy == "tensor":
        return shortened(model, tensor_table(model))
    if strategy in ("fsdp", "hybrid"):
        return list(shortened(model, dict.fromkeys(blocks(model), "")))
    if strategy == "pipeline":
        from minicluster.train.strategies.chain import part_names

        return part_names(model)
    raise StrategyImpossible(
        f"strategy={strategy!r} has no plan.", "Those with one: fsdp, hybrid, tensor, pipeline."
    )


# Names and patterns.


def matching(model: nn.Module, pattern: str) -> list[str]:
    """Return the names of modules that a pattern means. Raises StrategyImpossible if there is none."""
    wanted = pattern.split(".")
    found = [name for name, _ in model.named_modules() if name and _fits(name.split("."), wanted)]
    if not found:
        near = ", ".join(name for name, _ in model.named_children())
        raise StrategyImpossible(
            f"The plan names {pattern!r}, which the model does not have.", f"At its top it has: {near}."
        )
    return found


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def shortened(model: nn.Module, table: Mapping[str, str]) -> dict[str, str]:
    """Put `*` for numbers, where the pattern then means the same modules in the same way."""
    short: dict[str, str] = {}
    for name, how in table.items():
        pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        same = pattern != name and all(table.get(one) == how for one in matching(model, pattern))
        short[pattern if same else name] = how
    return short


# Blocks: what FSDP gathers at once, and what is recomputed at once.


def blocks(model: nn.Module) -> list[str]:
    """Return the model's blocks: the members of its lists of modules, or else its large parts."""
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name == one or name.startswith(f"{one}.") for one in found)
        if not inside and isinstance(module, (nn.Sequential, *_LISTS)):
            found += [
                f"{name}.{child}".lstrip(".")
                for child, part in module.named_children()
                if _has_parameters(part) and not isinstance(part, _LISTS)
            ]
    return found or list(_large_parts(model))


def _large_parts(model: nn.Module) -> Iterator[str]:
    least = max(1, size_of(model) // _LARGE_SHARE)
    for name, module in model.named_modules():
        inner = [child for child in module.children() if size_of(child) >= least]
        if name and not inner and size_of(module) >= least and not isinstance(module, _LISTS):
            yield name


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def size_of(module: nn.Module) -> int:
    """Return the bytes of a module's parameters, each counted once."""
    return sum(parameter.nbytes for parameter in module.parameters())


def chosen_blocks(model: nn.Module, given: Any) -> list[str]:
    """Return the blocks that a user's plan names, or those that are found. Raises StrategyImpossible."""
    if given is None:
        return blocks(model)
    if isinstance(given, str) or not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise StrategyImpossible(
            f"A plan of blocks is a list of names, not {type(given).__name__}.",
            f"What is found by itself: {list(shortened(model, dict.fromkeys(blocks(model), '')))}",
        )
    names = list(dict.fromkeys(name for pattern in given for name in matching(model, str(pattern))))
    for name in names:
        if isinstance(model.get_submodule(name), _LISTS):
            raise StrategyImpossible(
                f"The plan names {name!r}, which is a list and never called.", f"Name its members: {name}.*"
            )
    return names


# Tensor parallelism.


def tensor_table(model: nn.Module) -> dict[str, str]:
    """Return how each linear layer that is known by its name and its neighbours is cut.

    Raises StrategyImpossible if there is none.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        for columns, row in _FAMILIES:
            names = [*columns, row]
            parts = [_linear(module, one) for one in names]
            if all(part is not None for part in parts):
                prefix = f"{name}." if name else ""
                if not any(f"{prefix}{one}" in found for one in names):
                    found |= {f"{prefix}{one}": COLUMN for one in columns} | {f"{prefix}{row}": ROW}
    if found:
        return found
    raise StrategyImpossible(
        "No layers with known names were found that could be cut for tensor parallelism.",
        'Say how: plan={"blocks.*.mlp.up": "column", "blocks.*.mlp.down": "row"}.',
    )


def _linear(module: nn.Module, path: str) -> nn.Linear | None:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, "_modules", {}).get(part)
    return found if isinstance(found, nn.Linear) else None


def chosen_table(model: nn.Module, given: Any, parts: int) -> dict[str, Any]:
    """Return for each name how it is cut, from a user's plan or found. Raises StrategyImpossible.

    parts: into how many parts.
    """
    if given is not None and not isinstance(given, Mapping):
        raise StrategyImpossible(
            f"A plan of tensor parallelism is a dict, not {type(given).__name__}.",
            'Like this: plan={"blocks.*.mlp.up": "column", "blocks.*.mlp.down": "row"}',
        )
    table: dict[str, Any] = {}
    for pattern, how in (tensor_table(model) if given is None else given).items():
        table |= dict.fromkeys(matching(model, str(pattern)), how)
    for name, how in table.items():
        _check_cut(name, model.get_submodule(name), how, parts)
    _check_not_shared(model, table)
    return table


def _check_cut(name: str, module: nn.Module, how: Any, parts: int) -> None:
    if how not in (COLUMN, ROW):
        return
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise StrategyImpossible(
            f"{name} is a {type(module).__name__}: torch cuts nn.Linear and nn.Embedding by {how}s.",
            "Leave it out of the plan: it stays whole on each rank.",
        )
    across = (how == COLUMN) == isinstance(module, nn.Linear)
    size = module.weight.shape[0 if across else 1]
    if size % parts:
        raise StrategyImpossible(
            f"{name} has {size} {how}s, which {parts} ranks cannot share equally.",
            "Leave it out of the plan, or use another number of ranks.",
        )


def _check_not_shared(model: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        for others in shared_parameters(model).values():
            owners = [other.rpartition(".")[0] for other in others]
            if name in owners:
                raise StrategyImpossible(
                    f"{' and '.join(others)} are one parameter, which cannot be cut in one place only.",
                    f"Leave {name} out of the plan.",
                )


def shared_parameters(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of each parameter that has several, by its id."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key: found for key, found in names.items() if len(found) > 1}


def is_on_meta(model: nn.Module) -> bool:
    """Return whether a model has no memory yet: it was made `with torch.device("meta")`."""
    return any(tensor.device == torch.device("meta") for tensor in model.parameters())


def without_memory(module: nn.Module) -> nn.Module:
    """Return a copy of a module that has its structure, and tensors of the meta device."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty: Any = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(module, memo)
