"""The architecture as checks: who may import whom, where ctypes lives, and what makes the folder vendorable."""

import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "gpusense"

#: Top to bottom: a module imports modules of lower rows, and of its own. A name stands for a module or a whole folder.
LAYERS = """
__main__
cli
wgpu
exporters integrations testing
doctor
monitor
cuda
_tracing
report
analysis
_capture
session
backends
_aggregation
_attribution
_decode
_capi
_records
_runtime
gpusense
"""

#: Imports upward, inside functions alone.
UPWARD: set[tuple[str, str]] = set()

#: The root reaches its public modules when they are asked for, and nothing when it is loaded.
LAZY_ROOT = "gpusense"

CTYPES = ("_capi", "backends", "cuda", "wgpu", "testing")
NEVER = ("dataclasses", "importlib.metadata", "importlib.resources", "pkg_resources", "ctypes.util")

ROWS = {name: row for row, names in enumerate(LAYERS.split("\n")) for name in names.split()}


class Import(NamedTuple):
    """``module`` (dotted, below the package; the root is "gpusense") imports ``target`` at ``line``."""

    module: str
    target: str
    line: int
    deferred: bool  # inside a function


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__") or LAZY_ROOT, ast.parse(path.read_text("utf-8"))


TREES = dict(sources())
MODULES = set(TREES)


def nodes(tree: ast.AST, deferred: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that runs, with whether that is inside a function; what only a type checker sees is left out."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        inside = deferred or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from nodes(child, inside)


def folder_of(module: str) -> list[str]:
    if module == LAZY_ROOT:
        return []
    parts = module.split(".")
    return parts if (PACKAGE.joinpath(*parts) / "__init__.py").exists() else parts[:-1]


def own_imports() -> Iterator[Import]:
    for module, tree in TREES.items():
        for node, deferred in nodes(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            folder = folder_of(module)
            base = folder[: len(folder) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                target = ".".join([*base, alias.name])
                yield Import(
                    module, target if target in MODULES else ".".join(base) or LAZY_ROOT, node.lineno, deferred
                )


def outside_imports() -> Iterator[Import]:
    for module, tree in TREES.items():
        for node, deferred in nodes(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name, node.lineno, deferred)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield Import(module, node.module or "", node.lineno, deferred)


def top(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_has_its_place_in_the_layers():
    homeless = sorted({top(module) for module in MODULES} - set(ROWS))
    assert not homeless, f"write {homeless} into LAYERS, as low as they can stand"


def test_imports_point_down():
    wrong = []
    for found in own_imports():
        source, target = top(found.module), top(found.target)
        allowed = source == LAZY_ROOT and found.deferred
        allowed = allowed or (found.deferred and (source, target) in UPWARD)
        if ROWS[target] < ROWS[source] and not allowed:
            wrong.append(f"{found.module}:{found.line} imports {found.target}, which stands above it")
    assert not wrong, "\n".join(wrong)


def test_no_exception_to_the_layers_is_left_over():
    used = {(top(found.module), top(found.target)) for found in own_imports() if found.deferred}
    assert not UPWARD - used


@pytest.mark.parametrize("folder", ["exporters", "integrations"])
def test_optional_folders_are_imported_by_the_command_line_alone(folder):
    users = {top(found.module) for found in own_imports() if top(found.target) == folder}
    helpers = {"wgpu"} if folder == "integrations" else set()  # names buffers as the wgpu-py integration does
    assert users <= {folder, "cli", LAZY_ROOT, *helpers}


def test_the_package_never_names_itself_in_an_import():
    wrong = [f"{found.module}:{found.line}" for found in outside_imports() if top(found.target) == "gpusense"]
    assert not wrong, "relative imports only, so that a vendored copy is itself"


def test_ctypes_stays_where_libraries_are_called():
    wrong = [
        f"{found.module}:{found.line}"
        for found in outside_imports()
        if top(found.target) == "ctypes" and top(found.module) not in CTYPES
    ]
    assert not wrong


def test_modules_that_are_slow_or_fail_in_a_vendored_copy_are_never_imported():
    wrong = [
        f"{found.module}:{found.line} imports {found.target}" for found in outside_imports() if found.target in NEVER
    ]
    assert not wrong


#: Global names that must be the same in every copy: JSON schemas, the key under which copies meet, telemetry names.
FIXED_NAME = re.compile(r"gpusense\.(cupti|[a-z]+/\d+)")
TELEMETRY_NAME = re.compile(
    r"gpusense\.(session|process|version|outcome|drop\.reason|attributes\.dropped|overhead\.(time|part)|"
    r"spans(\.dropped)?|records(\.(dropped|seen|kept))?)"
)


def docstrings(tree: ast.Module) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            found.update(id(item.value) for item in body if isinstance(item, ast.Expr))
    return found


def test_no_string_names_a_module_of_the_package():
    wrong = []
    for module, tree in TREES.items():
        said = docstrings(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in said:
                continue
            rest = FIXED_NAME.sub("", node.value)
            if top(module) == "exporters":
                rest = TELEMETRY_NAME.sub("", rest)
            if re.search(r"\bgpusense\.[a-z_]", rest) and "`" not in rest:
                wrong.append(f"{module}:{node.lineno} {node.value[:60]!r}")
    assert not wrong, "\n".join(wrong)


def test_no_library_is_ever_closed():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "dlclose" not in text, path
        assert "FreeLibrary" not in text, path


# --- what `import gpusense` costs -------------------------------------------------------------------------------------

_LOADED = f"""
import sys
before = set(sys.modules)
path = list(sys.path)
finders = list(sys.meta_path)
sys.path.insert(0, {str(PACKAGE.parent)!r})
import gpusense
dir(gpusense)
sys.path[:] = path
assert sys.meta_path == finders
gpusense.trace
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_importing_loads_the_root_alone():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", _LOADED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gpusense"]


_FIRST_BLOCK = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
import os
os.environ["GPUSENSE"] = "off"
import gpusense
with gpusense.trace("step"):
    pass
print("\\n".join(sys.modules))
"""


def test_tracing_while_off_loads_neither_ctypes_nor_threads():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", _FIRST_BLOCK], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "gpusense._tracing.select" in loaded
    assert not loaded & {"ctypes", "threading", "logging", "dataclasses", "inspect", "json"}
