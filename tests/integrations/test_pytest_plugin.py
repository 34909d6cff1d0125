"""The pytest plugin in runs of its own, with records made by hand in place of a GPU's."""

import json
import os
import pathlib
import shutil

import pytest

import gpusense
from gpusense.integrations.pytest_plugin import times_of

pytest_plugins = ["pytester"]
ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent

WORK = """
import gpusense as sense

def work():
    for i in range(1, 21):
        sense.record_kernel("ampere_sgemm_128x64", duration_ns=i * 1_000)
    sense.record_kernel("softmax", duration_ns=500)
    sense.record_transfer("up", "cpu_to_gpu", bytes=4096, duration_ns=900, timing="device")
"""


@pytest.fixture
def run(pytester, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GPUSENSE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' plugins take longer to load than ours to run

    def start(source, *arguments, plugin=True):
        pytester.makepyfile(WORK + source)
        words = ["-p", "gpusense.integrations.pytest_plugin"] if plugin else []
        return pytester.runpytest_subprocess(*words, "-p", "no:cacheprovider", "-rs", *arguments)

    return start


def test_questions_about_kernels_and_copies(run):
    run("""
def test_facts(gpusense):
    work()
    times = gpusense.kernel("sgemm")
    assert (times.count, times.min_ns, times.p50_ns, times.p95_ns, times.max_ns) == (20, 1000, 10_000, 19_000, 20_000)
    assert times.total_ns == 210_000 and times.avg_ns == 10_500
    assert gpusense.kernel_count == 21
    assert gpusense.gpu_ns == 210_500
    assert gpusense.transfer_bytes("cpu_to_gpu") == 4096 and gpusense.transfers("gpu_to_cpu") == []
    gpusense.assert_no_sync()

def test_next_test_begins_anew(gpusense):
    sense.record_kernel("other", duration_ns=1)
    assert [kernel.name for kernel in gpusense.kernels()] == ["other"]

def test_the_first_question_ends_it_and_restart_begins_anew(gpusense):
    work()
    assert gpusense.kernel_count == 21
    work()
    assert gpusense.kernel_count == 21
    gpusense.restart()
    sense.record_kernel("after", duration_ns=7)
    assert gpusense.kernel("after").total_ns == 7 and gpusense.kernel_count == 1

def test_settings_come_back():
    assert not sense.get_tracer().active
""").assert_outcomes(passed=4)


def test_a_misspelt_direction_is_no_answer(run):
    result = run("def test_copies(gpusense):\n    work()\n    assert gpusense.transfer_bytes('gpu_to_host') == 0\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ValueError: direction must be one of cpu_to_gpu, *, not 'gpu_to_host'"])


def test_failures_say_what_was_there(run):
    result = run("""
from gpusense._records.records import GpuSync

def test_no_such_kernel(gpusense):
    work()
    gpusense.kernel("conv")

def test_syncs(gpusense):
    work()
    block = sense.get_tracer().current_block()
    sense.get_tracer().record([GpuSync(
        "stream_synchronize", block.start_ns, block.start_ns + 500, source_line="test_it.py:9 f", path=block.path
    )])
    gpusense.assert_no_sync()
""")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*no kernel was named 'conv'; kernels: ampere_sgemm_128x64, softmax*",
            "*the host waited for the device 1 time, 500 ns in all: stream_synchronize at test_it.py:9 f*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")  # the failure is where the test asked


COUNTED = """
def test_sums_are_exact(gpusense):
    work()
    assert gpusense.kernel_count == 21 and gpusense.gpu_ns == 210_500
    assert gpusense.transfer_bytes("cpu_to_gpu") == 4096 and gpusense.transfer_bytes("gpu_to_cpu") == 0

def test_single_ones_are_not_known(gpusense):
    work()
    gpusense.kernel("sgemm")

def test_nor_are_copies(gpusense):
    work()
    gpusense.transfers()

def test_after_restart_only_what_followed(gpusense):
    work()
    gpusense.restart()
    sense.record_kernel("after", duration_ns=7)
    sense.record_kernel("after", duration_ns=7)
    assert gpusense.kernel_count == 2 and gpusense.gpu_ns == 14
"""


@pytest.mark.parametrize("variable", ["GPUSENSE_TRACE_ALL=0", "GPUSENSE_MAX_RECORDS=1"])
def test_what_was_only_counted_is_not_taken_for_nothing(run, monkeypatch, variable):
    monkeypatch.setenv(*variable.split("="))
    result = run(COUNTED)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*Failed: 2? kernel records of this test were only counted: *", "*Failed: 1 transfer record of * was only *"]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_a_question_fails_where_records_were_lost(run):
    result = run("""
from gpusense._records.records import Counters

def test_before(gpusense):
    work()
    assert gpusense.kernel_count == 21

def test_lost(gpusense, monkeypatch):
    work()
    tracer = sense.get_tracer()
    session = tracer.session()
    session.counters = session.counters._replace(dropped=session.counters.dropped + 3)
    monkeypatch.setattr(type(tracer), "session", lambda self: session)
    assert gpusense.session.counters.dropped == 3
    gpusense.kernel_count

def test_lost_by_an_earlier_test(gpusense):
    work()
    assert gpusense.kernel_count == 21
""")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Failed: not all that this test did on the GPU was recorded: dropped 3"])


def test_peak_memory(run):
    run("""
from gpusense._records.records import GpuAllocation

def test_peak(gpusense):
    block = sense.get_tracer().current_block()
    events = [("alloc", 100, 1), ("alloc", 50, 2), ("free", 100, 1), ("alloc", 20, 3), ("free", 0, 9)]
    sense.get_tracer().record(
        GpuAllocation(name, size, block.start_ns + i, address, path=block.path)
        for i, (name, size, address) in enumerate(events)
    )
    assert gpusense.peak_memory_bytes == 150
""").assert_outcomes(passed=1)


def test_without_a_gpu_a_question_skips_with_the_reason(run, monkeypatch):
    source = """
def test_facts(gpusense):
    gpusense.kernel("sgemm")

def test_no_question(gpusense):
    pass
"""
    result = run(source)
    if not gpusense.cuda.cuda_available():
        result.assert_outcomes(skipped=1, passed=1)
        result.stdout.fnmatch_lines(["SKIPPED*test_without_a_gpu*.py:*no GPU work can be seen: *"])
    monkeypatch.setenv("GPUSENSE", "off")
    result = run(source)
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*no GPU work can be seen: gpusense is off*"])


@pytest.mark.parametrize("form", ["html", "json", "gpusense", "txt"])
def test_report_of_the_run(run, pytester, form):
    source = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_work(n):
    work()

def test_questions_still_work(gpusense):
    work()
    assert gpusense.kernel_count == 21
"""
    path = pytester.path / f"out.{form}"
    result = run(source, "--gpusense-report", str(path))
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"*gpusense: *out.{form}"])
    if form == "gpusense":
        names = {block.path[1] for block in gpusense.load(path).blocks if len(block.path) > 1}
        assert {name.partition("::")[2] for name in names} == {
            "test_work[1]",
            "test_work[2]",
            "test_questions_still_work",
        }
        assert len(gpusense.load(path).kernels) == 63
    elif form == "json":
        assert json.loads(path.read_text())["schema"] == "gpusense.report/1"
    else:
        assert "ampere_sgemm_128x64" in path.read_text("utf-8")


def test_with_xdist_the_process_that_runs_no_test_writes_no_file(run, pytester):
    result = run("def test_work(): work()", "-p", "xdist", "-n", "1", "--gpusense-report", "out.html")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpusense: *out-gw0.html and so on, one a worker"])
    assert [path.name for path in pytester.path.glob("out*")] == ["out-gw0.html"]


def test_a_report_that_cannot_be_written_does_not_fail_the_run(run):
    result = run("def test_work():\n    work()\n", "--gpusense-report", "/nowhere/at/all.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*gpusense: no report: *"])


def test_the_plugins_of_two_copies_are_loaded_beside_each_other(run, pytester):
    shutil.copytree(ROOT / "gpusense", pytester.path / "other", ignore=shutil.ignore_patterns("__pycache__"))
    words = ("-p", "other.integrations.pytest_plugin", "--gpusense-report", "out.txt")
    result = run("def test_facts(gpusense):\n    gpusense.restart()\n", *words)
    result.assert_outcomes(passed=1)
    assert sum("gpusense: " in line for line in result.outlines) == 1
    assert (pytester.path / "out.txt").exists()


def test_it_is_opt_in(run):
    result = run("def test_facts(gpusense):\n    pass\n", plugin=False)
    result.assert_outcomes(errors=1)
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert "pytest11" not in text


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 100])
def test_percentiles_are_values_that_occurred(count):
    records = [gpusense.GpuKernel("k", 10, 10 + i) for i in range(1, count + 1)]
    times = times_of(records)
    lengths = list(range(1, count + 1))
    for value, share in ((times.p50_ns, 0.5), (times.p95_ns, 0.95)):
        assert value == min(x for x in lengths if sum(y <= x for y in lengths) >= share * count - 1e-9)
