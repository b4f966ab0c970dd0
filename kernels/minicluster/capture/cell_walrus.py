"""Which names `:=` binds for certain when an expression is evaluated, and which only perhaps."""

from __future__ import annotations

import ast
from dataclasses import dataclass

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
            return _either(bound_by(test), bound_by(body), bound_by(orelse))
        case ast.Compare(left=left, comparators=[second, *later]):
            # `a < b < c` evaluates c only where a < b.
            first = bound_by(left).always | bound_by(second).always
            return Bound(first.union(*(bound_by(part).always for part in later)), first)
    return _all_of(node)


def targets_in(node: ast.AST) -> set[str]:
    """Return every name that a `:=` somewhere in a node binds."""
    return {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}


def _either(test: Bound, body: Bound, orelse: Bound) -> Bound:
    return Bound(
        (test.if_true | body.if_true) & (test.if_false | orelse.if_true),
        (test.if_true | body.if_false) & (test.if_false | orelse.if_false),
    )


def _all_of(node: ast.AST) -> Bound:
    """Join what all parts bind, of a node that evaluates each of them."""
    if isinstance(node, _LAZY):
        return Bound()
    every = frozenset().union(*(bound_by(part).always for part in ast.iter_child_nodes(node)))
    return Bound(every, every)
