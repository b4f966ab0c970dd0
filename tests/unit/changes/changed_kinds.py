"""Kinds of objects and of changes: those that are applied in the notebook, and those only reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Code that creates an object, and the cell that changes it.

    says: part of the expected message; "" if all changes are applied.
    instead: code that gives the expected state of the notebook; "": unchanged; None: the cell itself.
    needs: a module that this kind requires.
    """

    setup: str
    cell: str
    says: str = ""
    instead: str | None = None
    needs: str = ""


def stays(setup: str, cell: str, says: str = "", instead: str = "", needs: str = "") -> Kind:
    return Kind(setup, cell, says, instead, needs)


def new(setup: str, cell: str, instead: str, needs: str = "") -> Kind:
    """Return a kind that is returned as a new object, with a message."""
    return Kind(setup, cell, "`x` is a new object now", instead, needs)


_NET = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
head, parameters = model[0], list(model.parameters())
"""
_OPTIMIZER = _NET + "optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)\n"
_STEP = "optimizer.zero_grad(); model(torch.ones(4, 2)).square().sum().backward(); optimizer.step()\n"

PYTHON = {
    "deque with maxlen": Kind("from collections import deque\nx = deque([1, 2], maxlen=2)", "x.append(3)"),
    "bytearray": Kind("x = bytearray(b'ab')", "x += b'c'; x[0] = 7"),
    "array.array": Kind("import array\nx = array.array('d', [1])", "x.append(2.5); x[0] = 3"),
    "Counter": Kind("from collections import Counter\nx = Counter('ab')", "x.update('bc'); x['a'] -= 1"),
    "defaultdict": Kind(
        "from collections import defaultdict\nx = defaultdict(list)", "x['k'].append(1); x['l']"
    ),
    "defaultdict with another factory": Kind(
        "from collections import defaultdict\nx = defaultdict(list)", "x.default_factory = dict; x['k']"
    ),
    "order of an OrderedDict": Kind(
        "from collections import OrderedDict\nx = OrderedDict(a=1, b=2)", "x.move_to_end('a')"
    ),
    "order of a dict": Kind("x = {'a': 1, 'b': 2}", "x['a'] = x.pop('a')"),
    "keys that are objects": Kind(
        "class K: pass\nkey = K()\nx = {key: 1, (1, key): 2}", "x[key] += 1; x[(1, key)] = key"
    ),
    "set of objects": Kind(
        "class K:\n    def __init__(self, mark): self.mark = mark\none, two = K(1), K(2)\nx = {one}",
        "x.add(two); x.add(K(3)); one.seen = x",
    ),
    "objects in a set that have a hash of their own": Kind(
        "class K:\n    def __init__(self, mark): self.mark = mark\n"
        "    def __hash__(self): return hash(self.mark)\n"
        "    def __eq__(self, other): return self.mark == other.mark\nx = {K(1)}",
        "x.add(K(2)); x.discard(K(1))",
    ),
    "frozen dataclass": Kind(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: list\nx = D([1])",
        "x.a.append(2); object.__setattr__(x, 'b', 3)",
    ),
    "dataclass with slots": Kind(
        "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass D:\n    a: int\nx = D(1)", "x.a = [x]"
    ),
    "frozen dataclass with slots": Kind(
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass D:\n    a: int\nx = D(1)",
        "object.__setattr__(x, 'a', 2)",
    ),
    "namedtuple in a list": Kind(
        "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int\n    b: list\n"
        "x, y = [P(1, [2])], []",
        "x[0].b.append(3); y.append(x[0]._replace(a=5)); x.append(x[0])",
    ),
    "properties": Kind(
        "class P:\n    def __init__(self): self._a = 1\n    @property\n    def a(self): return self._a\n"
        "    @a.setter\n    def a(self, to): self._a = to * 2\nx = P()",
        "x.a = 4",
    ),
    "a class whose __setattr__ refuses": Kind(
        "class P:\n    def __setattr__(self, name, value): raise AttributeError(name)\nx = P()",
        "x.__dict__['a'] = 4",
    ),
    "an object with a new lock": Kind(
        "class P: pass\nx = P()",
        "import threading\nx.lock, x.a = threading.Lock(), 2",
        "the rest of `x` came",
        "x.a = 2\nimport threading",
    ),
    "an object whose __getstate__ leaves its lock out": Kind(
        "import threading\nclass P:\n    def __init__(self): self.lock, self.a = threading.Lock(), 1\n"
        "    def __getstate__(self): return {k: v for k, v in self.__dict__.items() if k != 'lock'}\n"
        "    def __setstate__(self, state): self.__dict__.update(state, lock=threading.Lock())\n"
        "x = P()\nlock = x.lock",
        "x.a = 2; x.b = [x]",
    ),
    "an object whose __getstate__ makes something else": Kind(
        "class P:\n    def __init__(self): self.a = 1\n    def __getstate__(self): return [self.a]\n"
        "    def __setstate__(self, state): self.a = state[0]\nx = P()",
        "x.a = 2",
    ),
    "__getstate__ that raises": stays(
        "class P:\n    def __getstate__(self):\n        if self.a > 1: raise ValueError('not now')\n"
        "        return self.__dict__\nx = P()\nx.a = 1\ny = [x]\nz = []",
        "x.a = 2; y.append(1); z.append(1)",
        "not now",
        "z.append(1)",
    ),
    "slots, of which __getstate__ leaves some out": Kind(
        "class P:\n    __slots__ = ('a', 'cache')\n    def __getstate__(self): return None, {'a': self.a}\n"
        "x = P()\nx.a = 1",
        "x.a = [x]",
    ),
    "a __getstate__ that makes new objects each time": Kind(
        "class P:\n    n = 0\n    def __getstate__(self): return {'n': {self.n}}\n"
        "    def __setstate__(self, state): self.n, = state['n']\nx, y = P(), P()",
        "x.n = 4",
    ),
    "equal objects that are not the same in a set": Kind(
        "class K:\n    def __init__(self, mark, more): self.mark, self.more = mark, more\n"
        "    def __hash__(self): return hash(self.mark)\n"
        "    def __eq__(self, other): return self.mark == other.mark\nx = {K(1, 1)}",
        "x.discard(K(1, 0)); x.add(K(1, 2))",
    ),
    "a dict's iterator": stays(
        "d, y = {'a': 1, 'b': 2}, []\nx = iter(d.items())",
        "k = next(x); y.append(1)",
        "nothing of `x` came",
        "k = 'a', 1; y.append(1)",
    ),
    "an object that travels as a list": stays(
        "class L:\n    def __reduce__(self): return list, ([1],)\nx, y = L(), []",
        "x.append(2); y.append(1)",
        "nothing of `x` came",
        "y.append(1)",
    ),
    "a class that lists its subclasses": Kind(
        "class Base:\n    known = {}\n    def __init_subclass__(cls): Base.known[cls.__name__] = cls\n"
        "class A(Base): pass",
        "class B(Base): pass\nA.names = sorted(Base.known)",
    ),
    "__reduce__ without state": new(
        "class P:\n    def __init__(self, a): self.a = a\n    def __reduce__(self): return P, (self.a,)\n"
        "x = P(1)\nold = [x]",
        "x.a = 2",
        "x = P(2)",
    ),
    "__reduce__ that hides what changed": Kind(
        "class P:\n    a = 1\n    def __reduce__(self): return P, ()\nx = P()\nold = [x]", "x.a = 2"
    ),
    "exception": Kind("x = ValueError('a')", "x.args = ('b',); x.note = 1; x.add_note('here')"),
    "exception of the notebook": Kind(
        "class E(Exception):\n    def __init__(self, a, b): super().__init__(a); self.b = b\nx = E(1, 2)",
        "x.b = [x]",
    ),
    "immutable values": Kind(
        "import datetime, pathlib\nx = [datetime.date(2020, 1, 1), pathlib.Path('a')]",
        "x[0] += datetime.timedelta(1); x[1] = x[1] / 'b'",
    ),
    "class attributes": Kind(
        "class C:\n    rate, seen = 1, []\n    def m(self): return 1\nx = C()",
        "C.rate = 2; C.seen.append(x); C.new = C; del C.m",
    ),
    "slots of a class and its base": Kind(
        "class A: __slots__ = ('a',)\nclass B(A): __slots__ = ('b',)\nx = B()\nx.a = 1", "x.b = [x]; del x.a"
    ),
    "function attributes and defaults": Kind(
        "def f(x=[], *, y={}): pass",
        "f.calls = 1; f.__defaults__[0].append(1); f.__kwdefaults__['y']['a'] = f",
    ),
    "a cell that two closures share": Kind(
        "def make():\n    n, seen = 0, []\n    def inc():\n        nonlocal n\n"
        "        n += 1; seen.append(n)\n"
        "    return inc, lambda: (n, seen)\ninc, get = make()",
        "inc(); inc()",
    ),
    "bound method": Kind("class C:\n    def m(self): self.a = 1\nx = C()\nm = x.m", "m()"),
    "functools.partial": Kind(
        "import functools\nx = functools.partial(max, [1])", "x.note = 1; x.args[0].append(2)"
    ),
    "partial with other keywords": Kind(
        "import functools\nx = functools.partial(dict, a=1)", "x.keywords['b'] = 2"
    ),
    "random.Random": Kind("import random\nx = random.Random(1)", "x.random()"),
    "BytesIO": Kind("import io\nx = io.BytesIO(b'abc')", "x.read(1); x.write(b'xyz')"),
    "StringIO": Kind("import io\nx = io.StringIO('abc')", "x.read(1); x.write('xyz')"),
    "itertools.count": new(
        "import itertools\nx = itertools.count()\nold = [x]", "next(x)", "x = itertools.count(1)"
    ),
    "list iterator": Kind("x = iter([1, 2, 3])", "next(x)"),
    "a subclass of list with attributes": Kind(
        "class L(list): pass\nx = L([1])\nalias = x", "x.append(x); x.more = 1"
    ),
    "a subclass of dict that counts": Kind(
        "class D(dict):\n    sets = 0\n    def __setitem__(self, k, v):\n        self.sets += 1\n"
        "        super().__setitem__(k, v)\nx = D()\nx['a'] = 1",
        "x['b'] = 2",
    ),
    "SimpleNamespace": Kind(
        "from types import SimpleNamespace\nx = SimpleNamespace(a=1)", "x.a = 2; x.b = x"
    ),
    "enum members' attributes": Kind(
        "import enum\nclass E(enum.Enum):\n    A = 1\nx = [E.A]", "x.append(E.A)"
    ),
    "what was set on an enum's member": Kind(
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\nE.B.note = [1]\nx = E.A",
        "x.note = 'a'; E.B.note.append(2)",
    ),
    "generator": stays("y = [1]", "x = (i for i in y); y.append(2)", "x", "y.append(2)"),
    "imported modules' state": stays(
        "import calendar\nx = []", "calendar.new_thing = 1; x.append(1)", "", "x.append(1)"
    ),
    "global random state": stays(
        "import random\nrandom.seed(1)\nx = []", "_ = random.random(); x.append(1); del _", "", "x.append(1)"
    ),
    "a lock in a list": stays(
        "x, y = [1], {}",
        "import threading\nx.append(threading.Lock()); y[1] = x",
        "nothing of `x`, `y` came",
        "import threading",
    ),
    "global set by a function": Kind("n = 0\ndef f():\n    global n\n    n += 1", "f()"),
    "a tuple that holds what changes": Kind("x = ([1], {})\ny = [x]", "x[0].append(x); x[1]['a'] = x[0]"),
    "another class": stays("class A: pass\nclass B: pass\nx = A()", "x.__class__ = B", "x"),
}
NUMPY = {
    "generator": Kind("import numpy as np\nx = np.random.default_rng(1)", "x.random()"),
    "RandomState": Kind("import numpy as np\nx = np.random.RandomState(1)", "x.rand(3)"),
    "array": Kind("import numpy as np\nx = np.zeros(4)\nalias = x", "x += 1"),
    "view, where only the view is sent": Kind(
        "import numpy as np\nbase = np.zeros(6)\nx = base[1:4]", "x += 1"
    ),
    "view, where both are sent": Kind(
        "import numpy as np\nbase = np.zeros(6)\nx = base[1:4]", "x += 1; base[0] = 9"
    ),
    "views of a base without a name": Kind(
        "import numpy as np\nx = np.arange(6).reshape(2, 3)\ny = x.T", "y[0] = 7"
    ),
    "another shape": new(
        "import numpy as np\nx = np.zeros(6)\nold = [x]",
        "x.shape = (2, 3); x[0] = 5",
        "x = np.array([[5.0] * 3, [0.0] * 3])",
    ),
    "made read-only": new(
        "import numpy as np\nx = np.zeros(3)\nold = [x]",
        "x[0] = 1; x.flags.writeable = False",
        "x = np.array([1.0, 0, 0]); x.flags.writeable = False",
    ),
    "structured": Kind(
        "import numpy as np\nx = np.zeros(2, dtype=[('a', 'i4'), ('b', 'f8')])", "x['b'] = 3; x[0]['a'] = 1"
    ),
    "object dtype": Kind(
        "import numpy as np\ny = [1]\nx = np.array([y, None], dtype=object)",
        "x[1] = y; y.append(x)",
    ),
    "strings and dates": Kind(
        "import numpy as np\nx = np.array(['a', 'bc'])\nd = np.array(['2020-01-01'], dtype='M8[D]')",
        "x[0] = 'zz'; d += 1",
    ),
    "a view of one that has gaps here": Kind(
        "import numpy as np\nbase = np.zeros(400_000)\nx = base[::40]",
        "x[1] = 5; y = x[1:4]",
        instead="x[1] = 5; y = x[1:4].copy()",
    ),
    "Fortran order": Kind("import numpy as np\nx = np.zeros((2, 3), order='F')", "x[1] = 4"),
    "masked": Kind(
        "import numpy as np\nx = np.ma.array([1, 2, 3], mask=[0, 1, 0])", "x[0] = np.ma.masked; x[2] = 9"
    ),
    "masked, the fill value": Kind(
        "import numpy as np\nx = np.ma.array([1, 2, 3], mask=[0, 1, 0])", "x.fill_value = 7; x[1] = 5"
    ),
    "a record": Kind(
        "import numpy as np\nx = np.array((1, 2.0), dtype=[('a', 'i4'), ('b', 'f8')])[()]", "x['b'] = 3"
    ),
    "a record of an array that is not sent": Kind(
        "import numpy as np\nbase = np.zeros(2, dtype=[('a', 'i4'), ('b', 'f8', 2)])\nx = base[1]",
        "x['b'][1] = 3; x['a'] = 4",
    ),
    "a record and its array": Kind(
        "import numpy as np\nbase = np.zeros(2, dtype=[('a', 'i4'), ('b', 'f8')])\nx = base[1]",
        "x['b'] = 3; base['a'][1] = 4; base['b'][1] += x['b']",
    ),
    "a record of a recarray": Kind(
        "import numpy as np\nbase = np.rec.array([(1, 2.0), (3, 4.0)], names='a,b')\nx = base[1]",
        "x.b = 3; base.a[1] = 4",
    ),
    "a record with objects": Kind(
        "import numpy as np\ny = [1]\nx = np.array([(1, y)], dtype=[('a', 'i4'), ('b', 'O')])[0]",
        "x['a'] = 2; x['b'].append(3)",
    ),
    "scipy's sparse matrix": Kind(
        "import scipy.sparse as sp\nx = sp.csr_matrix([[1, 0], [0, 2]])", "x.data *= 3", needs="scipy"
    ),
    "scipy's sparse matrix of dicts": Kind(
        "import scipy.sparse as sp\nx = sp.lil_matrix((2, 2))", "x[0, 1] = 5", needs="scipy"
    ),
    "zero dimensions": Kind("import numpy as np\nx = np.zeros(())", "x += 1"),
    "memory of a tensor": Kind(
        "import numpy as np, torch\nt = torch.zeros(3)\nx = t.numpy()", "x += 1", needs="torch"
    ),
    "memory of a tensor, where both are sent": Kind(
        "import numpy as np, torch\nt = torch.zeros(3)\nx = t.numpy()", "x += 1; t[0] = t[0]", needs="torch"
    ),
    "recarray": Kind("import numpy as np\nx = np.rec.array([(1, 2.0)], names='a,b')", "x.a[0] = 5"),
    "matrix": Kind("import numpy as np\nx = np.matrix([[1, 2]])", "x[0, 0] = 5"),
}
_FRAME = "import pandas as pd\nx = pd.DataFrame({'a': [1, 2, 3], 'b': ['u', 'v', 'w']})\nalias = x\n"
PANDAS = {
    name: Kind(setup, cell, needs="pandas")
    for name, setup, cell in (
        ("a column added", _FRAME, "x['c'] = x['a'] * 2"),
        ("cells set", _FRAME, "x.loc[0, 'a'] = 7; x.iloc[1, 1] = 'z'"),
        ("rows dropped", _FRAME, "x.drop(index=[0], inplace=True)"),
        (
            "sorted, index set",
            _FRAME,
            "x.sort_values('b', ascending=False, inplace=True); x.set_index('b', inplace=True)",
        ),
        ("columns renamed", _FRAME, "x.columns = ['q', 'r']"),
        ("attrs", _FRAME, "x.attrs['note'] = 1"),
        ("a row added", _FRAME, "x.loc[9] = [9, 'n']"),
        (
            "an index that two share",
            _FRAME + "i = x.index\ns = pd.Series([1, 2, 3], index=i)",
            "x['a'] = 5; s[0] = 9",
        ),
        (
            "Series",
            "import pandas as pd\nx = pd.Series([1.0, 2.0])\nalias = x",
            "x[0] = 5; x[7] = 8; x.name = 'n'",
        ),
        ("a frame within an object", _FRAME + "y = {'f': x}", "y['f']['c'] = 1; y['n'] = 2"),
        (
            "categories",
            "import pandas as pd\nx = pd.DataFrame({'a': pd.Categorical(['u', 'v'])})",
            "x.loc[0, 'a'] = 'v'",
        ),
    )
}
PANDAS["Index"] = new(
    "import pandas as pd\nx = pd.Index([1, 2])\nold = [x]",
    "x.name = 'n'",
    "x = pd.Index([1, 2], name='n')",
    "pandas",
)
TORCH = {
    "submodules added and removed": Kind(
        _NET,
        "model.append(nn.ReLU()); del model[1]; model.extra = nn.Linear(1, 1)\n"
        "nn.init.ones_(model.extra.weight); nn.init.ones_(model.extra.bias)",
    ),
    "train and eval": Kind(_NET, "model.eval(); head.train()"),
    "requires_grad": Kind(_NET, "head.weight.requires_grad_(False)"),
    "parameter replaced": Kind(_NET, "head.weight = nn.Parameter(torch.ones(5, 2))"),
    "buffers replaced": Kind(
        _NET, "model[1].running_mean = torch.ones(3); model[1].register_buffer('b', torch.ones(1))"
    ),
    "buffers trained": Kind(_NET, "_ = model(torch.arange(8.0).view(4, 2)); del _"),
    "hooks removed": Kind(
        _NET + "def hook(*a): return None\nhandle = model.register_forward_hook(hook)", "handle.remove()"
    ),
    "hooks added": Kind(_NET + "def hook(*a): return None", "handle = model.register_forward_hook(hook)"),
    "lazily made parameters": Kind(
        "import torch\nfrom torch import nn\nmodel = nn.LazyLinear(2)\nweight = model.weight",
        "torch.manual_seed(1)\n_ = model(torch.ones(1, 3)); del _",
        "model",
        "",
    ),
    "parametrized": Kind(
        _NET,
        "from torch.nn.utils.parametrizations import weight_norm\nweight_norm(head)",
        "nothing of `head` came",
        "from torch.nn.utils.parametrizations import weight_norm",
    ),
    "weight_norm of before": Kind(
        _NET,
        "from torch.nn.utils import weight_norm\n"
        "import warnings\nwarnings.simplefilter('ignore')\nweight_norm(head)",
    ),
    "spectral_norm trained": Kind(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "model = torch.nn.utils.spectral_norm(nn.Linear(2, 2))",
        "_ = model(torch.ones(1, 2)); del _",
    ),
    "compiled in the cell": Kind(
        _NET,
        "c = torch.compile(model, backend='eager')\nwith torch.no_grad(): model[0].weight.fill_(1)\ndel c",
    ),
    "optimizer": Kind(_OPTIMIZER, _STEP),
    "Adam": Kind(_NET + "optimizer = torch.optim.Adam(model.parameters())", _STEP),
    "optimizer with a group added": Kind(
        _OPTIMIZER + "extra = nn.Parameter(torch.ones(2))",
        "optimizer.add_param_group({'params': [extra], 'lr': 0.1}); optimizer.param_groups[0]['lr'] = 0.2",
    ),
    "scheduler": Kind(
        _OPTIMIZER + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)", _STEP + "scheduler.step()"
    ),
    "OneCycleLR": Kind(
        _OPTIMIZER + "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)",
        _STEP + "scheduler.step()",
    ),
    "LambdaLR": Kind(
        _OPTIMIZER + "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5 ** e)",
        _STEP + "scheduler.step()",
    ),
    "SequentialLR": Kind(
        _OPTIMIZER + "S = torch.optim.lr_scheduler\nscheduler = S.SequentialLR(optimizer, "
        "[S.ConstantLR(optimizer), S.ExponentialLR(optimizer, 0.5)], [1])",
        _STEP + "scheduler.step(); scheduler.step()",
    ),
    "AveragedModel": Kind(
        _NET + "average = torch.optim.swa_utils.AveragedModel(model)",
        "with torch.no_grad(): head.weight.fill_(2)\naverage.update_parameters(model)",
    ),
    "generator": Kind(
        "import torch\nx = torch.Generator().manual_seed(1)", "_ = torch.rand(3, generator=x); del _"
    ),
    "view, where only it is sent": Kind("import torch\nbase = torch.zeros(6)\nx = base[1:4]", "x.add_(1)"),
    "tied parameters": Kind(
        _NET + "model[0].tied = head.bias",
        "with torch.no_grad(): head.bias.fill_(4)\nmodel[0].more = head.bias",
    ),
    "data swapped": Kind("import torch\nx = torch.zeros(3)\nalias = x", "x.data = torch.ones(3)"),
    "data swapped for another shape": Kind(
        "import torch\nx = torch.zeros(3)\nalias = x", "x.data = torch.ones(2, 2)"
    ),
    "set_ to another tensor's memory": Kind(
        "import torch\nx, y = torch.zeros(3), torch.ones(3)\nalias = x", "x.set_(y); y.add_(1)"
    ),
    "resize_": Kind("import torch\nx = torch.zeros(3)\nalias = x", "x.resize_(5).fill_(2)"),
    "resize_ of what a view shows": Kind(
        "import torch\nx = torch.zeros(4)\nview = x[:2]", "x.resize_(6).fill_(2); view.add_(1)"
    ),
    "transposed in place": Kind(
        "import torch\nx = torch.arange(6.0).view(2, 3)\nalias = x", "x.t_(); x[0] = 9"
    ),
    "expanded": Kind("import torch\nx = torch.zeros(1).expand(3)\nbase = x._base", "x[0:1] += 1"),
    "complex": Kind("import torch\nx = torch.zeros(2, dtype=torch.complex64)", "x += 1j"),
    "conjugated": Kind("import torch\nx = torch.ones(2, dtype=torch.complex64).conj()", "x += 1j"),
    "bfloat16": Kind("import torch\nx = torch.zeros(2, dtype=torch.bfloat16)", "x += 1"),
    "float8": Kind("import torch\nx = torch.zeros(2).to(torch.float8_e4m3fn)", "x.copy_(torch.ones(2))"),
    "quantized": new(
        "import torch\nx = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)\nold = [x]",
        "x.copy_(torch.zeros(2))",
        "x.copy_(torch.zeros(2)); x = x.detach()",
    ),
    "sparse": new(
        "import torch\nx = torch.eye(2).to_sparse()\nold = [x]",
        "x.mul_(3)",
        "x = (torch.eye(2) * 3).to_sparse()",
    ),
    "a gradient": stays(
        "import torch\nx = torch.ones(2, requires_grad=True)\ny = []",
        "(x * 3).sum().backward(); y.append(1)",
        "",
        "y.append(1)",
    ),
    "attributes of a tensor": Kind("import torch\nx = torch.ones(2)\nalias = x", "x.note = [x]; x.add_(1)"),
    "a tensor made a parameter": Kind("import torch\nx = [torch.ones(2)]", "x[0] = torch.nn.Parameter(x[0])"),
    "ParameterList and ModuleDict": Kind(
        "import torch\nx = torch.nn.ParameterList([torch.ones(1)])\n"
        "y = torch.nn.ModuleDict({'a': torch.nn.ReLU()})",
        "x.append(torch.ones(2)); y['b'] = torch.nn.Linear(1, 1, bias=False)\n"
        "torch.nn.init.ones_(y['b'].weight)",
    ),
    "a subclass of Tensor": Kind(
        "import torch\nclass T(torch.Tensor): pass\nx = torch.ones(2).as_subclass(T)", "x.add_(1)"
    ),
    "a module's own lock": Kind(
        _NET,
        "import threading\nmodel.lock = threading.Lock(); model.steps = 3",
        "the rest of `model` came",
        "import threading\nmodel.steps = 3",
    ),
    "inference mode": Kind(
        "import torch\nwith torch.inference_mode(): x = torch.ones(2)",
        "with torch.inference_mode(): x.add_(1)",
    ),
    "a storage": Kind("import torch\nt = torch.zeros(3)\nx = t.untyped_storage()", "t.add_(1); x[0] = 5"),
    "nested": new(
        "import torch\nx = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])\nold = [x]",
        "x.mul_(2)",
        "x.mul_(2); x = x.detach()",
    ),
    "random state of torch": stays(
        "import torch\ntorch.manual_seed(1)\nx = []",
        "_ = torch.rand(1); x.append(1); del _",
        "",
        "x.append(1)",
    ),
}
TORCH |= {
    "LBFGS": Kind(
        _NET + "optimizer = torch.optim.LBFGS(head.parameters(), lr=0.1, max_iter=3)",
        "def closure():\n"
        "    optimizer.zero_grad()\n    loss = head(torch.ones(4, 2)).square().sum()\n    loss.backward()\n"
        "    return loss\n"
        "optimizer.step(closure)\ndel closure",
    ),
    "an optimizer of one's own": Kind(
        _NET + "class Counting(torch.optim.SGD):\n    taken = []\n"
        "    def __init__(self, parameters, lr):\n        super().__init__(parameters, lr)\n"
        "        self.steps, self.taken = 0, [lr]\n"
        "    def step(self, closure=None):\n        self.steps += 1\n        self.taken.append(self.steps)\n"
        "        return super().step(closure)\n"
        "optimizer = Counting(model.parameters(), lr=0.5)\n",
        _STEP,
    ),
}
TABLES = {"python": PYTHON, "numpy": NUMPY, "pandas": PANDAS, "torch": TORCH}
