"""Analysis of a cell: names that it reads and assigns, its value, and forbidden content."""

from __future__ import annotations

import builtins

import pytest

from minicluster.capture.cell import CellNotPlain, CellSource, CellSyntaxError


def parse(source: str) -> CellSource:
    return CellSource.parse(source, "Cell In[1]")


def reads(source: str) -> set[str]:
    return set(parse(source).reads) - set(dir(builtins))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a + b", {"a", "b"}),
        ("x = 1\nx + y", {"y"}),
        ("x += 1", {"x"}),
        ("del x", {"x"}),
        ("del x\nx = 1\nx", {"x"}),
        ("f'{a!r:>{width}} {b.c}'", {"a", "b", "width"}),
        ("[q * k for q in data if q > low]", {"data", "k", "low"}),
        ("{k: v for k, v in items.items()}", {"items"}),
        ("(lambda v: v + shift)(1)", {"shift"}),
        ("def f(n=start):\n    return g(n) + total", {"start", "g", "total"}),
        ("def fib(n):\n    return fib(n - 1)", set()),
        ("@wrap(level)\ndef f(): pass", {"wrap", "level"}),
        ("def f(t: Kind) -> Other: pass", {"Kind", "Other"}),
        ("def f():\n    def g():\n        return deep\n    return g", {"deep"}),
        ("def f():\n    global made\n    made = 1\nf()", set()),
        (
            "class A(Base, metaclass=Meta):\n    lr = lr\n    def m(self): return used",
            {"Base", "Meta", "lr", "used"},
        ),
        ("class A:\n    n = 3\n    m = n + 1", set()),
        ("class A:\n    n = 3\n    def m(self): return n", {"n"}),
        ("class A:\n    def m(self): return A()", set()),
        ("obj.field = value", {"obj", "value"}),
        ("table[key] = 1", {"table", "key"}),
        ("if c:\n    x = 1\nx", {"c", "x"}),
        ("if c:\n    x = 1\nelse:\n    x = 2\nx", {"c"}),
        ("for i in seq:\n    last = i\nlast", {"seq", "last"}),
        ("for i in seq:\n    if i: break\n    continue", {"seq"}),
        ("while go:\n    x = 1\nx", {"go", "x"}),
        ("with ctx() as h:\n    y = h.r\ny, h", {"ctx", "y"}),
        ("with suppress(OSError):\n    model = load()\nmodel", {"suppress", "load", "model"}),
        ("with open(p) as f, ctx() as (g, h):\n    y = 1\nf, g, y", {"p", "ctx", "g", "y"}),
        ("with open(p) as f:\n    y = f.read()\ny", {"p"}),
        ("with torch.no_grad(), model.no_sync():\n    y = 1\ny", {"torch", "model"}),
        ("if flag and (m := f()):\n    m\nelse:\n    m", {"flag", "f", "m"}),
        ("if flag and (m := f()):\n    m", {"flag", "f"}),
        ("if not flag or (m := f()):\n    pass\nelse:\n    m", {"flag", "f"}),
        ("x = (m := f()) if flag else 0\nm", {"flag", "f", "m"}),
        ("[m := v for v in data]\nm", {"data", "m"}),
        ("while (n := step()) and go:\n    pass\nn", {"step", "go"}),
        ("assert (m := f())\nm", {"f", "m"}),
        ("match p:\n    case [n, 1]:\n        pass\nn", {"p", "n"}),
        ("@(d := wrap)\ndef f(a=(e := 1)): pass\nd, e", {"wrap", "d", "e"}),
        ("class A:\n    n = 1\n    class B:\n        m = n", {"n"}),
        ("class A:\n    n = 1\n    del n\n    n", {"n"}),
        ("x = 1\ndel x\ntry:\n    x\nexcept NameError:\n    pass", set()),
        ("try:\n    import fast as np\nexcept ImportError as e:\n    np = s\n    print(e)\nnp", {"s"}),
        ("try:\n    x = 1\nfinally:\n    y = x\nx", {"x"}),
        (
            "match p:\n    case Point(x=0, y=yy):\n        print(yy)\n    case _:\n        other",
            {"p", "Point", "other"},
        ),
        ("if (n := len(data)) > 3:\n    print(n)", {"data"}),
        ("import torch.nn as nn\nnn.Linear(1, 1)", set()),
        ("from os import path\npath.join(root)", {"root"}),
        ("print(__name__)", set()),
    ],
)
def test_names_that_are_read(source: str, expected: set[str]) -> None:
    assert reads(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = b = 1\n(c, [d, *e]) = 1, [2, 3]", ("a", "b", "c", "d", "e")),
        ("for i in range(3):\n    loss = i", ("i", "loss")),
        ("def f(): inner = 1\nclass A: field = 2", ("f", "A")),
        ("def f():\n    global late\n    late = 1", ("f", "late")),
        ("import numpy as np\nfrom os import path as p", ("np", "p")),
        ("from __future__ import annotations\nx = 1", ("x",)),
        ("for _ in range(3): pass", ()),
        ("x: int\ny: int = 2", ("y",)),
        ("with a as b: pass", ("b",)),
        ("[x for x in y]", ()),
        ("obj.a = 1", ()),
        ("[x := y for y in z]", ("x",)),
        ("def f(a=(n := 1)): pass", ("n", "f")),
    ],
)
def test_names_that_are_assigned(source: str, expected: tuple[str, ...]) -> None:
    assert parse(source).assigned == expected


def test_imports_are_told_apart() -> None:
    assert parse("import numpy as np\nx = 1").imported == {"np"}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("x = 2\nx + 1", 3),
        ("x = 2\nx + 1;", None),
        ("x = 2", None),
        ("", None),
        ("# only this", None),
        ("'é'; 4  # c", 4),
    ],
)
def test_value_of_the_last_expression(source: str, value: int | None) -> None:
    cell = parse(source)
    namespace: dict[str, object] = {}
    exec(cell.body, namespace)
    found = None if cell.value is None else eval(cell.value, namespace)
    assert found == value


def test_tracebacks_have_the_lines_of_the_cell() -> None:
    cell = parse("a = 1\n\nb = a / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(cell.body, {})
    assert caught.traceback[-1].lineno + 1 == 3
    assert cell.body.co_filename == "Cell In[1]"


def test_annotations_of_this_package_do_not_leak_into_the_cell() -> None:
    namespace: dict[str, object] = {}
    exec(parse("def f(x: int): pass\nkind = f.__annotations__['x']").body, namespace)
    assert namespace["kind"] is int


@pytest.mark.parametrize(
    ("source", "line", "word"),
    [
        ("x = 1\n!nvidia-smi", 2, "subprocess"),
        ("files = !ls", 1, "subprocess"),
        ("%time x = 1", 1, "magics"),
        ("x = 1\n\n%%time", 3, "magics"),
        ("x = %pwd", 1, "magics"),
        ("print?", 1, "magics"),
        ("?print", 1, "magics"),
        ("import asyncio\nawait asyncio.sleep(1)", 2, "asyncio.run"),
        ("async with a as b:\n    pass", 1, "asyncio.run"),
    ],
)
def test_what_only_a_notebook_understands_is_refused_with_its_line(source: str, line: int, word: str) -> None:
    with pytest.raises(CellNotPlain) as caught:
        parse(source)
    assert f"Line {line} " in caught.value.message
    assert word in caught.value.hint


@pytest.mark.parametrize("source", ["x = (1,\n", "return 3", "yield 1", "x = 5 %% 3", "break"])
def test_plain_mistakes_are_shown_with_their_line_and_no_stack(source: str) -> None:
    with pytest.raises(CellSyntaxError) as caught:
        parse(f"first = 1\n{source}")
    where, line, mark, message = caught.value._render_traceback_()
    assert where.endswith(", line 2") and line.strip() == source.strip() and "^" in mark
    assert message.startswith("SyntaxError: ")


def test_await_inside_a_function_is_fine() -> None:
    assert reads("async def main():\n    await thing()\nimport asyncio\nasyncio.run(main())") == {"thing"}
