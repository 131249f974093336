"""Where a module may be mutated, and the plugin that mutates it as it is imported."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple

PLACE: Final = "SELARAS_MUTANT"
"""The environment variable that names the mutant: `module:number`."""

SOURCE: Final = Path(__file__).parents[2] / "src"

_OTHER: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
_OTHER_CALL: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Place(NamedTuple):
    """One mutation. `number`: among those of its module."""

    number: int
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.function}: {self.before} -> {self.after}"


class _Mutator(ast.NodeTransformer):
    """Counts places; changes the one numbered `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.places: list[Place] = []
        self._function = ["module"]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._within(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._within(node)

    def _within(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._function.append(node.name)
        node.body = [self.visit(one) for one in node.body]
        self._function.pop()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        other = _OTHER[type(node.ops[0])]()
        assert isinstance(other, ast.cmpop)
        return self._either(node, ast.Compare(node.left, [other, *node.ops[1:]], node.comparators))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = _OTHER[type(node.op)]()
        assert isinstance(other, ast.boolop)
        return self._either(node, ast.BoolOp(other, node.values))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OTHER:
            return node
        other = _OTHER[type(node.op)]()
        assert isinstance(other, ast.operator)
        return self._either(node, ast.BinOp(node.left, other, node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._either(node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_CALL:
            return self._either(
                node, ast.Call(ast.Name(_OTHER_CALL[node.func.id], ast.Load()), node.args, node.keywords)
            )
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        # What `zip` is told of two rows that are equally long decides nothing.
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return self._either(node, ast.Constant(not node.value))
        return node

    def _either(self, node: ast.expr, other: ast.expr) -> ast.expr:
        number = len(self.places)
        if len(self._function) == 1:
            return node  # what a module says of itself is no decision
        self.places.append(Place(number, self._function[-1], ast.unparse(node), ast.unparse(other)))
        return ast.copy_location(other, node) if number == self.at else node


def source_of(module: str) -> str:
    """Return a module's text."""
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def places_of(source: str) -> list[Place]:
    """Return every place of it that can be mutated."""
    mutator = _Mutator(-1)
    mutator.visit(ast.parse(source))
    return mutator.places


def mutated(source: str, number: int) -> ast.Module:
    """Return it with one place mutated."""
    tree = ast.parse(source)
    _Mutator(number).visit(tree)
    return ast.fix_missing_locations(tree)


class _Mutant(SourceFileLoader):
    number = 0

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = compile(mutated(Path(path).read_text(encoding="utf-8"), self.number), path, "exec")
        return code


class _Finder(MetaPathFinder):
    def __init__(self, module: str, number: int) -> None:
        self.module = module
        self.number = number

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = _Mutant(fullname, spec.origin)
        loader.number = self.number
        spec.loader = loader
        return spec


def plant(named: str, *, on: Callable[[MetaPathFinder], None] = lambda finder: sys.meta_path.insert(0, finder)) -> None:
    """Let a module be imported as its mutant: `module:number`."""
    module, _, number = named.rpartition(":")
    assert module not in sys.modules, f"{module} has been imported already"
    on(_Finder(module, int(number)))


if PLACE in os.environ:
    plant(os.environ[PLACE])
