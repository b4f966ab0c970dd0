"""A cell, parsed: the names that it reads, the names that it assigns, its last expression.

Both sides use this: the notebook to know which names to send, a rank to know which names to return.
Only the source is read; nothing runs.
"""

from __future__ import annotations

import ast
import re
import traceback
from dataclasses import dataclass
from types import CodeType

from minicluster.capture.cell_flow import names_of
from minicluster.errors import MiniclusterError

_NOTEBOOK_SYNTAX = re.compile(r"^\s*(?:[!%?]|[\w\s.,\[\]()]+=\s*[!%])|\?\s*$")
_AWAITING = (ast.Await, ast.AsyncFor, ast.AsyncWith)
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class CellNotPlain(MiniclusterError):
    """The cell has syntax that only a notebook's kernel understands."""


class CellSyntaxError(MiniclusterError):
    """The cell is not valid Python. Shown as a notebook does: the line and the position, without a stack."""

    def __init__(self, error: SyntaxError) -> None:
        text = "".join(traceback.format_exception_only(error)).rstrip("\n")
        super().__init__(re.sub(r'^  File "(.*)", line', r"  \1, line", text))
        self.error = error.with_traceback(None)

    def _render_traceback_(self) -> list[str]:
        return self.message.splitlines()


@dataclass(frozen=True)
class CellSource:
    """A cell that has been parsed.

    reads: names that it may read from outside, on at least one path through it.
    assigned: names that it binds at top level (imports too), in the order in which they appear.
    imported: those of `assigned` that an import binds.
    body: the code of the statements. value: the code of the last expression; None if the last statement
        is no expression, or if a semicolon hides its value.
    """

    source: str
    filename: str
    reads: frozenset[str]
    assigned: tuple[str, ...]
    imported: frozenset[str]
    body: CodeType
    value: CodeType | None

    @classmethod
    def parse(cls, source: str, filename: str) -> CellSource:
        """Parse a cell. Raises CellSyntaxError, or CellNotPlain with the line that is not Python."""
        tree = _parse(source, filename)
        _refuse_await(tree)
        _check(tree, source, filename)
        names = names_of(tree)
        body, value = split_last_expression(tree, source)
        body_code = compile(body, filename, "exec", dont_inherit=True)
        value_code = None
        if value is not None:
            # __future__ imports in the cell hold for its last line, too.
            value_code = compile(value, filename, "eval", body_code.co_flags & 0x1FF0000, dont_inherit=True)
        return cls(source, filename, names.reads, names.assigned, names.imported, body_code, value_code)


def split_last_expression(tree: ast.Module, source: str) -> tuple[ast.Module, ast.Expression | None]:
    """Separate the cell's last expression, whose value a notebook shows, from the statements before it."""
    *before, last = tree.body or [ast.Pass()]
    if not isinstance(last, ast.Expr) or _ends_with_semicolon(last, source):
        return tree, None
    return ast.Module(before, type_ignores=[]), ast.Expression(last.value)


def _ends_with_semicolon(last: ast.Expr, source: str) -> bool:
    lines = source.encode().splitlines()
    rest = lines[(last.end_lineno or 1) - 1][last.end_col_offset or 0 :]
    return rest.lstrip().startswith(b";")


def _parse(source: str, filename: str) -> ast.Module:
    try:
        return ast.parse(source, filename)
    except SyntaxError as error:
        lines = source.splitlines()
        at = (error.lineno or 0) - 1
        if 0 <= at < len(lines) and _NOTEBOOK_SYNTAX.search(lines[at]):
            raise _not_for_ranks(at + 1, lines[at].strip()) from None
        raise CellSyntaxError(error) from None


def _check(tree: ast.Module, source: str, filename: str) -> None:
    """Compile, to find errors that only the compiler finds: `return` outside of a function, for example."""
    try:
        compile(tree, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        # The compiler looks for the line in a file, which does not exist.
        error.text = error.text or source.splitlines()[(error.lineno or 1) - 1]
        raise CellSyntaxError(error) from None


def _not_for_ranks(line_number: int, text: str) -> CellNotPlain:
    if text.lstrip("\t ").startswith("!") or re.search(r"=\s*!", text):
        hint = "Run it in a cell of its own, or in Python: import subprocess; subprocess.run(...)."
    else:
        hint = "Put magics and help (%, ?) into a cell of their own, without %%distribute."
    return CellNotPlain(
        f"Line {line_number} of the cell is for the notebook only, ranks run plain Python: {text[:80]}", hint
    )


def _refuse_await(tree: ast.Module) -> None:
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, _OWN_SCOPE):
            continue
        if isinstance(node, _AWAITING):
            raise CellNotPlain(
                f"Line {node.lineno} of the cell awaits at top level, which ranks cannot do.",
                "Put it into an `async def` and run that: import asyncio; asyncio.run(main()).",
            )
        todo.extend(ast.iter_child_nodes(node))
