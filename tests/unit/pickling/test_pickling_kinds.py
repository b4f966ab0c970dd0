"""Many kinds of a notebook's objects: each works on a rank, or is refused before the job starts."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from minicluster.pickling.pickling import NotPicklable, dumps

TRAVELS = {
    "lru_cache": (
        "from functools import lru_cache\n@lru_cache(maxsize=3, typed=True)\ndef it(n):\n    'doc'\n"
        "    return n + 1",
        "it(1) == 2 and it.cache_parameters() == {'maxsize': 3, 'typed': True} and it.__doc__ == 'doc'",
    ),
    "lru_cache that calls itself": (
        "from functools import lru_cache\n@lru_cache\n"
        "def it(n): return n if n < 2 else it(n - 1) + it(n - 2)",
        "it(50) == 12586269025 and it.__wrapped__.__globals__['it'] is it",
    ),
    "lru_cache of a method": (
        "import functools\nclass it:\n    @functools.cache\n    def m(self): return it",
        "it().m() is it",
    ),
    "lru_cache of an installed module": (
        "import tokenize\nit = tokenize._compile",
        "it is tokenize._compile",
    ),
    "cached_property": (
        "from functools import cached_property\nclass it:\n    n = 0\n    @cached_property\n"
        "    def m(self):\n        'doc'\n        it.n += 1\n        return it.n\nx = it()\nx.m",
        "(lambda x: (x.m, x.m, it.m.__doc__) == (2, 2, 'doc'))(it())",
    ),
    "cached_property of a dataclass's object": (
        "import dataclasses, functools\n@dataclasses.dataclass\nclass K:\n    x: int = 1\n"
        "    @functools.cached_property\n    def z(self): return self.x\nit = K(4)\nit.z",
        "it.x == it.z == 4",
    ),
    "a cached_property of one's own": (
        "import functools\nclass own(functools.cached_property): mark = 1\n"
        "class it:\n    @own\n    def m(self): return 4",
        "it().m == 4 and it.__dict__['m'].mark == 1",
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef it(x): return 'any'\n@it.register\n"
        "def _(x: int): return 'int'\n@it.register\ndef _(x: list): return [it(y) for y in x]",
        "it([1, '']) == ['int', 'any'] and it.__name__ == 'it'",
    ),
    "singledispatch on a class of the notebook": (
        "import functools\nclass K: pass\n@functools.singledispatch\ndef f(x): return 0\n"
        "f.register(K, lambda x: 1)\nit = (K, f)",
        "it[1](it[0]()) == 1",
    ),
    "singledispatchmethod": (
        "import functools\nclass it:\n    @functools.singledispatchmethod\n    def m(self, x): return 0\n"
        "    @m.register\n    def _(self, x: int): return 1",
        "(it().m(2), it().m('')) == (1, 0)",
    ),
    "partial": ("import functools\nit = functools.partial(lambda x, y: x + y, 1)", "it(2) == 3"),
    "partialmethod": (
        "import functools\nclass it:\n    def m(self, x): return x\n    n = functools.partialmethod(m, 3)",
        "it().n() == 3",
    ),
    "wraps": (
        "import functools\ndef d(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a)\n    return w\n"
        "@d\ndef it(x): return x",
        "it(2) == it.__wrapped__(2) == 2",
    ),
    "total_ordering": (
        "import functools\n@functools.total_ordering\nclass it:\n    def __init__(s, n): s.n = n\n"
        "    def __lt__(s, o): return s.n < o.n\n    def __eq__(s, o): return s.n == o.n",
        "it(1) <= it(2)",
    ),
    "NewType": ("import typing\nit = typing.NewType('it', int)", "it(3) == 3 and it.__supertype__ is int"),
    "NewType of a NewType": (
        "import typing\nA = typing.NewType('A', int)\nB = typing.NewType('B', A)\n"
        "def it(x: B) -> A: return A(x)",
        "it(1) == 1 and it.__annotations__['x'].__supertype__ is it.__annotations__['return']",
    ),
    "TypeVar": ("import typing\nit = typing.TypeVar('it', bound=int)", "it.__bound__ is int"),
    "ParamSpec": (
        "import typing\nit = typing.ParamSpec('it', covariant=True)",
        "it.__name__ == 'it' and it.__covariant__",
    ),
    "TypeVarTuple": ("import typing\nit = typing.TypeVarTuple('it')", "it.__name__ == 'it'"),
    "a decorator's types": (
        "import typing\nP = typing.ParamSpec('P')\nR = typing.TypeVar('R')\n"
        "def it(f: typing.Callable[P, R]) -> typing.Callable[P, R]:\n"
        "    def g(*a: P.args, **k: P.kwargs) -> R: return f(*a, **k)\n    return g",
        "it(len)('ab') == 2",
    ),
    "Generic": (
        "import typing\nT = typing.TypeVar('T')\nclass it(typing.Generic[T]):\n"
        "    def m(self) -> T: return 3",
        "it[int]().m() == 3",
    ),
    "Protocol": (
        "import typing\n@typing.runtime_checkable\nclass it(typing.Protocol):\n    def m(self): ...",
        "not isinstance(3, it)",
    ),
    "ABC": (
        "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\n"
        "class it(B):\n    def m(self): return 1",
        "it().m() == 1",
    ),
    "metaclass": (
        "class M(type):\n    def z(c): return 1\nclass it(metaclass=M): pass",
        "it.z() == 1",
    ),
    "dataclass with slots": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass K:\n    x: int = 1\n"
        "    y: list = dataclasses.field(default_factory=list)\nit = K(4)",
        "it.x == 4 and it.y == []",
    ),
    "enum": ("import enum\nclass E(str, enum.Enum):\n    A = 'x'\nit = [E.A, E]", "it[1].A is it[0]"),
    "an enum whose members are made by its __init__": (
        "import enum\nclass it(enum.Enum):\n    A = (1, 2)\n"
        "    def __init__(self, x, y):\n        self.x, self.y = x, y\n"
        "    def area(self): return self.x * self.y",
        "it.A.area() == 2 and it((1, 2)) is it.A",
    ),
    "flag": ("import enum\nclass it(enum.Flag):\n    A = 1\n    B = 2", "(it.A | it.B).value == 3"),
    "namedtuple": ("import collections\nit = collections.namedtuple('it', 'a b')", "it(1, 2).b == 2"),
    "NamedTuple": ("import typing\nclass it(typing.NamedTuple):\n    a: int = 1", "it().a == 1"),
    "TypedDict": ("import typing\nclass it(typing.TypedDict):\n    a: int", "it(a=1) == {'a': 1}"),
    "nested class": ("class O:\n    class I:\n        def f(s): return 1\nit = O.I", "it().f() == 1"),
    "class of a function": (
        "def f(k):\n    class L:\n        def g(s): return k\n    return L\nit = f(3)",
        "it().g() == 3",
    ),
    "descriptor": (
        "class D:\n    def __get__(s, o, c): return 4\nclass it:\n    d = D()",
        "it().d == 4",
    ),
    "property, staticmethod, classmethod": (
        "it = property(lambda s: 1), staticmethod(lambda: 2), classmethod(lambda c: 3)",
        "(it[0].fget(0), it[1](), it[2].__func__(0)) == (1, 2, 3)",
    ),
    "defaults that are functions": (
        "def it(a=lambda: 1, *, b=[2]): return a(), b",
        "it() == (1, [2])",
    ),
    "closure that calls itself": (
        "def o():\n    def f(n): return 1 if n < 1 else f(n - 1)\n    return f\nit = o()",
        "it(3) == 1",
    ),
    "bound method": ("class A:\n    def m(s): return 1\nit = A().m", "it() == 1"),
    "async function": (
        "import asyncio\nasync def it(): return 1",
        "asyncio.run(it()) == 1",
    ),
    "generator function": ("def it():\n    yield 1", "list(it()) == [1]"),
    "contextmanager": (
        "import contextlib\n@contextlib.contextmanager\ndef it(): yield 3",
        "it().__enter__() == 3",
    ),
    "iterators": (
        "it = [zip([1], [2]), map(abs, [-1]), enumerate('a'), iter([1]), range(3)]",
        "[list(x) for x in it] == [[(1, 2)], [1], [(0, 'a')], [1], [0, 1, 2]]",
    ),
    "defaultdict of a lambda": (
        "import collections\nit = collections.defaultdict(lambda: 4)",
        "it[1] == 4",
    ),
    "views of a dict": ("it = {1: 2}.keys(), {1: 2}.items()", "list(it[1]) == [(1, 2)]"),
    "compiled pattern": ("import re\nit = re.compile('a')", "bool(it.match('a'))"),
    "logger": ("import logging\nit = logging.getLogger('x')", "it is logging.getLogger('x')"),
    "a random generator": (
        "import random\nit = random.Random(3)",
        "it.random() == random.Random(3).random()",
    ),
    "torch's random generator in the middle of its numbers": (
        "import torch\nit = torch.Generator().manual_seed(3)\ntorch.rand(2, generator=it)",
        "torch.rand(1, generator=it) == torch.rand(3, generator=torch.Generator().manual_seed(3))[2]",
    ),
    "ParameterList, ParameterDict": (
        "import torch\n"
        "it = torch.nn.ParameterList([torch.ones(2)]), torch.nn.ParameterDict({'a': torch.ones(2)})",
        "len(it[0]) == len(it[1]) == 1",
    ),
    "compiled module": (
        "import torch\nit = torch.compile(torch.nn.Linear(2, 2), backend='eager')",
        "it(torch.ones(1, 2)).shape == (1, 2)",
    ),
    "module with a hook": (
        "import torch\nit = torch.nn.Linear(1, 1)\nit.register_forward_hook(lambda m, i, o: o + 100)",
        "it(torch.ones(1)).item() > 50",
    ),
    "autograd function": (
        "import torch\nclass it(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(c, x): return x * 2\n"
        "    @staticmethod\n    def backward(c, g): return g * 2",
        "it.apply(torch.ones(1)).item() == 2",
    ),
    "scheduler": (
        "import torch\no = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)\n"
        "it = torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.5)",
        "it.get_last_lr() == [0.5]",
    ),
    "vectorize": ("import numpy\nit = numpy.vectorize(lambda x: x + 1)", "it(1) == 2"),
}

REFUSED = {
    "weakref": ("import weakref\nclass A: pass\na = A()\nit = weakref.ref(a)", "send the object itself"),
    "generator": ("it = (x for x in [1])", "send a list"),
    "asynchronous generator": ("async def g():\n    yield 1\nit = g()", "make it inside the cell"),
    "compiled function": (
        "import torch\n@torch.compile\ndef it(x): return x",
        "call torch.compile inside the cell",
    ),
    "scripted module": (
        "import torch\nit = torch.jit.script(torch.nn.Linear(1, 1))",
        "call torch.jit inside the cell",
    ),
    "traced function": (
        "import torch\nit = torch.jit.trace(lambda x: x, torch.ones(1))",
        "call torch.jit inside the cell",
    ),
    "progress bar": ("from tqdm import tqdm\nit = tqdm(range(2), disable=True)", "a progress bar"),
    "library": ("import ctypes\nit = ctypes.CDLL(None)", "a loaded library"),
    "executor": (
        "from concurrent.futures import ThreadPoolExecutor\nit = ThreadPoolExecutor(1)",
        "a pool of",
    ),
    "values of a thread": ("import threading\nit = threading.local()", "values of a thread"),
    "a lock of a class": ("import threading\nclass it:\n    lock = threading.RLock()", "holds it.lock ("),
    "a lock in a closure": (
        "import threading\ndef f():\n    lock = threading.Lock()\n    return lambda: lock\nit = f()",
        "holds it's variable lock (_thread.lock)",
    ),
    "a lock in a slot": (
        "import threading\nclass K:\n    __slots__ = ('lock',)\nit = K()\nit.lock = threading.Lock()",
        "holds it.lock (_thread.lock)",
    ),
}

RANK = """
import json, sys, types, asyncio, collections, logging, random, re, tokenize, torch
from pathlib import Path
from minicluster.pickling.pickling import loads
told = {}
for path in Path(sys.argv[1]).glob("*.pickle"):
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    names = vars(main)
    try:
        given = loads(path.read_bytes(), names)
        names.update(globals() | given)
        told[path.stem] = "" if eval(path.with_suffix(".check").read_text(), names) else "is another one"
    except Exception as error:
        told[path.stem] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


def made(source: str) -> tuple[Any, dict[str, Any]]:
    """Return the object made by a notebook's cell, and the notebook's namespace."""
    names = vars(types.ModuleType("__main__"))
    exec(compile(source, "Cell In[1]", "exec", dont_inherit=True), names)
    return names["it"], names


@pytest.fixture(scope="module")
def on_a_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Send all objects to one other process; return what is wrong with each there."""
    folder = tmp_path_factory.mktemp("kinds")
    for number, (source, check) in enumerate(TRAVELS.values()):
        it, names = made(source)
        (folder / f"{number}.check").write_text(check)
        try:
            (folder / f"{number}.pickle").write_bytes(dumps({"it": it}, names, "The names"))
        except NotPicklable as error:
            (folder / f"{number}.refused").write_text(error.message)
    command = [sys.executable, "-c", RANK, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    outcomes = json.loads(answer.stdout.splitlines()[-1])
    outcomes |= {path.stem: path.read_text() for path in Path(folder).glob("*.refused")}
    return {kind: outcomes[str(number)] for number, kind in enumerate(TRAVELS)}


@pytest.mark.parametrize("kind", TRAVELS)
def test_it_works_on_a_rank(on_a_rank: dict[str, str], kind: str) -> None:
    assert on_a_rank[kind] == ""


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_with_its_reason(kind: str) -> None:
    source, reason = REFUSED[kind]
    it, names = made(source)
    with pytest.raises(NotPicklable) as caught:
        dumps({"it": it}, names, "The names")
    assert reason in caught.value.message


def test_a_cached_function_of_a_module_beside_the_notebook_brings_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minicluster.pickling.pickling import pack_names

    (tmp_path / "nearby_cached.py").write_text(
        "import functools\n@functools.cache\ndef answer(): return 42\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    it, names = made("from nearby_cached import answer as it")
    assert "nearby_cached" in pack_names({"it": it}, names, "The names").modules
