"""What compiled code loads and stores by name."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator, Set
from types import CodeType

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
