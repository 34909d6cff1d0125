"""Samples as columns: what is packed comes back, and what becomes coarser keeps its sums and averages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.counter_samples import AVERAGES, CounterColumns, CounterTable, packed, unpacked
from gpusense._records.counters import CounterSample

MS = 1_000_000
EIGHT = ("sm_active_percent", "tensor_percent", "dram_read_bytes", "dram_write_bytes", "dispatches",
         "sm_clock_mhz", "pcie_rx_bytes", "pcie_tx_bytes")  # fmt: skip


def columns(rows, fields=EIGHT[:2], device=0, begin=10**18):
    """Of (gap before it, length, values)."""
    found, now = CounterColumns(device, fields), begin
    for gap, length, *values in rows:
        now += gap
        found.start.append(now)
        now += length
        found.end.append(now)
        for column, value in zip(found.values, values, strict=True):
            column.append(value)
    return found


single = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=0, max_value=2.0**40)
rows = st.lists(st.tuples(st.sampled_from([0, 0, 0, 5, 10**10]), st.integers(1, 10 * MS), single, single), max_size=50)


@given(rows)
def test_what_is_packed_comes_back(drawn):
    made = columns(drawn)
    table = CounterTable()
    for parts in packed(made):
        table.add(unpacked(b"".join(parts)))
    assert list(table) == list(made)
    assert table[1:3] == list(made)[1:3]


def test_a_sample_of_eight_metrics_takes_forty_bytes():
    made = columns([(0, MS, *range(8))] * 1000, EIGHT)
    (payload,) = packed(made)
    assert sum(map(len, payload)) <= 40 * 1000 + 400


def test_what_was_not_measured_is_none():
    made = columns([(0, MS, math.nan, 4)])
    assert made.sample(0) == CounterSample(0, 10**18, 10**18 + MS, tensor_percent=4.0)
    assert made.sample(0).sm_active_percent is None
    assert made.column("dram_read_bytes") is None


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_a_table_that_becomes_coarser_keeps_its_sums_and_averages(amounts):
    fields = ("sm_active_percent", "dispatches")
    table = CounterTable(most=8)
    whole = columns([(0, MS, amount % 100, float(amount % 1000)) for amount in amounts], fields)
    for row in range(len(whole)):
        table.add(whole.between(row, row + 1))
    assert len(table) <= 9
    assert sum(sample.dispatches for sample in table) == sum(sample.dispatches for sample in whole)
    area = sum(sample.sm_active_percent * (sample.end_ns - sample.start_ns) for sample in table)
    assert math.isclose(area, sum(s.sm_active_percent * MS for s in whole), rel_tol=1e-5, abs_tol=1)
    assert AVERAGES.isdisjoint({"dispatches"})


def test_samples_on_both_sides_of_a_gap_stay_two():
    made = columns([(0, MS, 1, 1), (5, MS, 3, 3), (0, MS, 5, 5)]).coarser()
    assert [sample.sm_active_percent for sample in made] == [1, 4]


def test_of_later_versions_what_is_known_is_read():
    made = columns([(0, MS, 1.0, 2.0)], ("sm_active_percent", "something_new_bytes"))
    (payload,) = packed(made)
    assert list(unpacked(b"".join(payload))) == [CounterSample(0, 10**18, 10**18 + MS, sm_active_percent=1.0)]


@pytest.mark.parametrize("damage", [b"", b"\0" * 8, b"\x02\0\0\0\x01\0\0\0[]", b"\x02\0\0\0\x01\0\0\0{}" + bytes(99)])
def test_what_is_no_payload_is_refused(damage):
    with pytest.raises(ValueError):  # noqa: PT011 - also of the JSON in it
        unpacked(damage)


def test_rows_of_two_devices_and_since_a_time():
    table = CounterTable()
    table.add(columns([(0, MS, 1, 1), (0, MS, 2, 2)], device=1))
    table.add(columns([(0, MS, 3, 3), (0, MS, 4, 4)], device=0))
    assert table.devices == [0, 1]
    assert [sample.sm_active_percent for sample in table.since(10**18 + 1)] == [4, 2]
