"""Which names a cell takes from outside: one walk over its statements, in the order they run.

A name counts as read when some path may use it before the cell itself has settled it for certain: bound it,
or deleted it. Wherever a statement may be left early, what it would have bound after that is not settled.
Bodies of functions run later: what they use counts from the moment their name is bound.
"""

from __future__ import annotations

import ast
import copy
import dis
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from types import CodeType

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class CellNames:
    reads: frozenset[str]
    assigned: tuple[str, ...]
    imported: frozenset[str]


def names_of(tree: ast.Module) -> CellNames:
    """Names that a module's statements read from outside, bind, and bind by import."""
    flow = _Flow()
    flow.run(tree.body)
    stored_by_functions = inner_names(compile(tree, "<cell>", "exec", dont_inherit=True), {"STORE_GLOBAL"})
    assigned = dict.fromkeys([*flow.assigned, *sorted(stored_by_functions)])
    return CellNames(
        reads=frozenset(name for name in flow.reads if not _own_to_python(name)),
        assigned=tuple(name for name in assigned if not _own_to_python(name) and name != "_"),
        imported=frozenset(flow.imported),
    )


def _own_to_python(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


@dataclass
class _Flow:
    """State of the walk: `settled` holds what the cell itself has bound or deleted for certain at this point.

    around: in a class's body what is settled outside of classes, None elsewhere.
    unsure: names of a class that its body deletes: they are looked up outside again.
    later: what bodies of functions read, held back until the class around them is bound.
    """

    settled: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    assigned: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    around: frozenset[str] | None = None
    unsure: frozenset[str] = frozenset()
    later: set[str] = field(default_factory=set)

    def run(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            handler = _HANDLERS.get(type(statement))
            if handler is not None:
                handler(self, statement)
            elif not isinstance(statement, ast.Break | ast.Continue):
                self.take(statement)

    def read(self, names: Iterable[str]) -> None:
        self.reads.update(name for name in names if name not in self.settled)

    def read_later(self, names: set[str]) -> None:
        """Take what a function's body reads; names of the class around it are no names to it."""
        if self.around is None:
            self.read(names)
        else:
            self.later |= names

    def visit(self, node: ast.stmt) -> list[str]:
        """Take all that a statement reads, and return the names that it may bind."""
        code = compiled(node)
        self.read(names_in(code, LOADS))
        self.read_later(inner_names(code, LOADS))
        if self.around is not None:
            self.later |= _read_by_comprehensions(node)
        stored = list(names_in(code, {"STORE_NAME"}))
        self.assigned.extend([*stored, *sorted(inner_names(code, {"STORE_GLOBAL"}))])
        return stored

    def take(self, statement: ast.stmt) -> None:
        """Take a simple statement: all that its code reads, then what it binds."""
        stored = self.visit(statement)
        perhaps = targets_in(statement)
        self.settle(name for name in stored if name not in perhaps)
        for part in ast.iter_child_nodes(statement):
            if part is not getattr(statement, "annotation", None):
                self.settle(bound_by(part).always)

    def test(self, node: ast.expr) -> tuple[frozenset[str], frozenset[str]]:
        """Take a condition; return what is bound where it is true, and where it is false."""
        self.visit(ast.Expr(node))
        bound = bound_by(node)
        self.settle(bound.always)
        return bound.if_true, bound.if_false

    def settle(self, names: Iterable[str]) -> None:
        self.settled.update(name for name in names if name not in self.unsure)

    def bind(self, names: Iterable[str]) -> None:
        names = list(names)
        self.assigned.extend(names)
        self.settle(names)

    def bind_target(self, target: ast.expr) -> None:
        """Bind a loop's or a with's target; bases of subscripts and attributes are read."""
        self.take(ast.Assign([target], ast.Constant(None)))

    def branch(self, block: Iterable[ast.stmt], more: Iterable[str] = ()) -> set[str]:
        """Run one of several blocks; return what is settled at its end, with `settled` as before it."""
        start = set(self.settled)
        self.settle(more)
        self.run(block)
        end, self.settled = self.settled, start
        return end


def _on_if(flow: _Flow, node: ast.If) -> None:
    if_true, if_false = flow.test(node.test)
    flow.settled = flow.branch(node.body, if_true) & flow.branch(node.orelse, if_false)


def _on_while(flow: _Flow, node: ast.While) -> None:
    if_true, if_false = flow.test(node.test)
    flow.branch(node.body, if_true)
    flow.branch(node.orelse, if_false)


def _on_for(flow: _Flow, node: ast.For) -> None:
    flow.take(ast.Expr(node.iter))
    start = set(flow.settled)
    flow.bind_target(node.target)
    flow.run(node.body)
    flow.settled = start
    flow.branch(node.orelse)


def _on_with(flow: _Flow, node: ast.With) -> None:
    """Whatever comes after the entering may fail, and the error be swallowed: it settles nothing."""
    first, *_ = node.items
    flow.take(ast.Expr(first.context_expr))
    if isinstance(first.optional_vars, ast.Name):
        flow.bind_target(first.optional_vars)
    sure = set(flow.settled)
    for item in node.items:
        if item is not first:
            flow.take(ast.Expr(item.context_expr))
        if item.optional_vars is not None:
            flow.bind_target(item.optional_vars)
    flow.run(node.body)
    if not all(lets_errors_through(item.context_expr) for item in node.items):
        flow.settled = sure


def _on_try(flow: _Flow, node: ast.Try | ast.TryStar) -> None:
    ends = [flow.branch([*node.body, *node.orelse])]
    for handler in node.handlers:
        if handler.type is not None:
            flow.visit(ast.Expr(handler.type))
        ends.append(flow.branch(handler.body, _caught(flow, handler)))
    flow.run(node.finalbody)
    flow.settled |= set.intersection(*ends)


def _caught(flow: _Flow, handler: ast.ExceptHandler) -> list[str]:
    names = [handler.name] if handler.name else []
    flow.assigned.extend(names)
    return names


def _on_match(flow: _Flow, node: ast.Match) -> None:
    flow.take(ast.Expr(node.subject))
    for case in node.cases:
        simple = ast.match_case(case.pattern, case.guard, [ast.Pass()])
        stored = flow.visit(ast.Match(ast.Constant(None), [simple]))
        captured = set(stored) - (targets_in(case.guard) if case.guard else set())
        flow.branch(case.body, captured | bound_by(case.guard).if_true)


def _on_assert(flow: _Flow, node: ast.Assert) -> None:
    flow.visit(node)  # With -O it is not run.


def _on_function(flow: _Flow, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    code = compiled(node)
    flow.read(names_in(code, LOADS))
    flow.assigned.extend(names_in(code, {"STORE_NAME"}))
    flow.settle([node.name])
    flow.read_later(inner_names(code, LOADS))


def _on_class(flow: _Flow, node: ast.ClassDef) -> None:
    shell = copy.copy(node)
    shell.body = [ast.Pass()]
    flow.visit(shell)
    outside = flow.settled if flow.around is None else flow.around
    body = _Flow(settled=set(outside), around=frozenset(outside), unsure=_deleted_in(node))
    body.run(node.body)
    flow.reads |= body.reads
    flow.settle([node.name])
    flow.read_later(body.later)


def _on_delete(flow: _Flow, node: ast.Delete) -> None:
    flow.visit(node)
    flow.settle(target.id for target in node.targets if isinstance(target, ast.Name))


def _on_import(flow: _Flow, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return
    names = [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    flow.bind(names)
    flow.imported.update(names)


_HANDLERS = {
    ast.If: _on_if,
    ast.While: _on_while,
    ast.For: _on_for,
    ast.With: _on_with,
    ast.Try: _on_try,
    ast.TryStar: _on_try,
    ast.Match: _on_match,
    ast.Assert: _on_assert,
    ast.FunctionDef: _on_function,
    ast.AsyncFunctionDef: _on_function,
    ast.ClassDef: _on_class,
    ast.Delete: _on_delete,
    ast.Import: _on_import,
    ast.ImportFrom: _on_import,
}


def _deleted_in(node: ast.ClassDef) -> frozenset[str]:
    parts = list(ast.walk(node))
    deleted = (part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del))
    caught = (part.name for part in parts if isinstance(part, ast.ExceptHandler) and part.name)
    return frozenset([*deleted, *caught])


def _read_by_comprehensions(node: ast.stmt) -> set[str]:
    """Return what comprehensions in a class look up outside of it: names of the class are none to them."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, _COMPREHENSIONS):
            names = [name for name in ast.walk(part) if isinstance(name, ast.Name)]
            own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            found |= {name.id for name in names} - own
    return found


# Which names `:=` binds for certain when an expression is evaluated, and which only perhaps.


_LAZY = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Bound:
    """Names that are bound for certain when the expression turns out true, or false."""

    if_true: frozenset[str] = frozenset()
    if_false: frozenset[str] = frozenset()

    @property
    def always(self) -> frozenset[str]:
        return self.if_true & self.if_false


def bound_by(node: ast.AST | None) -> Bound:
    """Return what evaluating an expression binds. `a and (m := f())` binds m only if it is true."""
    match node:
        case None:
            return Bound()
        case ast.NamedExpr(target=target, value=value):
            inner, own = bound_by(value), {target.id}
            return Bound(inner.if_true | own, inner.if_false | own)
        case ast.BoolOp(op=ast.And(), values=[first, *rest]):
            every = frozenset().union(*(bound_by(value).if_true for value in rest))
            return Bound(bound_by(first).if_true | every, bound_by(first).always)
        case ast.BoolOp(op=ast.Or(), values=[first, *rest]):
            every = frozenset().union(*(bound_by(value).if_false for value in rest))
            return Bound(bound_by(first).always, bound_by(first).if_false | every)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = bound_by(operand)
            return Bound(inner.if_false, inner.if_true)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            where, one, other = bound_by(test), bound_by(body), bound_by(orelse)
            return Bound(
                (where.if_true | one.if_true) & (where.if_false | other.if_true),
                (where.if_true | one.if_false) & (where.if_false | other.if_false),
            )
        case ast.Compare(left=left, comparators=[second, *later]):
            # `a < b < c` evaluates c only where a < b.
            first = bound_by(left).always | bound_by(second).always
            return Bound(first.union(*(bound_by(part).always for part in later)), first)
    if isinstance(node, _LAZY):
        return Bound()
    # A node that evaluates all of its parts.
    every = frozenset().union(*(bound_by(part).always for part in ast.iter_child_nodes(node)))
    return Bound(every, every)


def targets_in(node: ast.AST) -> set[str]:
    """Return every name that a `:=` somewhere in a node binds."""
    return {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}


# Which contexts of `with` are known to swallow no error; behind any other a cell may go on half done.


_MODULES = frozenset({"torch", "warnings", "tempfile", "tqdm"})
_FILES = ("open", "File", "ZipFile", "TemporaryDirectory", "NamedTemporaryFile")
_WAITING = ("Lock", "Pool", "ThreadPoolExecutor", "ProcessPoolExecutor", "tqdm", "catch_warnings")
_TRAINING = (
    *("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "detect_anomaly"),
    *("device", "profile", "record_function", "no_sync", "accumulate"),
)
_NAMES = frozenset([*_FILES, *_WAITING, *_TRAINING])
"""By the last part of what is called: `file.open()`, `model.no_sync()`."""


def lets_errors_through(context: ast.expr) -> bool:
    """Say whether an error inside of the context surely leaves it."""
    called = context.func if isinstance(context, ast.Call) else context
    path = ast.unparse(called).split(".")
    return path[0] in _MODULES or path[-1] in _NAMES


# What compiled code loads and stores by name.


LOADS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})


def compiled(statement: ast.stmt) -> CodeType:
    """Compile one statement as if it stood alone in a module."""
    module = ast.fix_missing_locations(ast.Module([statement], type_ignores=[]))
    return compile(module, "<cell>", "exec", dont_inherit=True)


def names_in(code: CodeType, opcodes: Set[str]) -> Iterator[str]:
    """Yield the names that some instructions of a code object itself have."""
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname in opcodes)


def inner_names(code: CodeType, opcodes: Set[str]) -> set[str]:
    """Return the names that some instructions have in functions, classes and comprehensions inside."""
    return {name for inner in _nested(code) for name in names_in(inner, opcodes)}


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
