"""Hardware counters of this process in samples of devices, as OpenTelemetry and Prometheus send them."""

import math
import types

import pytest
from support.sessions import H100, MS, sample

from gpusense._capture.recorder import Recorder
from gpusense._records.counter_samples import CounterColumns
from gpusense._runtime import clock
from gpusense._runtime.config import Settings
from gpusense.analysis.peaks import peaks
from gpusense.exporters._counted import with_counters
from gpusense.exporters.opentelemetry._setup import _Samples
from gpusense.exporters.prometheus._names import families

#: Of each sample, a millisecond: shares, and amounts.
COUNTED = {
    "sm_active_percent": (60.0, 80.0), "tensor_percent": (40.0, math.nan), "graphics_engine_percent": (90.0, 90.0),
    "dram_read_bytes": (1e9, 1e9), "dram_write_bytes": (0.5e9, 0.5e9), "pcie_rx_bytes": (1e6, 3e6),
    "nvlink_tx_bytes": (0.0, 0.0),
}  # fmt: skip


def counting(device=0, ago_ns=0):
    columns = CounterColumns(device, list(COUNTED))
    first = clock.now_ns() - ago_ns - 2 * MS
    columns.start.extend((first, first + MS))
    columns.end.extend((first + MS, first + 2 * MS))
    for column, values in zip(columns.values, COUNTED.values(), strict=True):
        column.extend(values)
    recorder = Recorder(Settings(), None)
    recorder.take_counters(columns)
    recorder.close()
    return recorder


def rows(samples, names="gpusense"):
    return {
        (family.name, labels.get("gpu_unit") or labels.get("network_io_direction")): value
        for family in families(samples, names)
        for labels, value in family.rows
    }


def test_a_devices_sample_has_the_average_of_what_was_counted_last():
    mine, other = sample(0, watts=300.0), sample(0, device=H100._replace(index=1, cuda_index=1, uuid="GPU-1"))
    recorder = counting()
    found, same = with_counters([mine, other], recorder)
    assert same == other
    assert (found.utilization.sm_active_percent, found.utilization.tensor_percent) == (70.0, 40.0)
    assert found.utilization.sm_occupancy_percent is None
    assert (found.pcie.rx_bytes_per_s, found.links.tx_bytes_per_s, found.links.rx_bytes_per_s) == (2e9, 0.0, None)
    assert found.power.draw_watts == 300.0
    told = rows([found])
    assert told["gpu_unit_activity_ratio", "sm"] == 0.7
    assert told["gpu_unit_activity_ratio", "graphics_engine"] == 0.9
    assert told["gpu_pcie_rate_bytes_per_second", "receive"] == 2e9
    assert told["gpu_unit_activity_ratio", "dram"] == pytest.approx(1.5e12 / peaks(H100).bytes_per_s)
    assert rows([found], "dcgm")["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", None] == 0.4


def test_what_was_counted_long_ago_or_never_changes_nothing():
    mine = sample(0)
    assert with_counters([mine], counting(ago_ns=11_000_000_000)) == [mine]
    assert with_counters([mine], Recorder(Settings(), None)) == [mine]
    assert with_counters([mine], None) == [mine]


def test_opentelemetry_reads_it_of_its_tracer():
    running = types.SimpleNamespace(latest=lambda: [sample(0)])
    tracer = types.SimpleNamespace(metrics_source=running, recorder=counting())
    (found,) = _Samples(types.SimpleNamespace(tracer=tracer), start=False).latest()
    assert found.utilization.sm_active_percent == 70.0
