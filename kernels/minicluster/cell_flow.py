"""Which names a cell takes from outside: one walk over its statements, in the order they run.

A name counts as read when some path may use it before the cell itself has bound it for certain.
Bodies of functions run later: what they use counts from the moment their name is bound.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

_LOADS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class CellNames:
    reads: frozenset[str]
    assigned: tuple[str, ...]
    imported: frozenset[str]


def names_of(tree: ast.Module) -> CellNames:
    """Names that a module's statements read from outside, bind, and bind by import."""
    flow = _Flow()
    flow.run(tree.body)
    stored_by_functions = _inner_names(compile(tree, "<cell>", "exec", dont_inherit=True), {"STORE_GLOBAL"})
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
    """State of the walk: `bound` holds what is bound for certain at this point.

    later: what bodies of functions read, kept back until the class around them is bound.
    """

    bound: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    assigned: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    in_class: bool = False
    later: set[str] = field(default_factory=set)

    def run(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            handler = _HANDLERS.get(type(statement))
            if handler is not None:
                handler(self, statement)
            elif not isinstance(statement, ast.Break | ast.Continue):
                self.read_code(statement)

    def read(self, names: Iterable[str]) -> None:
        self.reads.update(name for name in names if name not in self.bound)

    def read_later(self, names: set[str]) -> None:
        """Take what a function's body reads; names of the class around it are no names to it."""
        if self.in_class:
            self.later |= names
        else:
            self.read(names)

    def read_code(self, statement: ast.stmt) -> None:
        """Take a simple statement: all that its code loads, then what it stores."""
        code = _compiled(statement)
        self.read(_names(code, _LOADS))
        self.read_later(_inner_names(code, _LOADS))
        self.bind(_names(code, {"STORE_NAME"}))
        self.bind(sorted(_inner_names(code, {"STORE_GLOBAL"})))

    def read_expression(self, node: ast.expr | None) -> None:
        if node is not None:
            self.read_code(ast.Expr(node))

    def bind(self, names: Iterable[str]) -> None:
        for name in names:
            self.bound.add(name)
            self.assigned.append(name)

    def bind_target(self, target: ast.expr) -> None:
        """Bind a loop's or a with's target; bases of subscripts and attributes are read."""
        self.read_code(ast.Assign([target], ast.Constant(None)))

    def branches(self, *blocks: Iterable[ast.stmt]) -> None:
        """Run alternatives from the same start; only what all of them bind is bound after."""
        start = set(self.bound)
        ends: list[set[str]] = []
        for block in blocks:
            self.bound = set(start)
            self.run(block)
            ends.append(self.bound)
        self.bound = set.intersection(*ends)


def _on_if(flow: _Flow, node: ast.If) -> None:
    flow.read_expression(node.test)
    flow.branches(node.body, node.orelse)


def _on_while(flow: _Flow, node: ast.While) -> None:
    flow.read_expression(node.test)
    flow.branches(node.body, ())
    flow.branches(node.orelse, ())


def _on_for(flow: _Flow, node: ast.For) -> None:
    flow.read_expression(node.iter)
    start = set(flow.bound)
    flow.bind_target(node.target)
    flow.run(node.body)
    flow.bound = start
    flow.branches(node.orelse, ())


def _on_with(flow: _Flow, node: ast.With) -> None:
    for item in node.items:
        flow.read_expression(item.context_expr)
        if item.optional_vars is not None:
            flow.bind_target(item.optional_vars)
    flow.run(node.body)


def _on_try(flow: _Flow, node: ast.Try | ast.TryStar) -> None:
    start = set(flow.bound)
    flow.run([*node.body, *node.orelse])
    ends = [flow.bound]
    for handler in node.handlers:
        flow.bound = set(start)
        flow.read_expression(handler.type)
        if handler.name:
            flow.bind([handler.name])
        flow.run(handler.body)
        # Python deletes the handler's name at its end.
        ends.append(flow.bound - ({handler.name} if handler.name else set()))
    after = set.intersection(*ends)
    flow.bound = set(start)
    flow.run(node.finalbody)
    flow.bound |= after


def _on_match(flow: _Flow, node: ast.Match) -> None:
    flow.read_expression(node.subject)
    start = set(flow.bound)
    for case in node.cases:
        flow.bound = set(start)
        simple = ast.match_case(case.pattern, case.guard, [ast.Pass()])
        flow.read_code(ast.Match(ast.Constant(None), [simple]))
        flow.run(case.body)
    flow.bound = start


def _on_function(flow: _Flow, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    code = _compiled(node)
    flow.read(_names(code, _LOADS))
    flow.bind([node.name])
    flow.read_later(_inner_names(code, _LOADS))


def _on_class(flow: _Flow, node: ast.ClassDef) -> None:
    for expression in [*node.decorator_list, *node.bases, *(word.value for word in node.keywords)]:
        flow.read_expression(expression)
    body = _Flow(bound=set(flow.bound), in_class=True)
    body.run(node.body)
    flow.read(body.reads)
    flow.bind([node.name])
    flow.read_later(body.later)


def _on_delete(flow: _Flow, node: ast.Delete) -> None:
    flow.read_code(node)
    flow.bound -= {target.id for target in node.targets if isinstance(target, ast.Name)}


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
    ast.FunctionDef: _on_function,
    ast.AsyncFunctionDef: _on_function,
    ast.ClassDef: _on_class,
    ast.Delete: _on_delete,
    ast.Import: _on_import,
    ast.ImportFrom: _on_import,
}


def _compiled(statement: ast.stmt) -> CodeType:
    module = ast.fix_missing_locations(ast.Module([statement], type_ignores=[]))
    return compile(module, "<cell>", "exec", dont_inherit=True)


def _names(code: CodeType, opcodes: frozenset[str] | set[str]) -> Iterator[str]:
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname in opcodes)


def _inner_names(code: CodeType, opcodes: frozenset[str] | set[str]) -> set[str]:
    return {name for inner in _nested(code) for name in _names(inner, opcodes)}


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
