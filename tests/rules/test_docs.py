"""The documentation against the code: what pages tell a reader to do runs; settings, verbs and JSON are as they say."""

import contextlib
import inspect
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.machine import ROOT
from support.tree import PACKAGE, ROWS

import gpusense
from gpusense import cli
from gpusense._runtime import config
from gpusense.session import _format

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
#: Pages in which each fence of Python and of commands is run, but for those that say why not.
FOLLOWED = [DOCS / "index.md", DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))]
FENCE = re.compile(
    r"(?:^<!-- (?:file: (?P<name>[\w.]+)|not run: (?P<why_not>[^>]+)|needs: (?P<module>[\w.]+)) -->\n)?"
    r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def steps(page: pathlib.Path) -> list[tuple[str, str | None, str]]:
    return [
        (fence["language"], fence["name"], fence["text"])
        for fence in FENCE.finditer(page.read_text("utf-8"))
        if (fence["name"] or fence["language"] in ("sh", "bash", "python"))
        and not fence["why_not"]
        and (not fence["module"] or is_installed(fence["module"]))
    ]


def is_installed(module: str) -> bool:
    with contextlib.suppress(ImportError):
        return find_spec(module) is not None
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries, the commands for a POSIX shell")
@pytest.mark.timeout(300)
def test_what_pages_tell_a_reader_to_do_runs(build_library, tmp_path):
    command = tmp_path / "bin" / "gpusense"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpusense "$@"\n')
    command.chmod(0o755)
    plan = [(page.stem, todo) for page in FOLLOWED if (todo := steps(page))]
    (tmp_path / "plan.json").write_text(json.dumps(plan), "utf-8")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "OTEL", "FAKE"))}
    environ |= {
        "PATH": os.pathsep.join([str(command.parent), os.path.dirname(sys.executable), environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
        "GPUSENSE_LIBNVIDIA_ML": str(build_library("libnvidia_ml.c", "libnvidia-ml.so.1")),
    }
    follow = [sys.executable, str(ROOT / "tests/support/fences.py"), "plan.json"]
    done = subprocess.run(follow, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    shown = {page: page.read_text("utf-8", "replace") for page in tmp_path.glob("*.txt")}
    assert done.returncode == 0, [text for text in shown.values() if "\nfailed:\n" in f"\n{text}"] or done.stderr
    assert len(shown) == len(plan)


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_every_fence_names_its_language(page):
    assert not [fence["text"] for fence in FENCE.finditer(page.read_text("utf-8")) if not fence["language"]]


def rows(page: str, heading: str = "") -> Iterator[list[str]]:
    """Cells of the table rows of a page, below a heading, without their code marks."""
    text = (DOCS / page).read_text("utf-8")
    text = text.partition(f"\n{heading}")[2] if heading else text
    for line in text.splitlines():
        if line.startswith("## ") and heading:
            return
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_setting_stands_in_the_reference_with_its_variable_default_and_range():
    cells = [[cell.split("<br>") for cell in row] for row in rows("reference/configuration.md") if "<br>" in row[0]]
    told = {name.strip("`"): (variable, values) for (name, variable), values, _ in cells}
    assert list(told) == list(config.Settings._fields)
    for name, default in config.Settings._field_defaults.items():
        variable, (shown, *limits) = told[name]
        assert variable.strip("`") == ("GPUSENSE" if name == "mode" else f"GPUSENSE_{name.upper()}")
        assert shown == f"`{json.dumps(default) if isinstance(default, str) else repr(default)}`"
        if name in config._RANGES:
            low, high = config._RANGES[name]
            assert [float(word) for word in limits[0].split("…")] == [low, pytest.approx(high)], name


def test_variables_that_the_code_reads_stand_in_the_reference():
    text = (DOCS / "reference/configuration.md").read_text("utf-8")
    for path in (ROOT / "gpusense").rglob("*.py"):
        for name in re.findall(r"\bGPUSENSE_[A-Z_]+\b", path.read_text("utf-8")):
            assert name.endswith("_") or f"`{name}`" in text or f"`{name}=" in text, f"{path.name} reads {name}"


def test_every_verb_describes_itself_and_its_arguments():
    for name in cli._present():
        parser = cli.parser_of(name)
        assert parser.description, name
        assert "`" not in parser.description
        for action in parser._actions:
            assert action.help, f"{name} {action.dest}"


def command(*arguments: str, cwd: pathlib.Path, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpusense", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in codes, done.stderr
    return done.stdout


PROGRAM = """
import gpusense
with gpusense.trace("step"):
    gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=1000, duration_ns=1_000_000)
    gpusense.record_kernel("sgemm", duration_ns=1_000_000, device=0)
    with gpusense.compute_block("sum", elements=10):
        pass
"""


#: What the JSON page describes by naming the type whose fields an object has.
TYPES = {
    "findings": gpusense.Finding,
    "phases": gpusense.Phase,
    "steps": gpusense.Steps,
    "counters": gpusense.Counters,
    "devices": gpusense.DeviceInfo,
    "busy": gpusense.DeviceBusy,
    "operations": gpusense.Operation,
    "aggregates": gpusense.Aggregate,
    "metrics": gpusense.GpuMetrics,
    "blocks": gpusense.BlockRecord,
    "kernel": gpusense.GpuKernel,
    "transfer": gpusense.GpuMemoryTransfer,
    "memset": gpusense.GpuMemset,
    "sync": gpusense.GpuSync,
    "allocation": gpusense.GpuAllocation,
    "collective": gpusense.GpuCollective,
    "compute": gpusense.ComputeBlock,
    "block_time": gpusense.GpuBlockTime,
    "block": gpusense.BlockRecord,
    "syscall": gpusense.Syscall,
}


REPORT_JSON = "## `gpusense report --json`"


def section(name: str) -> str:
    """The part of the JSON page whose heading names a schema or command."""
    text = (DOCS / "reference/json.md").read_text("utf-8")
    (found,) = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if name in part.partition("\n")[0]]
    return found


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    command("run", "-o", "run.gpusense", "program.py", cwd=folder)
    return folder


def test_report_json_has_the_fields_of_the_page(session):
    shown = json.loads(command("report", "run.gpusense", "--json", cwd=session))
    told = {cells[0].strip("`"): cells[1] for cells in rows("reference/json.md", REPORT_JSON) if len(cells) == 2}
    text = section("gpusense.report/1")
    kinds = {"field", "kind", *(kind for kind in TYPES if kind not in shown)}
    assert set(shown) == {field for field in told if "," not in field} - kinds
    assert shown["schema"] in text
    for name in shown["meta"]:
        assert f"`{name}`" in text, name
    for record in shown["records"] + shown["blocks"]:
        for name in record.keys() - TYPES[record["kind"]]._fields:
            assert f"`{name}`" in text, f"{record['kind']}.{name}"


def test_objects_of_a_report_have_the_fields_of_the_type_that_the_page_names():
    from support.sessions import eventful

    from gpusense.report.json import to_dict

    report = to_dict(eventful())
    told = {cells[0].strip("`"): cells[1] for cells in rows("reference/json.md", REPORT_JSON) if len(cells) == 2}
    kinds = {
        kind: named.group()
        for cell, types in told.items()
        for kind, named in zip(re.findall(r"\w+", cell), re.finditer(r"`(\w+)`", types), strict=False)
    }
    for name, form in TYPES.items():
        if name not in report:  # a kind of record
            assert kinds[name] == f"`{form.__name__}`"
            continue
        assert f"[`{form.__name__}`](api/" in told[name], name
        found = report[name] if isinstance(report[name], list) else [report[name]]
        if name == "metrics":  # what has its default is left out
            assert all(set(row) <= set(form._fields) for row in found)
            continue
        for row in found:
            more = row.keys() - form._fields
            assert set(form._fields) <= row.keys(), name
            assert more <= set(re.findall(r"`(\w+)`", told[name])), (name, more)


def test_every_field_of_an_analysis_stands_in_its_section_of_the_page():
    from support.sessions import eventful

    from gpusense.report.json import to_dict

    analysis = to_dict(eventful())["analysis"]
    page = (DOCS / "reference/json-analysis.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert list(sections) == list(analysis)
    for topic, found in analysis.items():
        types = [pkgutil.resolve_name(name) for name in re.findall(r"{row} (\S+)", sections[topic])]
        told = [{*form._fields, *(name for name in vars(form) if type(vars(form)[name]) is property)} for form in types]
        inner = [entry for row in found for value in row.values() if isinstance(value, list) for entry in value]
        inner_names = {name for row in inner if isinstance(row, dict) for name in row}
        names = {name for row in found for name in row}
        if not types:
            assert set(re.findall(r"`(\w+)`", sections[topic])) - {"sync"} == names | inner_names, topic
            continue
        assert found, topic
        assert names == told[0], topic
        if topic == "backends":  # a side is an operation
            told.append(set(gpusense.Operation._fields))
        assert inner_names <= set().union(*told[1:]), topic


def test_every_figure_of_counters_says_what_it_is_of():
    from gpusense.analysis.counter_sampling import Sampling
    from gpusense.analysis.counters import BlockShares

    for form in (gpusense.CounterSample, BlockShares, Sampling):
        told = set(re.findall(r"^    (\w+): [^#\n]*# \S", inspect.getsource(form), re.MULTILINE))
        assert set(form._fields) - told <= set(gpusense.CounterSample._fields if form is BlockShares else ())


def test_export_json_is_the_same_shape(session):
    from gpusense import load
    from gpusense._tracing.summary import export_json

    shown = json.loads(command("report", "run.gpusense", "--json", cwd=session))
    assert set(json.loads(export_json(load(session / "run.gpusense")))) == set(shown)


def test_doctor_and_metrics_json_have_the_fields_of_the_page(tmp_path):
    import gpusense.testing as fakes
    from gpusense._records.json_codec import metrics_line
    from gpusense._records.metrics import GpuMetrics

    doctor = json.loads(command("doctor", "--json", cwd=tmp_path))
    assert doctor["schema"] in section("gpusense.doctor/1")
    for name in {*doctor, *doctor["backends"][0]} - {"schema"}:
        assert f"`{name}`" in section("gpusense.doctor/1"), name
    once = json.loads(command("monitor", "--once", "--json", cwd=tmp_path, codes=(0, 1)))  # 1: there is no device
    sample = fakes.metrics(fakes.device(), {"power.draw_watts": 3.0})
    for name in {*once, *metrics_line((sample,)), GpuMetrics.__name__}:
        assert f"`{name}`" in section("gpusense.metrics/1"), name


def test_the_page_of_the_session_file_names_its_version_and_its_chunks():
    text = (DOCS / "reference/session-format.md").read_text("utf-8")
    assert f"| 8 | 2 | major version: {_format.MAJOR} |" in text
    assert f"| 10 | 2 | minor version: {_format.MINOR} |" in text
    for number, name in _format.TYPES.items():
        assert f"| {number} | {name} |" in text


def test_diff_json_has_the_fields_of_the_page(session):
    shown = json.loads(command("diff", "run.gpusense", "run.gpusense", "--json", "--fail-over", "10%", cwd=session))
    for name in {*shown, *shown["counts"][0], *shown["times"][0]}:
        assert f"`{name}`" in section("gpusense diff --json"), name


def test_links_between_pages_and_to_files_lead_somewhere():
    for page in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


#: Where paths in pages begin: folders of the repository, and rooms of the package.
FOLDERS = ("gpusense", "tests", "benchmarks", "docs", "examples")
PATH = re.compile(
    rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w|(?<=`)(?:{'|'.join(ROWS)})/[\w./-]*\w(?=`)|(?<=`)_\w+\.py(?=`)"
)


#: Named as what a reader would write, or what a command makes.
INVENTED = {
    "docs/_build/html",
    "gpusense/_capi/x.py",
    "gpusense/backends/x.py",
    "tests/backends/test_x.py",
    "tests/fakes/libx.c",
}


def is_there(path: str) -> bool:
    if "/" not in path:
        return any(PACKAGE.rglob(path))
    return any((folder / f"{path}{end}").exists() for folder in (ROOT, PACKAGE) for end in ("", ".py"))


def test_paths_that_pages_name_are_there():
    pages = [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"]
    named = {(page.name, path) for page in pages for path in PATH.findall(page.read_text("utf-8"))}
    gone = {(page, path) for page, path in named if path not in INVENTED and not is_there(path)}
    assert not gone, sorted(gone)


def test_files_that_comments_name_are_there():
    gone = [
        f"{source.relative_to(ROOT)} names {path}"
        for folder in ("gpusense", "benchmarks")
        for source in (ROOT / folder).rglob("*.py")
        for path in re.findall(
            r"(?<![\w/.])(?:docs|tests|benchmarks)/[\w./-]+\.(?:py|md|c)\b", source.read_text("utf-8")
        )
        if not (ROOT / path).exists()
    ]
    assert not gone, "\n".join(gone)


@pytest.mark.parametrize("page", ["reference/names.md", "howto/coming-from.md"])
def test_names_to_change_to_are_there(page):
    from gpusense import monitor

    ours = " ".join(cells[1] for cells in rows(page) if len(cells) == 2)
    for path in re.findall(r"`@?gpusense\.([\w.]+)", ours):
        pkgutil.resolve_name(f"gpusense.{path}" if path.rpartition(".")[0] else f"gpusense:{path}")
    for group, field in re.findall(r"`sample\.(\w+)\.(\w+)`", ours):
        assert field in getattr(monitor, group.capitalize())._fields, field
    options = {
        option for name in cli._present() for action in cli.parser_of(name)._actions for option in action.option_strings
    }
    for option in re.findall(r"(?<=[` ])--[a-z-]+", ours):
        assert option in options, option
