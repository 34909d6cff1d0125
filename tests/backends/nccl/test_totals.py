"""Sums of collectives by function and communicator, from records that were made up."""

import pytest

from gpusense._records.records import GpuCollective
from gpusense.backends.nccl import totals as module
from gpusense.backends.nccl.totals import Totals

S = 1_000_000_000


def collective(length_ns=1000, size=4096, name="AllReduce", rank=0, **more):
    end = None if length_ns is None else 500 + length_ns
    start = None if length_ns is None else 500
    facts = {"ranks": 8, "bytes": size, "device_start_ns": start, "device_end_ns": end, **more}
    return GpuCollective(name, 100, 200, "ab", "world", rank=rank, **facts)


def test_each_function_of_each_rank_is_summed_apart():
    sums = Totals()
    sums.add([collective(), collective(3000, 8192), collective(name="Send", peer=3, size=7), collective(rank=1)], 0)
    rows = {(row.name, row.rank): row for row in sums.rows(0, ())}
    assert len(rows) == 3
    row = rows["AllReduce", 0]
    assert (row.communicator, row.communicator_name, row.ranks) == ("ab", "world", 8)
    assert (row.calls, row.bytes, row.timed, row.time_ns, row.waiting_ns) == (2, 12288, 2, 4000, None)
    assert row.bus_bandwidth == pytest.approx(12288 * 2 * 7 / 8 / 4e-6)
    assert rows["Send", 0].bus_bandwidth == pytest.approx(7 / 1e-6)


def test_what_is_not_known_is_not_nothing():
    sums = Totals()
    sums.add([collective(None, None)], 0)
    (row,) = sums.rows(0, ())
    assert (row.calls, row.bytes, row.timed, row.bus_bandwidth) == (1, None, 0, None)


def test_bandwidth_is_of_the_last_seconds():
    sums = Totals()
    stretch = module.STRETCH_NS
    sums.add([collective(1000)], 0)
    sums.add([collective(4000)], stretch)
    assert sums.rows(stretch, ())[0].bus_bandwidth == pytest.approx(2 * 4096 * 2 * 7 / 8 / 5e-6)
    sums.add([collective(4000)], 2 * stretch)
    assert sums.rows(2 * stretch, ())[0].bus_bandwidth == pytest.approx(4096 * 2 * 7 / 8 / 4e-6)
    (row,) = sums.rows(9 * stretch, ())
    assert (row.bus_bandwidth, row.calls) == (None, 3)


def test_the_oldest_wait_of_each_is_told_also_where_nothing_has_ended():
    sums = Totals()
    sums.add([collective()], 0)
    hung = collective(None, name="Broadcast")
    rows = {row.name: row for row in sums.rows(S, [(collective(None), 5), (collective(None), 9), (hung, 7)])}
    assert (rows["AllReduce"].waiting_ns, rows["AllReduce"].calls) == (9, 1)
    assert (rows["Broadcast"].waiting_ns, rows["Broadcast"].calls) == (7, 0)
    assert len(sums.rows(S, ())) == 1


def test_communicators_that_come_and_go_do_not_pile_up():
    sums = Totals()
    sums.add([collective()._replace(communicator=f"{n}") for n in range(module.MOST + 5)], 0)
    assert len(sums.rows(0, ())) == module.MOST
