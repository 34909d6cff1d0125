"""What a program hands to the tracer by mistake: it is told nothing, and every report is made all the same."""

import asyncio
import collections.abc
import inspect
import io
import json
import time
import types
from typing import Any, NamedTuple, get_args

import pytest
from support.control import begun

import gpusense
from gpusense import GpuKernel, session
from gpusense._records import fields
from gpusense._runtime import log
from gpusense._tracing import block as _block
from gpusense._tracing import noop, summary
from gpusense.analysis.findings import findings
from gpusense.report import chrome, flamegraph, perfetto, text
from gpusense.report import json as report_json
from gpusense.report.html import page as html
from gpusense.report.html.data import page_data
from gpusense.report.style import Style
from gpusense.session import _format


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUSENSE", "on")
    begun(monkeypatch)
    made = gpusense.get_tracer()
    yield made
    made.close()


def ignored(tracer) -> int:
    return tracer.status()["ignored_records"]


NO_RECORDS = {
    "bytes that are text": lambda tracer: tracer.record_transfer("t", "cpu_to_gpu", bytes="many", duration_ns=5),
    "bytes that are nothing": lambda tracer: tracer.record_transfer("t", "cpu_to_gpu", bytes=None, duration_ns=5),
    "times that are text": lambda tracer: tracer.record_kernel("k", start_ns="a", end_ns="b"),
    "a number as text": lambda tracer: tracer.record_kernel("k", duration_ns="5"),
    "an infinite time": lambda tracer: tracer.record_kernel("k", duration_ns=float("inf")),
    "no time at all": lambda tracer: tracer.record_compute_block("c", start_ns=float("nan"), end_ns=5),
    "elements that are a list": lambda tracer: tracer.record_compute_block("c", 1, 2, elements=[]),
    "a field twice": lambda tracer: tracer.record_kernel("k", duration_ns=5, device="first"),
    "what is no record": lambda tracer: tracer.record([5]),
    "nothing to iterate over": lambda tracer: tracer.record(None),
    "a record without a start": lambda tracer: tracer.record([kernel(start_ns=None)]),
    "a record without a name": lambda tracer: tracer.record([kernel(name=None)]),
    "a record with an infinite end": lambda tracer: tracer.record([kernel(end_ns=float("inf"))]),
    "a path that is text": lambda tracer: tracer.record_kernel("k", duration_ns=5, path="text"),
    "no path": lambda tracer: tracer.record_kernel("k", duration_ns=5, path=None),
    "a backend that is none": lambda tracer: tracer.record_kernel("k", duration_ns=5, backend=None),
    "four dimensions": lambda tracer: tracer.record_kernel("k", duration_ns=5, grid=(1, 2, 3, 4)),
    "attributes that are no mapping": lambda tracer: tracer.record_kernel("k", duration_ns=5, attributes=5),
    "a direction there is not": lambda tracer: tracer.record_transfer("t", "sideways", bytes=1, duration_ns=5),
    "fewer bytes than none": lambda tracer: tracer.record_transfer("t", "cpu_to_gpu", bytes=-1, duration_ns=5),
    "more than 64 bits": lambda tracer: tracer.record_kernel("k", duration_ns=5, elements=1 << 64),
}


def kernel(**fields: Any) -> GpuKernel:
    return GpuKernel(**{"name": "k", "start_ns": 10**18, "end_ns": 10**18 + 10**6, **fields})


@pytest.mark.parametrize("case", NO_RECORDS)
def test_what_is_no_record_is_ignored_counted_and_logged_once(tracer, case, caplog, monkeypatch) -> None:
    monkeypatch.setattr(log, "_said", set())
    NO_RECORDS[case](noop.NoopTracer("off"))  # where nothing is recorded, as where something is
    for _ in range(2):
        NO_RECORDS[case](tracer)
    gpusense.record_kernel("good", duration_ns=10**9)
    assert tracer.flush(5)
    assert ignored(tracer) == 2
    assert len([entry for entry in caplog.records if entry.levelname == "WARNING"]) == 1
    assert [record.name for record in tracer.session().records] == ["good"]
    tracer.summary()
    tracer.export_json()


WRONG_NAMES = {
    "record_kernel() got an unexpected keyword argument 'duraton_ns'; did you mean 'duration_ns'?": lambda to: (
        to.record_kernel("k", duraton_ns=3)
    ),
    "record_transfer() got an unexpected keyword argument 'sorce'; did you mean 'source'?": lambda to: (
        to.record_transfer("k", "cpu_to_gpu", 4, duration_ns=3, sorce="pinned")
    ),
    "record_compute_block() got an unexpected keyword argument 'zzz'": lambda to: to.record_compute_block(
        "k", 1, 2, zzz=3
    ),
}


@pytest.mark.parametrize("said", WRONG_NAMES)
def test_a_keyword_that_there_is_not_raises_on_and_off(tracer, said) -> None:
    """Alike, or a program whose tests run without recording would raise where it is on."""
    for to in (tracer, gpusense, noop.NoopTracer("off")):
        with pytest.raises(TypeError) as raised:
            WRONG_NAMES[said](to)
        assert str(raised.value) == said
    assert ignored(tracer) == 0


def test_each_field_that_does_not_fit_is_logged_once_with_its_reason(tracer, caplog, monkeypatch) -> None:
    monkeypatch.setattr(log, "_said", set())
    for _ in range(3):
        gpusense.record_transfer("mesh", "cpu_to_gup", duration_ns=3)  # type: ignore[arg-type]
        gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=-1, duration_ns=3)
        gpusense.record_kernel("k", duration_ns="3")  # type: ignore[arg-type]
    assert ignored(tracer) == 9
    said = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    begin, directions = "gpusense: a record is ignored: ", ", ".join(get_args(gpusense.Direction))
    assert said == [
        f"{begin}direction of GpuMemoryTransfer 'mesh': 'cpu_to_gup' is none of {directions}",
        f"{begin}bytes of GpuMemoryTransfer 'mesh': a negative number, -1",
        f"{begin}times of GpuKernel 'k': '3' is not a number",
    ]


#: Parameters of their own, and fields for which a caller may pass more than a record holds.
PARAMETERS = {"name", "direction", "bytes", "start_ns", "end_ns"}
WIDER = {"grid", "block", "attributes"}


@pytest.mark.parametrize(
    ("kind", "known", "more"),
    [
        (GpuKernel, fields.KernelFields, set()),
        (gpusense.GpuMemoryTransfer, fields.TransferFields, set()),
        (gpusense.ComputeBlock, fields.ComputeFields, {"elements"}),
    ],
)
def test_type_checkers_know_the_fields(kind, known, more) -> None:
    expected = {name: of for name, of in kind.__annotations__.items() if name not in PARAMETERS | more}
    assert list(known.__annotations__) == list(expected)
    assert {name: of for name, of in known.__annotations__.items() if name not in WIDER} == {
        name: of for name, of in expected.items() if name not in WIDER
    }


def test_numbers_of_other_types_become_whole_ones(tracer) -> None:
    gpusense.record_transfer("t", "cpu_to_gpu", bytes=4.0, duration_ns=1e9)  # type: ignore[arg-type]
    (record,) = tracer.session().transfers
    assert (type(record.bytes), record.bytes, record.duration_ns) == (int, 4, 10**9)


def test_what_means_the_same_is_taken(tracer) -> None:
    class Whole(int):
        pass

    tracer.record(kernel(device=Whole(1), path=["a", "b"], grid=[64], block=(32, 2)))  # one, not in a list
    gpusense.record_kernel("k", duration_ns=10**6, grid=7)
    first, second = tracer.session().records
    assert first == kernel(device=1, path=("a", "b"), grid=(64, 1, 1), block=(32, 2, 1), is_slow=True)
    assert (type(first.device), second.grid) == (int, (7, 1, 1))
    assert ignored(tracer) == 0


class Mapping(collections.abc.Mapping):  # type: ignore[type-arg]
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class Elsewhere:
    """As a proxy of a web framework outside any request: whatever is asked raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")

    def __str__(self) -> str:
        raise RuntimeError("outside of a request")

    __repr__ = __str__


class Array:
    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Pair(NamedTuple):
    first: Any
    second: Any = Array()


ENDLESS: dict[str, Any] = {}
ENDLESS["self"] = ENDLESS
ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "a mapping": (Mapping(), {"a": 1}),
    "a view": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "a number that JSON libraries refuse": ({"n": 1 << 20_000}, {"n": hex(1 << 20_000)[:1000]}),
    "a key without a text": ({Elsewhere(): 1}, {"<Elsewhere>": 1}),
    "a proxy": ({"user": Elsewhere()}, {"user": "<Elsewhere>"}),
    "a tuple with arrays": ({"pair": Pair(Array(), Array())}, ...),
    "an endless one": (ENDLESS, ...),
    "not a number": ({"n": float("nan")}, {"n": "nan"}),
    "no mapping": (5, None),
    "text": ("text", None),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes_of_every_kind_cost_no_record(tracer, case, tmp_path) -> None:
    given, kept = ATTRIBUTES[case]
    with gpusense.trace("block", given):
        pass
    if kept is not None:
        gpusense.record_kernel("k", duration_ns=10**6, attributes=given)
    gpusense.record_kernel("good", duration_ns=10**6)
    live = tracer.session()
    session.save(live, tmp_path / "run.gpusense")
    loaded = session.load(tmp_path / "run.gpusense")
    assert loaded.meta["damage"] == []
    assert [record.name for record in loaded.records] == [record.name for record in live.records]
    for record in loaded.records:
        assert kept is ... or record.attributes == (kept if record.name != "good" else None)
    for found in (live, loaded):
        for write in (chrome.write, flamegraph.write, html.write, report_json.write, text.write):
            write(found, io.StringIO())
        perfetto.write(found, io.BytesIO())


@pytest.mark.parametrize("mode", ["live", "file"])
def test_a_record_has_the_attributes_of_its_own_time(monkeypatch, tmp_path, mode) -> None:
    recording = begun(monkeypatch).start_session(mode, str(tmp_path / "run.gpusense"))
    attributes = {"step": -1}
    for step in range(3):
        attributes["step"] = step
        with gpusense.trace("block", attributes):
            attributes["inside"] = step
        gpusense.record_kernel("k", duration_ns=10**6, attributes=attributes)
    found = recording.finish()
    expected = [{"step": step, "inside": step} for step in range(3)]
    assert [block.attributes for block in found.blocks] == expected
    assert [kernel.attributes for kernel in found.kernels] == expected


@pytest.mark.parametrize("mode", ["live", "file"])
def test_each_mistake_is_told_for_itself_and_what_to_do(monkeypatch, tmp_path, mode) -> None:
    """A negative duration was "1 invalid", with advice about buffers; all of one field had the first one's reason."""
    recording = begun(monkeypatch).start_session(mode, str(tmp_path / "run.gpusense"))
    gpusense.record_kernel("backwards", start_ns=10**18, end_ns=10**18 - 5)
    gpusense.record_kernel("negative", duration_ns=-7)
    gpusense.record_kernel("text", duration_ns="x")
    gpusense.record_kernel("future", start_ns=1 << 62, end_ns=(1 << 62) + 5)
    gpusense.get_tracer().record([kernel(name="of its own", start_ns=10**18, end_ns=10**18 - 5)])
    gpusense.record_kernel("good", duration_ns=10**6)
    found = recording.finish()
    assert [record.name for record in found.records] == ["good"]
    assert (found.counters.seen, found.counters.kept, found.counters.invalid, found.counters.ignored_records) == (
        *(1, 1, 0),
        5,
    )
    assert not found.meta.get("damage")
    (finding,) = [row for row in findings(found) if row.kind == "left_out"]
    units = "times are nanoseconds, as time.time_ns() gives them"
    assert finding.evidence == (
        "2 manual records ignored: times of GpuKernel 'backwards': it ends 5 ns before it starts.",
        "1 manual record ignored: times of GpuKernel 'text': 'x' is not a number.",
        f"1 manual record ignored: times of GpuKernel 'future': it ends in the future: {units}.",
        "1 manual record ignored: ValueError: 'of its own' ends 5 ns before it starts.",
    )
    assert finding.fix.startswith("Correct these calls: ")
    assert "data_lost" not in [row.kind for row in findings(found)]


def test_numbers_beyond_a_trace_s_own_are_text_in_it(tracer) -> None:
    gpusense.record_kernel("k", duration_ns=10**6, attributes={"seed": 2**64 - 1})
    written = io.BytesIO()
    perfetto.write(tracer.session(), written)
    assert str(2**64 - 1).encode() in written.getvalue()
    shown = io.StringIO()
    chrome.write(tracer.session(), shown)
    (event,) = (event for event in json.loads(shown.getvalue())["traceEvents"] if event["name"] == "k")
    assert event["args"]["seed"] == str(2**64 - 1)


def test_a_name_without_a_text(tracer) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with gpusense.compute_block(Odd()):  # type: ignore[arg-type]
        pass
    assert ignored(tracer) == 1


def test_a_compute_block_on_a_coroutine_function(tracer) -> None:
    gpusense.configure(trace_all=True)

    @gpusense.compute_block("later")
    async def later() -> int:
        await asyncio.sleep(0.01)
        return 1

    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later()) == 1
    (record,) = tracer.session().compute_blocks
    assert record.duration_ns >= 5_000_000


def test_a_decorated_compute_block_after_disable(tracer) -> None:
    gpusense.configure(trace_all=True)

    @gpusense.compute_block("work")
    def work() -> None:
        return None

    gpusense.disable()
    work()
    gpusense.enable()
    assert tracer.session().compute_blocks == []
    work()
    assert len(tracer.session().compute_blocks) == 1


@pytest.mark.parametrize("mode", ["live", "file"])
def test_long_text_costs_no_record(monkeypatch, tmp_path, mode) -> None:
    control = begun(monkeypatch)
    monkeypatch.setattr(_format, "MAX_CHUNK_BYTES", 1 << 20)
    recording = control.start_session(mode, str(tmp_path / "run.gpusense"))
    for number in range(300):
        with gpusense.trace("answer", {"prompt": chr(97 + number % 26) * 10_000}):
            pass
        gpusense.record_kernel("k", duration_ns=10**6, attributes={"prompt": "p" * 10_000})
    found = recording.finish()
    session.save(found, tmp_path / "saved.gpusense")
    for one in (found, session.load(tmp_path / "saved.gpusense")):
        assert (len(one.blocks), len(one.kernels), one.counters.bytes_dropped) == (300, 300, 0)
        assert not one.meta.get("damage")


@pytest.mark.parametrize("mode", ["live", "file"])
def test_what_could_not_be_recorded_is_counted_in_sessions_and_reports(monkeypatch, tmp_path, mode) -> None:
    """Only status() told, which nobody asks once the program has ended."""
    recording = begun(monkeypatch).start_session(mode, str(tmp_path / "run.gpusense"))
    gpusense.record_kernel("k", duration_ns=10**6)
    for value in ("soon", "late"):
        gpusense.record_kernel("k", duration_ns=value)
    with monkeypatch.context() as patched:
        with monkeypatch.context() as broken:
            broken.setattr(recording.tracer, "_root", None)
            with gpusense.trace("fails"):
                pass
        patched.setattr(_block, "MAX_WAITING", -1)
        for _ in range(3):
            with gpusense.trace("shed"), gpusense.trace("inside"):
                pass
    found = recording.finish()
    session.save(found, tmp_path / "saved")
    saved = session.load(tmp_path / "saved")
    merged = session.merge([saved, session.Session()])
    for run in (found, saved, merged, *([session.load(tmp_path / "run.gpusense")] if mode == "file" else ())):
        counted = run.counters
        assert (counted.failed_blocks, counted.shed_blocks, counted.ignored_records) == (1, 3, 2)
        assert "1 block failed, 3 blocks left out, 2 manual records ignored" in "\n".join(text.summary(run, Style(300)))
        table = io.StringIO()
        summary.print_summary(run, table)
        assert "\nNot recorded: 4 blocks and 2 manual records; " in table.getvalue()
        assert "\n  2 manual records: " in table.getvalue()
        assert table.getvalue().count(next(iter(run.meta["sources"].popitem()[1]["ignored"]))) == 1
        (finding,) = [row for row in findings(run) if row.kind == "left_out"]
        assert finding.title == "4 blocks and 2 manual records could not be recorded."
        assert len(finding.evidence) == 3
        assert ["shed blocks", 3] in page_data(run).facts["seen"]["counters"]
    assert recording.tracer.status()["shed_blocks"] == 3
    whole = session.Session(records=[kernel()])
    assert "left_out" not in [row.kind for row in findings(whole)]


@pytest.mark.parametrize("full", [False, True])
def test_why_something_is_not_in_the_file_is_said(monkeypatch, tmp_path, full) -> None:
    """It was said to be beyond the file's cap, whatever the reason."""
    control = begun(monkeypatch)
    monkeypatch.setattr(_format, "MAX_CHUNK_BYTES", 1 << 20)
    recording = control.start_session("file", str(tmp_path / "run.gpusense"))
    gpusense.record_kernel("k", duration_ns=10**6)
    recording.tracer.flush()
    if full:
        recording.tracer.recorder.store.writer.failure = "No space left on device after 4711 bytes"
    gpusense.record_kernel("k", duration_ns=10**6, attributes={"text": "x" * (10**3 if full else 1 << 20)})
    recording.finish()
    found = session.load(tmp_path / "run.gpusense")
    said = "".join(text.full(found, Style(1000)))
    assert "file's cap" not in said
    if full:
        assert " after an error" in said
        assert "verdict: Writing ended early: No space left on device after 4711 bytes; what came before" in said
        assert "because: Not written: 1" in said
        assert "try: Free space on that disk, or give -o a place" in said
        assert "damaged in" not in said
        assert "size cap" not in said
    else:
        assert "1.05 MB too long for one chunk of the file" in said
    assert found.counters.bytes_dropped > 0
    assert (found.counters.bytes_too_long == found.counters.bytes_dropped) is not full


def test_a_record_that_no_file_can_hold_is_said(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(_format, "MAX_CHUNK_BYTES", 1 << 20)
    run = session.Session(records=[kernel(), kernel(attributes={"text": "x" * (1 << 20)}), kernel(name="last")])
    with pytest.raises(gpusense.SessionError, match="too much for one chunk"):
        session.save(run, tmp_path / "run.gpusense")
    assert [record.name for record in session.load(tmp_path / "run.gpusense").records] == ["k", "last"]


def test_times_of_another_clock_or_in_another_unit_are_refused_with_a_reason(tracer):
    gpusense.record_kernel("perf_counter", start_ns=time.perf_counter_ns(), duration_ns=10_000_000)
    gpusense.record_kernel("tomorrow", start_ns=time.time_ns() + 86_400 * 10**9, duration_ns=10_000_000)
    gpusense.record_kernel("seconds", start_ns=time.time(), duration_ns=0.01)
    gpusense.record_transfer("short", "cpu_to_gpu", 5, duration_ns=0.01)
    gpusense.record_compute_block("ends tomorrow", end_ns=time.time_ns() + 86_400 * 10**9)
    gpusense.record_kernel("empty", duration_ns=0)
    gpusense.record_kernel("now", duration_ns=10_000_000)
    assert [kernel.name for kernel in tracer.session().kernels] == ["now"]
    assert tracer.session().counters.ignored_records == 5
