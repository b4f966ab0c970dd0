"""A cell runs the same with only the names that it reads: on random programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from minicluster.capture.cell import CellSource

_NAMES = st.sampled_from(["a", "b", "c"])
_CONDITIONS = st.one_of(
    st.sampled_from(["flag", "not flag", "True", "False", "flag or a", "a and flag"]),
    st.builds("flag and ({0} := 5)".format, _NAMES),
    st.builds("flag or ({0} := 0)".format, _NAMES),
    st.builds("not (flag and ({0} := 5))".format, _NAMES),
    st.builds("1 < 2 * flag < ({0} := 5)".format, _NAMES),
    st.builds("({0} := 6) if flag else ({1} := 0)".format, _NAMES, _NAMES),
    st.builds("({0} := 0) or flag".format, _NAMES),
)
_SIMPLE = st.one_of(
    st.builds("{} = 1".format, _NAMES),
    st.builds("{} = {}".format, _NAMES, _NAMES),
    st.builds("{} += {}".format, _NAMES, _NAMES),
    st.builds("sink({})".format, _NAMES),
    st.builds("sink({})".format, _CONDITIONS),
    st.builds("({}, {}) = [{}, fail(flag)]".format, _NAMES, _NAMES, _NAMES),
    st.builds("{} = fail({})".format, _NAMES, _CONDITIONS),
    st.builds("del {}".format, _NAMES),
    st.builds("{}: int".format, _NAMES),
    st.builds("{}: int = 2".format, _NAMES),
    st.builds("assert {}".format, _CONDITIONS),
    st.builds("sink([{0} + {1} for {0} in [1, 2]])".format, _NAMES, _NAMES),
    st.builds("sink([{0} := 7 for x in {1}])".format, _NAMES, st.sampled_from(["[]", "[1]"])),
    st.builds("sink(any(({0} := x) for x in [0, 2]))".format, _NAMES),
    st.builds("def {}(): return {}".format, _NAMES, _NAMES),
    st.builds("def f(x=({} := 3)):\n    global {}\n    {} = 8\nf()".format, _NAMES, _NAMES, _NAMES),
    st.builds("def f():\n    global {0}\n    {0} = 8\nif flag:\n    f()".format, _NAMES),
    st.builds("sink((lambda: {})())".format, _NAMES),
    st.builds("sink((lambda: ({} := 4))())".format, _NAMES),
    st.builds("from math import pi as {}".format, _NAMES),
    st.builds("class K:\n    {0} = {1}\n    def m(self): return {0}\nsink(K().m())".format, _NAMES, _NAMES),
    st.builds("class K:\n    {0} = 3\n    class L:\n        sink({1})\n    sink({1})".format, _NAMES, _NAMES),
    st.builds("class K:\n    {0} = 3\n    del {0}\n    sink({1})".format, _NAMES, _NAMES),
    st.builds("class K:\n    {0} = 3\n    sink([{1} for x in [1]])".format, _NAMES, _NAMES),
    st.builds("class K:\n    global {0}\n    {0} = 3\nsink({1})".format, _NAMES, _NAMES),
    st.builds(
        "class K:\n    {0} = 3\n    try:\n        fail(True)\n    except TypeError as {0}:\n        pass\n"
        "    sink({1})".format,
        _NAMES,
        _NAMES,
    ),
)
_INSIDE_LOOPS = st.sampled_from(["if flag: break", "if flag: continue", "break", "continue"])


def _indented(lines: list[str]) -> str:
    return "\n".join("    " + line for part in lines for line in part.splitlines())


_KINDS = {
    "if": ("if {condition}:", "else:"),
    "elif": ("if {condition}:", "elif flag:"),
    "for": ("for c in [1, 2]:", "else:"),
    "empty": ("for c in []:", "else:"),
    "try": ("try:", "except TypeError as {name}:"),
    "any": ("try:", "except:"),
    "else": ("try:\n    fail(flag)\nexcept TypeError:\n    pass\nelse:", "finally:"),
    "group": ("try:", "except* TypeError:"),
    "finally": ("try:", "finally:"),
    "suppress": ("with suppress(TypeError, NameError):", "if flag:"),
    "as": ("with swallowing() as {name}, failing(flag) as (a, b):", "if True:"),
    "no_grad": ("with no_grad() as {name}:", "if flag:"),
    "match": ("match flag:\n    case {name} if {condition}: sink({name})\nif flag:", "else:"),
    "capture": ("match [1, 2]:\n    case [{name}, 3]: pass\n    case [1, {name}]: pass\nif flag:", "else:"),
}


def _block(kind: str, name: str, condition: str, body: list[str], orelse: list[str]) -> str:
    head, middle = (part.format(name=name, condition=condition) for part in _KINDS[kind])
    return f"{head}\n{_indented(body)}\n{middle}\n{_indented(orelse)}"


def _while(condition: str, body: list[str], leaving: str, orelse: list[str]) -> str:
    return (
        f"while {condition}:\n    if last_turn(): break\n"
        f"{_indented([*body, leaving, *body])}\nelse:\n{_indented(orelse)}"
    )


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lines = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.builds(_block, st.sampled_from(sorted(_KINDS)), _NAMES, _CONDITIONS, lines, lines),
        st.builds(_while, _CONDITIONS, lines, _INSIDE_LOOPS, lines),
    )


_PROGRAMS = st.lists(st.recursive(_SIMPLE, _blocks, max_leaves=5), min_size=1, max_size=5)


def _fail(wanted: object) -> object:
    if wanted:
        raise TypeError("as it was asked to")
    return wanted


@contextmanager
def _swallowing() -> Iterator[int]:
    with suppress(Exception):
        yield 1


@contextmanager
def _failing(wanted: bool) -> Iterator[object]:
    yield None if wanted else (1, 2)


@contextmanager
def _no_grad() -> Iterator[int]:
    yield 1


def _outcome(cell: CellSource, outside: dict[str, object]) -> tuple[str, list[str]]:
    seen: list[str] = []
    turns = iter([False, False, True, False] * 2)
    helpers = {"suppress": suppress, "fail": _fail, "swallowing": _swallowing, "failing": _failing}
    namespace: dict[str, object] = {
        **outside,
        **helpers,
        "no_grad": _no_grad,
        "last_turn": lambda: next(turns, True),
        "sink": lambda value: seen.append(f"{type(value)} {value if isinstance(value, int) else ''}"),
        "__name__": "c",
    }
    try:
        exec(cell.body, namespace)
    except Exception as error:
        return type(error).__name__ + str(error), seen
    return "", seen


@settings(max_examples=250, deadline=None)
@given(_PROGRAMS, st.booleans())
def test_a_cell_runs_the_same_with_only_the_names_that_it_reads(parts: list[str], flag: bool) -> None:
    cell = CellSource.parse("\n".join(parts), "Cell In[1]")
    outside: dict[str, object] = {"a": 10, "b": 20, "c": 30, "flag": flag}
    needed = {name: value for name, value in outside.items() if name in cell.reads}
    assert _outcome(cell, needed) == _outcome(cell, outside), cell.source
