"""A cell's changes are applied as if it ran in the notebook: on random object graphs and cells."""

from __future__ import annotations

import re
import types
from itertools import count
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from .graphs import Pairs
from .two_sides import in_one_process

pytest.importorskip("torch")

IMPORTS = """
import numpy as np, torch
from collections import OrderedDict, defaultdict, deque
from tests.unit.changes.drawn_kinds import Data, Listed, Plain, Slots
"""
IMPORTED = ["np", "torch", "OrderedDict", "defaultdict", "deque", "Data", "Listed", "Plain", "Slots"]
MADE = {
    "list": "[{x}, {y}]",
    "listed": "Listed([{x}])",
    "tuple": "({x}, {y})",
    "dict": "{{'a': {x}, 2: {y}}}",
    "ordered": "OrderedDict(a={x}, b={y})",
    "default": "defaultdict(list, a={x})",
    "set": "{{1, 'b'}}",
    "deque": "deque([{x}, {y}], maxlen=3)",
    "plain": "Plain({x}, {n})",
    "slots": "Slots({x}, {n})",
    "data": "Data({x}, {n})",
    "bytes": "bytearray(b'ab')",
    "tensor": "torch.arange(6.0)",
    "parameter": "torch.nn.Parameter(torch.ones(6))",
    "array": "np.arange(6.0)",
}
"""Source of a new object, by kind. x, y: any existing objects; n: a unique number.

In a set, Pairs identifies objects by that number.
"""
VIEWS = {
    "tensor": ["{v}[1:5]", "{v}.view(2, 3)", "{v}.view(2, 3).t()", "{v}[::2]", "{v}"],
    "array": ["{v}[1:5]", "{v}.reshape(2, 3)", "{v}[::-2]", "{v}.reshape(2, 3).T", "{v}"],
}
"""Source of another view of the same memory. A view gets no further view, since its size differs."""
OBJECT = ["{v}.a = {x}", "{v}.a = [{x}, {v}]", "del {v}.__dict__['a']", "{v}.b = {x}"]
MAPPING = [
    *("{v}['a'] = {x}", "{v}['n'] = {x}", "{v}.pop('a', None)", "{v}[3] = [{v}, {x}]", "{v}.clear()"),
    *("{v}.update(dict(reversed(list({v}.items()))))", "first = {v}.pop('a', 0); {v}['a'] = first"),
]
SEQUENCE = ["{v}.append({x})", "{v}.append([{x}, {v}])", "{v}.insert(0, {x})", "{v}.clear()", "{v}.reverse()"]
CHANGES = {
    "list": [*SEQUENCE, "{v}[:] = [{x}]", "{v} += [{x}]", "{v}.append((1, {x}))"],
    "listed": [*SEQUENCE, "{v}.more = {x}"],
    "tuple": [],
    "dict": MAPPING,
    "ordered": [*MAPPING, "if 'a' in {v}: {v}.move_to_end('a')"],
    "default": [*MAPPING, "{v}['new'].append({x})"],
    "set": ["{v}.add(3)", "{v}.discard(1)", "{v}.add(Plain({x}, {n}))", "{v} -= {{1}}", "{v}.clear()"],
    "deque": ["{v}.append({x})", "{v}.appendleft({x})", "{v}.rotate(1)", "{v}.clear()"],
    "plain": OBJECT,
    "slots": ["{v}.a = {x}", "{v}.a = {{'me': {v}}}", "if hasattr({v}, 'a'): del {v}.a"],
    "data": [*OBJECT, "{v}.__dict__ = {{'mark': {n}, 'a': {x}}}"],
    "bytes": ["{v} += b'c'", "{v}[:1] = b'xyz'"],
    "tensor": ["{v}.fill_({n})", "{v}.add_(1)", "{v}.numpy()[...] = {n}", "{v}.mul_(1)", "{v}.note = {x}"],
    "parameter": [
        *("{v}.data.add_(1)", "{v}.data = torch.ones(6) * {n}", "{v}.requires_grad_(False)"),
        "{v}.detach().numpy()[1] = {n}",
    ],
    "array": ["{v} += 1", "{v}[...] = {n}", "{v}.flat[0] = {n}", "{v}.sort()"],
}
"""A cell's lines, by the kind of v."""


@st.composite
def programs(draw: st.DrawFn, lines: int) -> tuple[str, str]:
    """Draw code that makes a graph, and a cell that changes it."""
    kinds: dict[str, str] = {}
    made = [_drawn_object(draw, kinds) for _ in range(draw(st.integers(2, lines)))]
    made += [_drawn_change(draw, kinds) for _ in range(draw(st.integers(0, lines // 2)))]
    cell = [
        _drawn_object(draw, kinds) if draw(st.integers(0, 4)) == 0 else _drawn_change(draw, kinds)
        for _ in range(draw(st.integers(1, lines)))
    ]
    numbers = count(10)
    text = re.sub("@", lambda _: str(next(numbers)), "\n".join(made) + "\0" + "\n".join(cell))
    before, _, after = text.partition("\0")
    return before, after


def _drawn_object(draw: st.DrawFn, kinds: dict[str, str]) -> str:
    name = draw(st.sampled_from([f"v{len(kinds)}", *kinds]))
    viewed = [one for one, kind in kinds.items() if kind in VIEWS and one != name]
    if viewed and draw(st.integers(0, 2)) == 0:
        v = draw(st.sampled_from(viewed))
        source = draw(st.sampled_from(VIEWS[kinds[v]])).format(v=v)
        # A view has another size, so it is not viewed again.
        kinds[name] = kinds[v] if source == v else f"view of {kinds[v]}"
    else:
        kind = draw(st.sampled_from(sorted(MADE)))
        source = MADE[kind].format(x=_any(draw, kinds), y=_any(draw, kinds), n="@")
        kinds[name] = kind
    return f"{name} = {source}"


def _drawn_change(draw: st.DrawFn, kinds: dict[str, str]) -> str:
    v = draw(st.sampled_from(sorted(kinds)))
    lines = CHANGES[kinds[v].removeprefix("view of ")] or ["{v} = {x}"]
    line = draw(st.sampled_from(lines))
    if line == "{v} = {x}":
        kinds[v] = "tuple"
        return f"{v} = ({_any(draw, kinds)},)"
    line = line.format(v=v, x=_any(draw, kinds), n="@")
    return re.sub(r"^del (\w+)\.__dict__\['a'\]$", r"\1.__dict__.pop('a', None)", line)


def _any(draw: st.DrawFn, kinds: dict[str, str]) -> str:
    return draw(st.sampled_from(["1", "'text'", *kinds]))


def drawn(source: str) -> dict[str, Any]:
    """Run code that makes a graph, in a new namespace."""
    names = vars(types.ModuleType("__main__"))
    exec(IMPORTS + source, names)
    return names


def own(names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if re.fullmatch(r"v\d+|first", name)}


def check(made: str, cell: str) -> None:
    truth, notebook = drawn(made), drawn(made)
    pairs = Pairs()
    assert pairs.differences(own(truth), own(notebook)) == []
    note(f"{made}\n# --- the cell\n{cell}")
    exec(cell, truth)
    read = [name for name in own(notebook) if re.search(rf"\b{name}\b", cell)]
    result = in_one_process(notebook, cell, [*IMPORTED, *read])
    assert result.summary() == ""
    after = pairs.differences(dict(sorted(own(truth).items())), dict(sorted(own(notebook).items())))
    assert after == []


@settings(deadline=None, max_examples=120)
@given(programs(6))
def test_a_drawn_cell_changes_a_drawn_graph_as_the_notebook_itself_would(program: tuple[str, str]) -> None:
    check(*program)


@pytest.mark.full("fewer and smaller ones are drawn by test_a_drawn_cell_changes_a_drawn_graph...")
@settings(deadline=None, max_examples=3000)
@given(programs(14))
def test_larger_graphs_too(program: tuple[str, str]) -> None:
    check(*program)
