"""Where a module, a statement of SQL or a script may be mutated, and the plugin that mutates it as it is imported."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple, TypeVar

PLACE: Final = "SELARAS_MUTANT"
"""The environment variable that names the mutant: `module:number`."""

SOURCE: Final = Path(__file__).parents[2] / "src"

SCRIPTS: Final = "selaras._stores.redis.scripts"
LUA: Final = "selaras._stores.redis.lua"
"""What scripts are put together from, named as if they were modules: `selaras._stores.redis.lua.jobs`."""

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
_OTHER_SQL: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "=": "<>",
    "<>": "=",
    "AND": "OR",
    "OR": "AND",
    "NOT IN": "IN",
    " DESC": "",
}
_OTHER_LUA: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "~=",
    "~=": "==",
    "and": "or",
    "or": "and",
    "+": "-",
    "-": "+",
    "true": "false",
    "false": "true",
    "not ": "",
    "math.min": "math.max",
    "math.max": "math.min",
}

_IS_SQL: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE)\b|\bORDER BY\b| (AND|OR) ")
_SQL: Final = re.compile(
    r"(?<=\s)(?:<=|>=|<>|<|>|AND|(?<!INSERT )OR|NOT IN)(?=\s)| DESC\b"
    r"|(?<=\s)=(?=\s)"
)
_SETS: Final = re.compile(r"\bSET\b((?!\bWHERE\b).)*$", re.DOTALL)
_LUA: Final = re.compile(
    r"(?<=\s)(?:<=|>=|==|~=|<|>|and|or|\+|-)(?=\s)|\b(?:true|false)\b|\bnot\s|\bmath\.(?:min|max)\b"
    r"|^[^\S\n]+(?:[a-z][\w.:]*\(.*\)|[\w.\[\]]*[.\]][\w.\[\]]* = [^{\n]*[^{(,\n])$",
    re.MULTILINE,
)
_NO_LUA: Final = re.compile(r"--.*|'(?:\\.|[^'\n])*'")
_LUA_FUNCTION: Final = re.compile(r"^(?:local )?function ([\w:.]+)\(", re.MULTILINE)


_Node = TypeVar("_Node", bound=ast.AST)


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

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if len(self._function) == 1 and isinstance(node.target, ast.Name):
            self._function = [node.target.id]  # of a statement of SQL
        return self.generic_visit(node)

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
        if isinstance(node.value, str) and _IS_SQL.search(node.value):
            return self._otherwise(node, node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node  # a docstring
        self.generic_visit(node)
        is_call = isinstance(node.value, ast.Call | ast.Await)
        return self._either(node, ast.Pass()) if is_call else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        is_kept = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        return self._either(node, ast.Pass()) if is_kept and self._function[-1] != "__init__" else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        return self._either(node, ast.Pass())

    def _otherwise(self, node: ast.Constant, sql: str) -> ast.AST:
        """Mutate a statement of SQL, wherever it stands: it decides there what a module's own words do not."""
        for found in _SQL.finditer(sql):
            before, after = sql[: found.start()], sql[found.end() :]
            if found[0] == "=" and _SETS.search(before):
                continue
            other = before + _OTHER_SQL[found[0]] + after
            if self._place(_around(sql, found), _OTHER_SQL[found[0]].strip() or "nothing"):
                node = ast.copy_location(ast.Constant(other), node)
        return node

    def _either(self, node: _Node, other: ast.AST) -> _Node | ast.AST:
        if len(self._function) == 1:
            return node  # what a module says of itself is no decision
        is_here = self._place(ast.unparse(node), ast.unparse(other))
        return ast.copy_location(other, node) if is_here else node

    def _place(self, before: str, after: str) -> bool:
        number = len(self.places)
        self.places.append(Place(number, self._function[-1], before, after))
        return number == self.at


def _around(text: str, found: re.Match[str]) -> str:
    """Return an operator with the words beside it."""
    words = (text[: found.start()].split()[-2:], [found[0].strip()], text[found.end() :].split()[:2])
    return " ".join(word for part in words for word in part)


def is_script(module: str) -> bool:
    """Say whether it is a text that scripts are put together from."""
    return module.startswith(f"{LUA}.")


def source_of(module: str) -> str:
    """Return a module's text, or a script's."""
    path = SOURCE.joinpath(*module.split("."))
    return path.with_suffix(".lua" if is_script(module) else ".py").read_text(encoding="utf-8")


def places_of(module: str) -> list[Place]:
    """Return every place of it that can be mutated."""
    source = source_of(module)
    if is_script(module):
        return [place for place, _ in _lua(source)]
    mutator = _Mutator(-1)
    mutator.visit(ast.parse(source))
    return mutator.places


def _lua(source: str) -> list[tuple[Place, re.Match[str]]]:
    """Return the places of a script, and where each is."""
    masked = _NO_LUA.sub(lambda match: '"' * len(match[0]), source)
    names = [(match.start(), match[1]) for match in _LUA_FUNCTION.finditer(source)]
    found: list[tuple[Place, re.Match[str]]] = []
    for number, match in enumerate(_LUA.finditer(masked)):
        function = next((name for start, name in reversed(names) if start < match.start()), "script")
        is_statement = match[0] not in _OTHER_LUA
        before = source[match.start() : match.end()].strip() if is_statement else _around(source, match)
        after = "nothing" if is_statement else _OTHER_LUA[match[0]].strip() or "nothing"
        found.append((Place(number, function, before, after), match))
    return found


def mutated_script(source: str, number: int) -> str:
    """Return a script with one place mutated."""
    _, match = _lua(source)[number]
    return source[: match.start()] + _OTHER_LUA.get(match[0], "") + source[match.end() :]


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


class _MutantScripts(SourceFileLoader):
    script, number = "", 0

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        plain = module.source

        @cache
        def source(name: str) -> str:
            text = plain(name)
            return mutated_script(text, self.number) if name == self.script else text

        module.source = source  # type: ignore[attr-defined] # a script is a text that this module reads


class _Finder(MetaPathFinder):
    def __init__(self, module: str, number: int) -> None:
        self.script = module.removeprefix(f"{LUA}.") if is_script(module) else ""
        self.module = SCRIPTS if self.script else module
        self.number = number

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        if self.script:
            scripts = _MutantScripts(fullname, spec.origin)
            scripts.script, scripts.number = self.script, self.number
            spec.loader = scripts
            return spec
        loader = _Mutant(fullname, spec.origin)
        loader.number = self.number
        spec.loader = loader
        return spec


def plant(named: str, *, on: Callable[[MetaPathFinder], None] = lambda finder: sys.meta_path.insert(0, finder)) -> None:
    """Let a module be imported as its mutant: `module:number`."""
    module, _, number = named.rpartition(":")
    finder = _Finder(module, int(number))
    assert finder.module not in sys.modules, f"{finder.module} has been imported already"
    on(finder)


if PLACE in os.environ:
    plant(os.environ[PLACE])
