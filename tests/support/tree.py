"""The package read as a tree: its rooms in order, its modules, and who imports whom. Nothing of it is imported."""

import ast
import pathlib
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "gpusense"

#: Bottom to top, a room a line: a folder of the package, or a module of its root. Rooms of one line are strangers.
ROOMS = """
_runtime
_records
_capi
_decode
_attribution
_aggregation
backends
session
_capture
analysis
report
_tracing
cuda
monitor
exporters integrations testing
doctor
wgpu
cli
__main__
"""

#: The package's ``__init__``: whoever asks it for a name gets the module that has it, and it loads nothing by itself.
ROOT = "gpusense"

#: What may import rooms above its own, in its functions alone: a session answers questions, and who knows stands above
#: it (ADR 33). Nothing else may.
UPWARD = "session._views"

ROWS = {ROOT: 0} | {name: row for row, names in enumerate(ROOMS.split("\n")) for name in names.split()}


class Import(NamedTuple):
    """``module`` (dotted, below the package) imports ``target``, a module too, or ``name`` of it."""

    module: str
    target: str
    name: str  # empty where the target itself is imported
    line: int
    deferred: bool  # inside a function, or for a type checker alone


def _modules() -> Iterator[tuple[str, pathlib.Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__") or ROOT, path


PATHS = dict(_modules())


def room_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(PATHS[module].read_text("utf-8"))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All of a module, its own node first."""
    return tuple(ast.walk(tree_of(module)))


def _statements(body: list[ast.stmt], deferred: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Imports are statements: what stands inside one is looked at, expressions are not."""
    for child in body:
        yield child, deferred
        later = deferred or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        later = later or (isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING")
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _statements(getattr(child, name, []), later)


@cache
def own_imports() -> tuple[Import, ...]:
    return tuple(_own_imports())


@cache
def outside_imports() -> tuple[Import, ...]:
    return tuple(_outside_imports())


def _own_imports() -> Iterator[Import]:
    for module in PATHS:
        for node, deferred in _statements(tree_of(module).body):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            folder = PATHS[module].parent.relative_to(PACKAGE).parts
            base = [*folder[: len(folder) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                target = ".".join([*base, alias.name])
                if target in PATHS:
                    yield Import(module, target, "", node.lineno, deferred)
                else:
                    yield Import(module, ".".join(base) or ROOT, alias.name, node.lineno, deferred)


def _outside_imports() -> Iterator[Import]:
    for module in PATHS:
        for node, deferred in _statements(tree_of(module).body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name, "", node.lineno, deferred)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield Import(module, node.module or "", "", node.lineno, deferred)


def arrows() -> set[tuple[str, str]]:
    """Room to room it imports something of; the root and :data:`UPWARD` apart."""
    found = {(room_of(each.module), room_of(each.target)) for each in own_imports() if each.module != UPWARD}
    return {(source, target) for source, target in found if source != target and ROOT not in (source, target)}
