"""The public names: written out here a second time, so that a change of them is a decision."""

import ast
import inspect
import pathlib
import re

import pytest

import gpusense

_TEXT = """
ActivitySource Aggregate Backend BackendError BackendUnavailable Block BlockOperation BlockRecord BlockSummary
Bottleneck ComputeBlock ConfigurationError CounterSample Counters DeviceBusy DeviceInfo DeviceSource Direction Finding
GpuAllocation GpuBlockTime GpuCollective GpuKernel GpuMemoryTransfer GpuMemset GpuMetrics GpuSenseError GpuSync Launched
MetricsSource Monitor NoopTracer Operation OwnUsage Phase RecordSource Session SessionError Settings Span Steps Syscall
TraceSummary Tracer Unavailable UnseenInterval Window __version__ compute_block configure cuda detach devices
disable doctor dump enable exporters get_tracer integrations load monitor own_usage record_compute_block
record_kernel record_transfer reset session testing trace wgpu
"""
PUBLIC = _TEXT.split()

ROOT = pathlib.Path(gpusense.__file__).parent


def test_the_public_names_are_these():
    assert gpusense.__all__ == PUBLIC


def exists(name: str) -> bool:
    return (ROOT / f"{name}.py").exists() or (ROOT / name / "__init__.py").exists()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves_and_is_listed(name):
    if name in gpusense._MODULES and not exists(name):
        with pytest.raises(ImportError):
            getattr(gpusense, name)
        pytest.skip(f"this copy comes without {name}")
    assert getattr(gpusense, name) is not None
    assert name in dir(gpusense)


def test_an_unknown_name_is_an_attribute_error_that_says_so():
    with pytest.raises(AttributeError, match="no attribute 'tarce'"):
        gpusense.tarce  # noqa: B018


def test_type_checkers_see_what_is_there_at_run_time():
    tree = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name for node in block.body if isinstance(node, ast.ImportFrom) and node.level for alias in node.names
    }
    lazy = {*gpusense._LAZY, *gpusense._MODULES}
    assert seen <= lazy
    assert {name for name in PUBLIC if name in lazy} <= seen


def test_star_import_brings_the_public_names_that_this_copy_has():
    names: dict[str, object] = {}
    missing = [name for name in gpusense._MODULES if not exists(name)]
    if missing:
        pytest.skip(f"this copy comes without {', '.join(missing)}")
    exec("from gpusense import *", names)
    assert set(PUBLIC) <= set(names)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("__version__", "Direction")])
def test_every_public_thing_says_what_it_gives(name):
    if name in gpusense._MODULES and not exists(name):
        pytest.skip(f"this copy comes without {name}")
    assert (getattr(gpusense, name).__doc__ or "").strip()


def test_dir_and_help_show_the_public_names_alone():
    assert dir(gpusense) == sorted({*PUBLIC, "session"})
    head = gpusense.__doc__.split("\n\n")[1]
    named = set(re.findall(r"``(\w+)", head))
    functions = {name for name in PUBLIC if inspect.isfunction(vars(gpusense).get(name))}
    assert named >= functions | set(gpusense._MODULES)


def test_configure_has_a_keyword_for_each_setting():
    parameters = inspect.signature(gpusense.configure).parameters
    assert list(parameters) == ["defaults", "sinks", *gpusense.Settings._fields, "unknown"]
    before = gpusense.get_tracer().config
    assert gpusense.configure() == before


#: What the process and the package call of a live tracer.
HOOKS = {
    *("before_fork", "after_fork_in_parent", "after_fork_in_child", "at_exit"),
    *("begin", "end", "end_counters", "follow_counters", "follow_tasks", "started", "ways_of_frames"),
}


def test_methods_of_both_tracers_are_the_same():
    from gpusense._tracing.noop import NoopTracer
    from gpusense._tracing.tracer import Tracer

    live = {name for name in dir(Tracer) if not name.startswith("_")} - HOOKS
    idle = {name for name in dir(NoopTracer) if not name.startswith("_")}
    assert live - {"reconfigure"} <= idle | {"config"}
