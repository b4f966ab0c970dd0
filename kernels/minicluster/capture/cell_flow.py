"""Which names a cell takes from outside: one walk over its statements, in the order they run.

This is a definite assignment analysis, as compilers do it. A name counts as read if some path through the
cell may use it before the cell has definitely bound or deleted it. If an exception or `break` may end a
statement early, the names bound after that point are not definitely bound.
The body of a function runs later: its reads count from the moment when the function's name is bound.
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
    """Return the names that a module's statements read from outside, bind, and bind by import."""
    flow = _Flow()
    flow.run(tree.body)
    stored_by_functions = inner_names(compile(tree, "<cell>", "exec", dont_inherit=True), {"STORE_GLOBAL"})
    assigned = dict.fromkeys([*flow.assigned, *sorted(stored_by_functions)])
    return CellNames(
        reads=frozenset(name for name in flow.reads if not _is_dunder(name)),
        assigned=tuple(name for name in assigned if not _is_dunder(name) and name != "_"),
        imported=frozenset(flow.imported),
    )


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


@dataclass
class _Flow:
    """The state of the walk at one point of the cell.

    definitely_bound: names that the cell has bound or deleted on every path to this point.
    enclosing_bound: in a class's body, the names definitely bound outside of classes; None elsewhere.
    deleted_in_class: names that this class's body deletes: after that, Python looks them up outside.
    deferred_reads: names that functions of a class read; they count once the class is bound.
    """

    definitely_bound: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    assigned: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    enclosing_bound: frozenset[str] | None = None
    deleted_in_class: frozenset[str] = frozenset()
    deferred_reads: set[str] = field(default_factory=set)

    def run(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            handler = _HANDLERS.get(type(statement))
            if handler is not None:
                handler(self, statement)
            elif not isinstance(statement, ast.Break | ast.Continue):
                self.run_simple(statement)

    def read(self, names: Iterable[str]) -> None:
        self.reads.update(name for name in names if name not in self.definitely_bound)

    def defer_reads(self, names: set[str]) -> None:
        """Record what a function's body reads. It does not see the names of a class around it."""
        if self.enclosing_bound is None:
            self.read(names)
        else:
            self.deferred_reads |= names

    def visit(self, node: ast.stmt) -> list[str]:
        """Record all that a statement reads; return the names that it may bind."""
        code = compiled(node)
        self.read(names_in(code, LOADS))
        self.defer_reads(inner_names(code, LOADS))
        if self.enclosing_bound is not None:
            self.deferred_reads |= _read_by_comprehensions(node)
        stored = list(names_in(code, {"STORE_NAME"}))
        self.assigned.extend([*stored, *sorted(inner_names(code, {"STORE_GLOBAL"}))])
        return stored

    def run_simple(self, statement: ast.stmt) -> None:
        """Record a simple statement: all that its code reads, then what it binds."""
        stored = self.visit(statement)
        maybe_bound = targets_in(statement)
        self.mark_bound(name for name in stored if name not in maybe_bound)
        for part in ast.iter_child_nodes(statement):
            if part is not getattr(statement, "annotation", None):
                self.mark_bound(bound_by(part).always)

    def test(self, node: ast.expr) -> tuple[frozenset[str], frozenset[str]]:
        """Record a condition; return the names bound if it is true, and those bound if it is false."""
        self.visit(ast.Expr(node))
        bound = bound_by(node)
        self.mark_bound(bound.always)
        return bound.if_true, bound.if_false

    def mark_bound(self, names: Iterable[str]) -> None:
        self.definitely_bound.update(name for name in names if name not in self.deleted_in_class)

    def bind(self, names: Iterable[str]) -> None:
        names = list(names)
        self.assigned.extend(names)
        self.mark_bound(names)

    def bind_target(self, target: ast.expr) -> None:
        """Bind the target of a `for` or a `with`. The bases of subscripts and attributes are read."""
        self.run_simple(ast.Assign([target], ast.Constant(None)))

    def branch(self, block: Iterable[ast.stmt], more: Iterable[str] = ()) -> set[str]:
        """Run one of several blocks; return what is definitely bound at its end, and restore the state."""
        start = set(self.definitely_bound)
        self.mark_bound(more)
        self.run(block)
        end, self.definitely_bound = self.definitely_bound, start
        return end


def _on_if(flow: _Flow, node: ast.If) -> None:
    if_true, if_false = flow.test(node.test)
    flow.definitely_bound = flow.branch(node.body, if_true) & flow.branch(node.orelse, if_false)


def _on_while(flow: _Flow, node: ast.While) -> None:
    if_true, if_false = flow.test(node.test)
    flow.branch(node.body, if_true)
    flow.branch(node.orelse, if_false)


def _on_for(flow: _Flow, node: ast.For) -> None:
    flow.run_simple(ast.Expr(node.iter))
    start = set(flow.definitely_bound)
    flow.bind_target(node.target)
    flow.run(node.body)
    flow.definitely_bound = start
    flow.branch(node.orelse)


def _on_with(flow: _Flow, node: ast.With) -> None:
    """After the first context is entered, any step may fail, and a context may suppress the error."""
    first, *_ = node.items
    flow.run_simple(ast.Expr(first.context_expr))
    if isinstance(first.optional_vars, ast.Name):
        flow.bind_target(first.optional_vars)
    sure = set(flow.definitely_bound)
    for item in node.items:
        if item is not first:
            flow.run_simple(ast.Expr(item.context_expr))
        if item.optional_vars is not None:
            flow.bind_target(item.optional_vars)
    flow.run(node.body)
    if not all(never_suppresses(item.context_expr) for item in node.items):
        flow.definitely_bound = sure


def _on_try(flow: _Flow, node: ast.Try | ast.TryStar) -> None:
    ends = [flow.branch([*node.body, *node.orelse])]
    for handler in node.handlers:
        if handler.type is not None:
            flow.visit(ast.Expr(handler.type))
        ends.append(flow.branch(handler.body, _caught(flow, handler)))
    flow.run(node.finalbody)
    flow.definitely_bound |= set.intersection(*ends)


def _caught(flow: _Flow, handler: ast.ExceptHandler) -> list[str]:
    names = [handler.name] if handler.name else []
    flow.assigned.extend(names)
    return names


def _on_match(flow: _Flow, node: ast.Match) -> None:
    flow.run_simple(ast.Expr(node.subject))
    for case in node.cases:
        simple = ast.match_case(case.pattern, case.guard, [ast.Pass()])
        stored = flow.visit(ast.Match(ast.Constant(None), [simple]))
        captured = set(stored) - (targets_in(case.guard) if case.guard else set())
        flow.branch(case.body, captured | bound_by(case.guard).if_true)


def _on_assert(flow: _Flow, node: ast.Assert) -> None:
    flow.visit(node)  # Under `python -O` it does not run, so it binds nothing.


def _on_function(flow: _Flow, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    code = compiled(node)
    flow.read(names_in(code, LOADS))
    flow.assigned.extend(names_in(code, {"STORE_NAME"}))
    flow.mark_bound([node.name])
    flow.defer_reads(inner_names(code, LOADS))


def _on_class(flow: _Flow, node: ast.ClassDef) -> None:
    shell = copy.copy(node)
    shell.body = [ast.Pass()]
    flow.visit(shell)
    outside = flow.definitely_bound if flow.enclosing_bound is None else flow.enclosing_bound
    body = _Flow(
        definitely_bound=set(outside), enclosing_bound=frozenset(outside), deleted_in_class=_deleted_in(node)
    )
    body.run(node.body)
    flow.reads |= body.reads
    flow.mark_bound([node.name])
    flow.defer_reads(body.deferred_reads)


def _on_delete(flow: _Flow, node: ast.Delete) -> None:
    flow.visit(node)
    flow.mark_bound(target.id for target in node.targets if isinstance(target, ast.Name))


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
    """Return the names that comprehensions in a class read: like functions, they do not see its names."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, _COMPREHENSIONS):
            names = [name for name in ast.walk(part) if isinstance(name, ast.Name)]
            own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            found |= {name.id for name in names} - own
    return found


# Which names `:=` binds when an expression is evaluated: always, or only on some paths.


_LAZY = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Bound:
    """Names that are definitely bound if the expression is true, and if it is false."""

    if_true: frozenset[str] = frozenset()
    if_false: frozenset[str] = frozenset()

    @property
    def always(self) -> frozenset[str]:
        return self.if_true & self.if_false


def bound_by(node: ast.AST | None) -> Bound:
    """Return what an expression binds. `a and (m := f())` definitely binds m only if the whole is true."""
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
            # `a < b < c` evaluates c only if a < b.
            first = bound_by(left).always | bound_by(second).always
            return Bound(first.union(*(bound_by(part).always for part in later)), first)
    if isinstance(node, _LAZY):
        return Bound()
    # All other nodes evaluate all of their parts.
    every = frozenset().union(*(bound_by(part).always for part in ast.iter_child_nodes(node)))
    return Bound(every, every)


def targets_in(node: ast.AST) -> set[str]:
    """Return every name that a `:=` somewhere in a node binds."""
    return {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}


# Which context managers are known never to suppress an error. After any other, a cell may continue although
# the body of its `with` failed half-way.


_MODULES = frozenset({"torch", "warnings", "tempfile", "tqdm"})
_FILES = ("open", "File", "ZipFile", "TemporaryDirectory", "NamedTemporaryFile")
_CONCURRENCY = ("Lock", "Pool", "ThreadPoolExecutor", "ProcessPoolExecutor", "tqdm", "catch_warnings")
_TRAINING = (
    *("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "detect_anomaly"),
    *("device", "profile", "record_function", "no_sync", "accumulate"),
)
_NAMES = frozenset([*_FILES, *_CONCURRENCY, *_TRAINING])
"""The last part of the name that is called: `file.open()`, `model.no_sync()`."""


def never_suppresses(context: ast.expr) -> bool:
    """Whether this context manager is known to let every error of its body through."""
    called = context.func if isinstance(context, ast.Call) else context
    path = ast.unparse(called).split(".")
    return path[0] in _MODULES or path[-1] in _NAMES


# The names that compiled code loads and stores.


LOADS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})


def compiled(statement: ast.stmt) -> CodeType:
    """Compile one statement as a module of its own."""
    module = ast.fix_missing_locations(ast.Module([statement], type_ignores=[]))
    return compile(module, "<cell>", "exec", dont_inherit=True)


def names_in(code: CodeType, opcodes: Set[str]) -> Iterator[str]:
    """Yield the names in instructions with these opcodes, but not those of functions and classes inside."""
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname in opcodes)


def inner_names(code: CodeType, opcodes: Set[str]) -> set[str]:
    """Return the names in instructions with these opcodes in functions, classes and comprehensions inside."""
    return {name for inner in _nested(code) for name in names_in(inner, opcodes)}


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
