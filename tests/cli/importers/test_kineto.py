"""Traces of torch.profiler and Proton as sessions: made-up ones of every kind of event, older forms, hostile ones."""

import gzip
import json

import pytest

from gpusense import cli, load
from gpusense.cli.importers import trace as trace_module
from gpusense.cli.importers.kineto import Hatchet, Reader, nanoseconds
from gpusense.report import text

T = 1_700_000_000_000_000  # µs
MAIN, AUTOGRAD = 4711, 4712


def event(category, name, start, length, thread=MAIN, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": T + start,
        "dur": length,
        "args": args,
    }


def on_device(category, name, start, length, correlation, **args):
    place = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    return event(category, name, start, length, thread=7, **place, **args)


def launch(start, correlation, thread=MAIN, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, start, 5, thread, correlation=correlation)


GEMM = "void at::native::gemm<float>(float*)"
STEP = [
    on_device("kernel", GEMM, 110.5, 300.5, 1, grid=[8, 2, 1], block=[128, 1, 1], **{"registers per thread": 32}),
    launch(100, 1),
    on_device("kernel", GEMM, 420, 300, 2),
    launch(205, 2, AUTOGRAD),
    on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 50, 3, bytes=4096),
    launch(5, 3, name="cudaMemcpyAsync"),
    on_device("gpu_memset", "Memset (Device)", 70, 2, 4, bytes=64),
    on_device("kernel", "late", 800, 10, 99),
    event("cuda_runtime", "cudaStreamSynchronize", 400, 350, correlation=5),
    event("cuda_sync", "Stream Sync", 402, 340, 7, device=0, context=1, stream=7, correlation=5),
    event("cuda_sync", "Stream Wait Event", 90, 1, 7, device=0, stream=9, correlation=6),
    event("cuda_runtime", "cudaDeviceSynchronize", 950, 20, correlation=8),
    event("user_annotation", "ProfilerStep#12", 0, 900),
    event("user_annotation", "forward", 90, 60),
    event("python_function", "nn.Module: Linear_0", 95, 20),
    event("python_function", "train.py(3): f", 95, 20),
    event("cpu_op", "aten::mm", 96, 15),
    event("gpu_user_annotation", "forward", 110, 300, 7),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": MAIN, "args": {"name": "thread 4711 (python)"}},
    {"ph": "s", "cat": "ac2g", "id": 1, "ts": T},
]
ABOUT = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132, "computeMajor": 9, "computeMinor": 0}],
    "distributedInfo": {"rank": 3, "world_size": 8},
}


@pytest.fixture
def imported(tmp_path, capsys):
    """``imported(events, …)``: exit code, session and what was said of a trace of these events."""

    def run(events, *options, name="run.pt.trace.json.gz", data=None, **members):
        path, out = tmp_path / name, tmp_path / "out.gpusense"
        if data is None:
            data = json.dumps({**members, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        code = cli.main(["import", str(path), "-o", str(out), *options])
        said = capsys.readouterr().err
        return code, load(out) if code == 0 else None, said

    return run


def test_a_step_is_all_there(imported):
    code, session, said = imported(STEP, "--trace-all", **ABOUT)
    assert code == 0
    assert "3 kernels, 1 copy, 1 memset, 3 waits, 3 blocks" in said
    assert "no device samples" in said
    assert "cpu_op events (1)" in said
    assert "python_function events (1)" in said
    first, second, late = session.kernels
    assert (first.name, first.full_name, first.start_ns, first.end_ns) == (
        "gemm<float>",
        GEMM,
        (T + 110) * 1000 + 500,
        (T + 411) * 1000,
    )
    assert (first.device, first.context, first.stream, first.correlation_id) == (0, 1, 7, 1)
    assert (first.grid, first.block, first.registers_per_thread) == ((8, 2, 1), (128, 1, 1), 32)
    assert first.path == ("ProfilerStep", "forward", "Linear_0")
    assert second.path == ("ProfilerStep",)  # launched by a thread without blocks
    assert late.path == ()
    assert session.counters.inherited == 1
    (copy,) = session.transfers
    assert (copy.direction, copy.bytes, copy.source, copy.destination) == ("cpu_to_gpu", 4096, "pinned", "device")
    assert session.memsets[0].bytes == 64
    waits = {wait.name: wait for wait in session.syncs}
    assert waits["stream_synchronize"].stream == 7
    assert waits["stream_synchronize"].path == ("ProfilerStep",)
    assert set(waits) == {"stream_synchronize", "stream_wait_event", "context_synchronize"}
    assert {block.name: block.attributes for block in session.blocks}["ProfilerStep"] == {"step": 12}
    assert session.devices[0].compute_capability == (9, 0)
    assert (session.meta["rank"], session.meta["world_size"]) == (3, 8)
    assert session.busy[0].busy_ns == 50_000 + 2_000 + 300_500 + 300_000 + 10_000
    assert (session.meta["start_ns"], session.meta["end_ns"]) == (T * 1000, (T + 970) * 1000)


def test_what_is_short_is_summed_and_its_rows_are_there(imported):
    _, session, _ = imported(STEP, **ABOUT)
    assert len(session.kernels) == 2
    assert len(session.work) == 8
    assert "run.pt.trace.json.gz (torch.profiler)" in "\n".join(text.full(session))


def test_times_count_from_the_base_or_else_end_when_the_file_was_written(imported, tmp_path):
    moved = [{**one, "ts": one["ts"] - T + 7} for one in STEP if "ts" in one]
    base = 1_700_000_000_000_000_000
    _, session, _ = imported(moved, baseTimeNanoseconds=base)
    assert session.meta["start_ns"] == base + 7000
    _, session, said = imported(moved)
    assert "does not say when it was made" in said
    assert session.meta["end_ns"] == (tmp_path / "run.pt.trace.json.gz").stat().st_mtime_ns
    assert session.duration_ns == 970_000


def test_a_trace_without_a_gpu_says_what_it_lacks(imported):
    host = [one for one in STEP if one.get("cat") in ("user_annotation", "cpu_op")]
    code, session, said = imported(host, name="run.json")
    assert code == 0
    assert "waits of the host are not known" in said
    report = "\n".join(text.full(session))
    assert "No GPU work was seen: no device work in the torch.profiler trace." in report
    assert "ProfilerActivity.CUDA" in report
    assert "the imported trace has no calls of the host" in report


def test_a_card_of_amd(imported):
    events = [
        event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 10, 50, 0, device=2, stream=0, correlation=3, kind="HtoD"),
        event("cuda_runtime", "hipMemcpyWithStream", 5, 60, correlation=3, size="2560", stream="0x0"),
        event("cuda_runtime", "hipDeviceSynchronize", 70, 5, correlation=4),
    ]
    _, session, _ = imported(events, "--trace-all", deviceProperties=[{"id": 2, "name": "AMD Instinct MI250"}])
    assert session.transfers[0].bytes == 2560
    assert session.syncs[0].name == "context_synchronize"
    assert session.devices[0].vendor == "amd"


def test_a_trace_of_proton(imported):
    stack = ["ROOT", "step", "matmul"]
    events = [
        {
            "name": "matmul",
            "cat": "kernel",
            "ph": "X",
            "ts": 0.5,
            "dur": 200.25,
            "tid": 3,
            "args": {"call_stack": stack},
        }
    ]
    data = (json.dumps({"displayTimeUnit": "us", "traceEvents": events}) + "\n").encode() * 2
    _, session, said = imported((), name="proton.chrome_trace", data=data)
    assert "imported from Proton" in said
    assert [(one.name, one.stream, one.device, one.path, one.duration_ns) for one in session.kernels] == [
        ("matmul", 3, 0, ("step",), 200_250)
    ] * 2


def test_a_hatchet_profile_has_no_times(imported):
    tree = [{"children": [], "frame": {"name": "ROOT", "type": "function"}, "metrics": {"time (ns)": 5}}, {"CUDA": {}}]
    code, _, said = imported((), name="proton.hatchet", data=json.dumps(tree).encode())
    assert code == 2
    assert "data='trace'" in said


def test_a_file_that_is_cut_gives_what_it_has(imported):
    data = json.dumps({**ABOUT, "traceEvents": STEP}).encode()
    code, session, said = imported((), name="cut.json", data=data[: data.index(b"Memset")])
    assert code == 0
    assert "the file is damaged" in said
    assert len(session.work) == 3
    packed = gzip.compress(data * 50)
    code, session, said = imported((), name="cut.json", data=packed[:-9])
    assert code == 0
    assert "damaged" in said
    for nothing in (b'{"traceEvents": [', b"{", packed[:30], b'{"traceEvents": []}'):
        code, _, said = imported((), name="cut.json", data=nothing)
        assert code in (1, 2), nothing
        assert said.startswith("gpusense import: ")


ODD = [
    None,
    True,
    -1,
    0,
    1 << 80,
    -(1 << 63),
    "",
    "x",
    "1e400",
    "-5.5",
    "nan",
    [],
    [1],
    {},
    {"a": []},
    "\udcff\x1b[31m",
    1.5,
]


def test_values_of_any_type_are_counted_and_never_end_it(tmp_path):
    reader = Reader()
    for one in STEP:
        for odd in ODD:
            for name in one:
                reader.take("traceEvents", json.loads(json.dumps({**one, name: odd}), parse_float=str))
            for name in one.get("args", ()):
                changed = {**one, "args": {**one["args"], name: odd}}
                reader.take("traceEvents", json.loads(json.dumps(changed), parse_float=str))
    for odd in ODD:
        for name in ("traceEvents", "deviceProperties", "distributedInfo"):
            reader.take(name, odd)
        reader.take(
            "deviceProperties",
            [odd, {"id": odd, "name": "x"}, {"id": 0, "name": odd}, {"id": 0, "name": "x", "computeMajor": odd}],
        )
        reader.take("distributedInfo", {"rank": odd})
    session = reader.trace.session(None, False, 1_700_000_000 * 10**9)
    assert reader.trace.left_out["events whose time is not a number"] > 100
    assert reader.trace.left_out["records with times that cannot be"] > 0
    path = tmp_path / "odd.gpusense"
    from gpusense.session import save

    save(session, path)
    assert "\n".join(text.full(load(path)))


def test_of_very_many_records_the_rest_is_counted(monkeypatch):
    monkeypatch.setattr(trace_module, "MOST", 5)
    reader = Reader()
    for one in STEP:
        reader.take("traceEvents", one)
    assert len(reader.trace) == 5
    assert reader.trace.left_out["records beyond the first 5"] == 5


def test_of_very_many_sorts_and_long_names_little_is_kept(monkeypatch):
    monkeypatch.setattr(trace_module, "_NAMES", 1000)
    reader = Reader()
    for number in range(500):
        reader.take("traceEvents", event(f"sort {number}", "x", 0, 1))
        reader.take("traceEvents", on_device("kernel", f"{number}" + "k" * 9000, number, 1, number))
    assert sum(reader.trace.left_out.values()) == 500
    assert len(reader.trace.left_out) < 50
    session = reader.trace.session(None, True, 0)
    assert sum(len(one.full_name or one.name) for one in session.kernels) < 200_000


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (3, 3000), ("1700000000000000.125", T * 1000 + 125), ("0.9999", 999), ("-1.5", -1500), ("1e3", 1_000_000),
        ("x", None), (True, None), (None, None), ("inf", None), ("1." + "0" * 90, None),
    ],
)  # fmt: skip
def test_microseconds_are_exact(value, ns):
    assert nanoseconds(value) == ns


def test_hatchet_is_told_from_events():
    with pytest.raises(Hatchet):
        Reader().take("traceEvents", {"frame": {}, "metrics": {}})
