import io
import itertools
import json

from support.sessions import HOSTILE, T0, US, eventful, kernel, session, training

from gpusense.report import chrome
from gpusense.session import Session


def trace_of(run):
    file = io.StringIO()
    chrome.write(run, file)
    file.getvalue().encode("utf-8")
    return json.loads(file.getvalue())


def test_times_are_relative_and_lose_no_nanosecond():
    run = training(4)
    trace = trace_of(run)
    assert trace["baseTimeNanoseconds"] == T0
    idle = {
        event["tid"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["args"].get("name") == "idle: why"
    }
    spans = [
        (round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["tid"] not in idle
    ]
    assert sorted(spans) == sorted((record.start_ns - T0, record.duration_ns) for record in run.records)


def test_the_host_is_called_after_the_program():
    run = training(4)
    run.meta["run"] = {"command": "train.py --epochs 3"}
    named = [event["args"]["name"] for event in trace_of(run)["traceEvents"] if event.get("name") == "process_name"]
    assert named[0] == "train.py --epochs 3"
    assert "Host" not in named


def test_complete_events_of_one_lane_do_not_overlap_unless_nested():
    trace = trace_of(session(kernel("a", 0, 10), kernel("b", 5, 15), kernel("c", 12, 20), end=30))
    lanes = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_every_flow_has_both_ends_and_counters_are_samples():
    run = training(4)
    events = trace_of(run)["traceEvents"]
    starts = [event["id"] for event in events if event["ph"] == "s"]
    ends = [event["id"] for event in events if event["ph"] == "f"]
    assert starts == ends
    assert len(set(starts)) == len(starts) == sum(r.block_id is not None for r in [*run.kernels, *run.transfers])
    power = [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == "Power (W)"]
    assert power == [sample.power.draw_watts for sample in run.metrics]
    run = eventful()
    written = [event for event in trace_of(run)["traceEvents"] if event["name"] == "DRAM written (B/s)"]
    assert [event["args"]["value"] for event in written] == [1e12] * len(run.counter_samples)


def test_hostile_names_and_empty_sessions():
    run = session(*[kernel(name, at * US, at * US + 900) for at, name in enumerate(HOSTILE)], end=20 * US)
    names = {event["name"] for event in trace_of(run)["traceEvents"] if event["ph"] == "X"}
    assert HOSTILE[0] in names
    assert "(unnamed)" in names
    assert trace_of(Session())["traceEvents"] == []
