"""The architecture as checks: who may import whom, where ctypes lives, and what makes the folder vendorable."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.machine import ROOT as REPOSITORY
from support.tree import PACKAGE, PATHS, ROOT, ROWS, UPWARD, nodes, outside_imports, own_imports, room_of, tree_of

CTYPES = ("_capi", "backends", "cuda")
NEVER = ("dataclasses", "importlib.metadata", "importlib.resources", "pkg_resources", "ctypes.util")
TESTS = REPOSITORY / "tests"

#: Private by their name, and not ours: of NamedTuples, of ctypes, of wgpu-py's objects, of os.
FOREIGN = {"_make", "_replace", "_fields", "_asdict", "_fields_", "_handle", "_name"}
FOREIGN |= {"_device", "_label", "_poll", "_usage", "_exit"}

#: The root's place for the active tracer, which the module that decides alone may change.
ACTIVE = {
    "_tracing.select: gpusense._Undecided",
    "_tracing.select: gpusense._activate",
    "_tracing.select: gpusense._active_tracer",
}

#: Modules of 100 lines and more that have no test file of their name in their room's folder, by what tests them.
COVERED_BY = {
    "aggregation/test_pipeline.py": "_aggregation.ledger _aggregation.placement",
    "analysis/test_busy_idle.py": "analysis.busy analysis.idle analysis.launch",
    "analysis/test_calls.py": "analysis.anomalies",
    "analysis/test_findings.py": "analysis.facts analysis.rules_data analysis.rules_device analysis.unwritten "
    "analysis.words",
    "analysis/test_ranks.py": "analysis.figures",
    "analysis/test_roofline.py": "analysis.peaks",
    "analysis/test_topics.py": "analysis.coverage analysis.energy analysis.memory analysis.transfers",
    "backends/amd/test_rocm_smi.py": "_capi.rocm_smi backends.amd.rocm_groups",
    "backends/amd/test_sysfs.py": "backends.amd.sysfs_groups",
    "backends/block_times/test_mark_code.py": "_capi.machine.mark_code",
    "backends/block_times/test_source.py": "backends.block_times.marks",
    "backends/cupti/test_activity.py": "backends.cupti.engine backends.cupti.graph_nodes backends.cupti.markers",
    "backends/cupti/test_mailbox.py": "_capi.machine.graph_code _capi.machine.mailbox_aarch64 "
    "_capi.machine.mailbox_x86_64",
    "backends/cupti/test_profiler.py": "_capi.cupti_profiler backends.cupti.counters.host",
    "backends/cupti/test_sampler.py": "_capi.machine.samples_code backends.cupti.counters.selftest",
    "backends/cupti/test_refusals.py": "_capi.cupti",
    "backends/nccl/test_code.py": "_capi.machine.nccl_code",
    "backends/nccl/test_source.py": "backends.nccl.events backends.nccl.plugin",
    "backends/drm/test_source.py": "backends.drm.clients backends.drm.groups",
    "backends/nvml/test_abi.py": "_capi.nvml",
    "backends/nvml/test_lean.py": "backends.nvml.fast backends.nvml.lanes backends.nvml.reader",
    "backends/nvml/test_values.py": "backends.nvml.device backends.nvml.gpm backends.nvml.library",
    "backends/test_cuda.py": "_capi.cuda _capi.cuda_facts",
    "backends/wgpu/test_abi.py": "_capi.wgpu _capi.wgpu_structs",
    "backends/wgpu/test_source.py": "backends.wgpu.native",
    "backends/wgpu/test_vulkan.py": "_capi.vulkan",
    "capi/test_loading.py": "_capi.handles _capi.libraries",
    "capi/test_shared_object.py": "_capi.machine.start_code",
    "capture/test_recorder.py": "_capture.attachment _capture.store",
    "cli/dashboard/test_dashboard.py": "cli.dashboard.screen cli.dashboard.view",
    "cli/dashboard/test_frame.py": "cli.dashboard.paint cli.dashboard.table",
    "cli/test_attach.py": "cli._attached cli._target",
    "cli/importers/test_kineto.py": "cli.importers.trace",
    "cli/test_cli.py": "cli._arguments cli.report doctor",
    "cuda/test_cuda.py": "cuda._objects cuda._workload",
    "decode/test_walk.py": "_decode.batch _decode.columns",
    "exporters/opentelemetry/test_at_exit.py": "exporters.opentelemetry._setup",
    "exporters/opentelemetry/test_end_to_end.py": "exporters.opentelemetry exporters.opentelemetry._replay",
    "exporters/opentelemetry/test_ends.py": "exporters.opentelemetry._providers",
    "exporters/opentelemetry/test_faults.py": "exporters.opentelemetry._target",
    "exporters/opentelemetry/test_metrics.py": "exporters.opentelemetry._histograms "
    "exporters._instruments exporters.opentelemetry._resource",
    "exporters/opentelemetry/test_pure.py": "exporters.opentelemetry._attributes exporters.opentelemetry._budget",
    "exporters/opentelemetry/test_spans.py": "exporters.opentelemetry._parents exporters.opentelemetry._pipeline "
    "exporters.opentelemetry._worker",
    "exporters/prometheus/test_prometheus.py": "exporters.prometheus._names",
    "integrations/test_ipython.py": "integrations._recording",
    "integrations/test_syscalls.py": "cli._syscalls",
    "integrations/test_torch.py": "integrations.torch._modules integrations.torch._state",
    "integrations/test_torch_frames.py": "integrations.torch._backward",
    "integrations/wgpu_py/test_bad_moments.py": "integrations.wgpu_py._devices integrations.wgpu_py._host "
    "integrations.wgpu_py._timer integrations.wgpu_py._transfers",
    "integrations/wgpu_py/test_instrument.py": "integrations.wgpu_py integrations.wgpu_py._copies "
    "integrations.wgpu_py._hooks integrations.wgpu_py._records",
    "integrations/wgpu_py/test_passes.py": "integrations.wgpu_py._batch",
    "integrations/wgpu_py/test_cards.py": "integrations.wgpu_py._clock_setup",
    "lifetime/test_proton.py": "backends.cupti.proton",
    "lifetime/test_run.py": "cli._program cli.run",
    "lifetime/test_sync_lines.py": "backends.cupti.sync_lines.reader",
    "monitor/test_monitor.py": "monitor._sampler",
    "records/test_json_codec.py": "_records.records",
    "report/test_html.py": "report.html.data report.html.events report.html.page report.html.tables",
    "report/test_perfetto.py": "report.tracks",
    "report/test_text_json.py": "report.json report.style report.text",
    "rules/test_public_api.py": "gpusense",
    "rules/test_vendored.py": "cli.vendor",
    "session/test_format.py": "session session._session",
    "session/test_merge.py": "analysis.unwritten",
    "session/test_writer.py": "session._paths",
    "tracing/test_manual.py": "_records.validate",
    "tracing/test_summary.py": "analysis.summary",
    "tracing/test_tracer.py": "_aggregation.block_totals _tracing.decorator _tracing.noop",
    "tracing/test_tracer_settings.py": "_runtime.config _tracing.select",
    "tracing/test_tracer_sinks.py": "_capture.sinks",
}


# --- the order of the rooms -------------------------------------------------------------------------------------------


def test_every_module_is_in_a_room_that_has_its_place():
    homeless = sorted({room_of(module) for module in PATHS} - set(ROWS))
    assert not homeless, f"write {homeless} into ROOMS, as low as they can stand"
    assert not sorted(set(ROWS) - {room_of(module) for module in PATHS})


def test_imports_point_down():
    wrong = []
    for found in own_imports():
        source, target = room_of(found.module), room_of(found.target)
        if source == target or (source == ROOT and found.deferred):
            continue
        if found.module == UPWARD and found.deferred and target in ("analysis", "report"):
            continue
        if ROWS[target] >= ROWS[source]:
            wrong.append(f"{found.module}:{found.line} imports {found.target}, which does not stand below it")
    assert not wrong, "\n".join(wrong)


def for_types(tree: ast.Module) -> set[int]:
    """Lines of what is imported for type checkers alone."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {node.lineno for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)}


def test_no_room_goes_up_by_way_of_the_root():
    """The root gives names of all rooms; whoever stands below them may name them in signatures alone."""
    wrong = [
        f"{found.module}:{found.line} takes {found.name} from the root"
        for found in own_imports()
        if found.target == ROOT and found.name != "__version__" and ROWS[room_of(found.module)] <= ROWS["report"]
        if found.line not in for_types(tree_of(found.module))
    ]
    assert not wrong, "\n".join(wrong)


def circles(arrows: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """Modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for target in arrows.get(waiting.pop(), set()) - found:
                found.add(target)
                waiting.append(target)
        reached[start] = found
    for start, found in reached.items():
        if start in found:
            yield frozenset(other for other in found if start in reached.get(other, ()))


def test_circles_are_found():
    assert set(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {frozenset("bc")}


def test_nothing_goes_round_in_a_circle_within_a_room():
    arrows: dict[str, set[str]] = {}
    for found in own_imports():
        if room_of(found.module) == room_of(found.target) != ROOT:
            arrows.setdefault(found.module, set()).add(found.target)
    assert not [" ".join(sorted(circle)) for circle in circles(arrows)]


@pytest.mark.parametrize("room", ["exporters", "integrations"])
def test_optional_rooms_are_imported_by_the_command_line_alone(room):
    users = {room_of(found.module) for found in own_imports() if room_of(found.target) == room}
    assert users <= {room, "cli", ROOT}


def test_the_picture_of_the_rooms_is_what_the_imports_say():
    spec = importlib.util.spec_from_file_location("rooms", REPOSITORY / "docs/rooms.py")
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    assert set(rooms.PLACES) == set(ROWS) - {ROOT}
    assert rooms.PICTURE.read_text("utf-8") == rooms.drawn(), "draw it anew: python docs/rooms.py"


# --- what a room shows ------------------------------------------------------------------------------------------------


def test_the_root_has_five_files():
    assert {path.name for path in PACKAGE.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "doctor.py",
        "testing.py",
        "wgpu.py",
    }


def test_a_private_room_shows_nothing_but_what_it_is():
    wrong = []
    for module, path in PATHS.items():
        if path.name == "__init__.py" and module.startswith("_"):
            body = tree_of(module).body
            if len(body) != 1 or ast.get_docstring(tree_of(module)) is None:
                wrong.append(f"{module} is more than a docstring, or none")
    assert not wrong, "\n".join(wrong)


def test_the_files_of_a_private_room_carry_no_underscore():
    assert not [module for module in PATHS if re.match(r"_\w+\..*\b_[a-z]", module)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_stay_in_their_room():
    found = {
        f"{each.module}: {each.target}.{each.name}"
        for each in own_imports()
        if is_private(each.name) and room_of(each.module) != room_of(each.target)
    }
    assert found == ACTIVE


def defined(module: str) -> Iterator[str]:
    """Private names that a module gives to its own things: functions, classes, variables, members, slots."""
    for node in nodes(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if getattr(node.value, "id", "") in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __slots__, setattr
            yield node.value


def private_names() -> dict[str, set[str]]:
    """Room to the private names that are defined in it."""
    found: dict[str, set[str]] = {}
    for module in PATHS:
        found.setdefault(room_of(module), set()).update(filter(is_private, defined(module)))
    return found


def test_private_attributes_stay_in_their_room():
    """Of the private attributes that some room defines, each is read in a room that defines it, too."""
    names = private_names()
    everywhere = set().union(*names.values()) - FOREIGN
    others = {room: everywhere - own for room, own in names.items()}
    found = {
        f"{module}: {node.attr}"
        for module in PATHS
        for node in nodes(module)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and node.attr in others[room_of(module)]
        and getattr(node.value, "id", "") not in ("self", "cls")
    }
    assert not found


# --- tests beside modules ---------------------------------------------------------------------------------------------


def own_test(module: str) -> bool:
    folder = TESTS / room_of(module).strip("_")
    name = f"test_{module.rpartition('.')[2].strip('_')}.py"
    return any(folder.rglob(name)) if folder.is_dir() else (TESTS / name).exists()


def test_every_long_module_has_a_test_of_its_name_or_a_row_that_says_which():
    long = {module for module, path in PATHS.items() if len(path.read_text("utf-8").splitlines()) >= 100}
    alone = {module for module in long if not own_test(module)}
    covered = {module for modules in COVERED_BY.values() for module in modules.split()}
    assert not alone - covered, "\n".join(sorted(alone - covered))
    assert not covered - alone, f"not needed any more, take them out: {sorted(covered - alone)}"
    assert not [test for test in COVERED_BY if not (TESTS / test).exists()]


# --- where libraries are called, and what a copy needs ----------------------------------------------------------------


def test_the_package_never_names_itself_in_an_import():
    wrong = [f"{found.module}:{found.line}" for found in outside_imports() if room_of(found.target) == "gpusense"]
    assert not wrong, "relative imports only, so that a vendored copy is itself"


def test_ctypes_stays_where_libraries_are_called():
    wrong = [
        f"{found.module}:{found.line}"
        for found in outside_imports()
        if room_of(found.target) == "ctypes" and room_of(found.module) not in CTYPES
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
    r"gpusense\.(session|process|version|outcome|drop\.reason|attributes\.dropped|overhead\.(time|part)|hang(\.(text|absent))?|"
    r"spans(\.dropped)?|records(\.(dropped|seen|kept))?)"
)


def docstrings(module: str) -> set[int]:
    found = set()
    for node in nodes(module):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            found.update(id(item.value) for item in body if isinstance(item, ast.Expr))
    return found


def test_no_string_names_a_module_of_the_package():
    wrong = []
    for module in PATHS:
        said = docstrings(module)
        for node in nodes(module):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in said:
                continue
            if "gpusense." not in node.value:
                continue
            rest = FIXED_NAME.sub("", node.value)
            if room_of(module) == "exporters":
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
