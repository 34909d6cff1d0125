"""Device metrics as charts: what is drawn, on which scale, and what is not known."""

import random

from support.sessions import MS, T0, alloc, kernel, sample, session

from gpusense._records.counter_samples import CounterColumns
from gpusense.report.html.charts import charts, thin


def charted(*metrics):
    run = session(kernel("k", 0, MS), end=1000 * MS, metrics=metrics)
    return {chart["label"]: chart for chart in charts(run, T0)}


def test_a_pause_in_sampling_parts_the_line():
    at = [*range(0, 100, 10), *range(500, 560, 10)]
    chart = charted(*(sample(one * MS, watts=200.0 + one) for one in at))["Power"]
    assert chart["t"] == [one * MS for one in at]
    assert chart["begins"] == [0, 10]


def test_a_value_that_was_unknown_for_long_parts_its_own_line_alone():
    chart = charted(*(sample(at * MS, watts=200.0 if at < 30 or at > 70 else None, celsius=40.0) for at in range(100)))
    assert chart["Power"]["begins"] == [0, 30]
    assert chart["Temperature"]["begins"] == [0]


def test_a_clock_that_the_monitor_has_too_is_called_counted():
    def labels(*metrics):
        run = session(kernel("k", 0, MS), end=1000 * MS, metrics=metrics)
        counted = CounterColumns(0, ("sm_clock_mhz",))
        for at in range(3):
            counted.start.append(T0 + at * MS)
            counted.end.append(T0 + at * MS + MS)
            counted.values[0].append(1980.0)
        run.counter_samples.add(counted)
        return [chart["label"] for chart in charts(run, T0)]

    assert labels() == ["SM clock"]
    assert "SM clock, counted" in labels(sample(0, sm_mhz=1980.0), sample(MS, sm_mhz=1980.0))


def test_what_is_sampled_seldom_is_not_parted_by_it():
    chart = charted(*(sample(at * MS, watts=200.0, used=at + 1 if at % 20 == 0 else None) for at in range(100)))
    assert chart["Memory used"]["begins"] == [0]


def test_the_scale_begins_at_zero_where_there_is_one():
    at = {"watts": 250.0, "used": 9, "sm_mhz": 1980.0, "celsius": 37.0, "gpu": 3}
    found = charted(sample(0, **at), sample(MS, **at))
    assert {label: chart["zero"] for label, chart in found.items()} == {
        "Power": True, "Memory used": True, "SM clock": True, "GPU utilization": True, "Temperature": False,
    }  # fmt: skip
    assert found["SM clock"]["range"] == [1980.0, 1980.0]


def test_thinning_keeps_the_range_and_the_gap():
    rng = random.Random(5)
    at = [*range(3_000), *range(9_000, 12_000)]
    chart = charted(*(sample(one * 100_000, watts=rng.uniform(100, 300)) for one in at))["Power"]
    assert (chart["of"], len(chart["t"]) <= 1_210) == (6_000, True)
    assert len(chart["begins"]) == 2
    assert chart["t"][chart["begins"][1]] == 900 * MS
    assert chart["range"] == [min(chart["v"]), max(chart["v"])]


def test_thinning_keeps_few_points_as_they_are():
    points = [(at, at % 7) for at in range(900)]
    assert thin(points, 1_000) is points


def test_allocated_memory_is_steps():
    run = session(alloc(100, 0, 1), alloc(50, MS, 2), alloc(100, 2 * MS, 1, name="free"), end=4 * MS)
    (chart,) = charts(run, T0)
    assert (chart["v"], chart["step"], chart["zero"]) == ([100, 150, 50], True, True)
