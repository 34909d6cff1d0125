"""How much launches are slowed is seen in records alone, on the way that each mode takes through them anyway."""

import random
from functools import partial
from types import SimpleNamespace

import pytest
from support.cupti import STRIDES, T0, kernel, memcpy

from gpusense._aggregation.pipeline import SLICE, Limits, Pipeline
from gpusense._capture.file_store import FileStore
from gpusense._capture.live_store import LiveStore
from gpusense._capture.recorder import Recorder
from gpusense._decode import layouts
from gpusense._decode.correlation_ids import FURTHER_NS, LAUNCH_NS, Launches
from gpusense._decode.names import no_glance
from gpusense._decode.walk import name_pointers
from gpusense._runtime.config import Settings


def slowed_ns(buffer, strides):
    """As both modes find it."""
    file = Launches()
    assert name_pointers(buffer, strides, file) == name_pointers(buffer, strides)
    found = file.take()
    live = Pipeline(Limits(), start_ns=T0)
    for wanted in (False, True):
        live.launches.wanted = wanted
        live.feed(buffer, 5, strides, lambda pointer: (f"k{pointer}", None, None))
        slices = -(-live.counters().seen // SLICE)
        of_live = live.launches.take()
        assert not of_live or (wanted and of_live >= found)
    assert of_live == found or slices > 2  # a launch that lies in two slices counts with each
    assert file.take() == live.launches.take() == 0
    return found


@pytest.mark.parametrize("seed", range(5))
def test_each_launch_counts_once_and_each_further_node_a_little(seed):
    source = random.Random(seed)
    raw, launches, records = [], source.randrange(1, 200), 0
    for number in range(launches):
        for _ in range(source.choice((1, 1, 1, 24))):
            make = kernel if source.random() < 0.8 else memcpy
            raw.append(make(T0, T0 + 100, 1000 + number))
            records += 1
    source.shuffle(raw)
    found = slowed_ns(memoryview(b"".join(raw)), STRIDES)
    # A launch whose nodes are of two kinds counts with each.
    assert launches * LAUNCH_NS + (records - launches) * FURTHER_NS <= found <= records * LAUNCH_NS


def test_kernels_of_one_graph_and_of_many_launches():
    one = memoryview(b"".join(kernel(T0, T0 + 100, 7) for _ in range(24)))
    assert slowed_ns(one, STRIDES) == LAUNCH_NS + 23 * FURTHER_NS
    many = memoryview(b"".join(kernel(T0, T0 + 100, 7 + i) for i in range(24)))
    assert slowed_ns(many, STRIDES) == 24 * LAUNCH_NS


def test_a_graph_of_a_single_node_is_seen_by_its_node():
    """In the file's way through the records, which is that of a process that is attached to."""
    field, launches = layouts.LAYOUTS[layouts.CONCURRENT_KERNEL].field("graph_node"), Launches()
    raw = bytearray(b"".join(kernel(T0, T0 + 100, 7 + i) for i in range(24)))
    name_pointers(memoryview(raw), STRIDES, launches)
    assert not launches.graphs
    raw[len(raw) // 24 * 23 + field.offset] = 1
    name_pointers(memoryview(raw), STRIDES, launches)
    assert launches.graphs


def test_any_bytes():
    source = random.Random(3)
    for _ in range(200):
        assert slowed_ns(memoryview(source.randbytes(source.randrange(0, 5000))), STRIDES) >= 0


@pytest.mark.parametrize("mode", ["live", "file"])
def test_a_recorder_adds_them_up_where_a_budget_is_kept(mode, tmp_path):
    settings = Settings()
    made = Recorder(settings, None, partial(FileStore, str(tmp_path / "run")) if mode == "file" else LiveStore)
    made.capture = made.store._capture = SimpleNamespace(
        strides=STRIDES,
        name=lambda at: b"k",
        glance=no_glance,
        lines=lambda: None,
        sharing=SimpleNamespace(others_markers=frozenset()),
    )
    if mode == "file":
        made.store._write_layout(SimpleNamespace(**vars(made.capture), marker_shape=None, kinds=None, epoch=0))
    buffer = memoryview(b"".join(kernel(T0, T0 + 100, 1 + i) for i in range(24)))
    made.on_buffer(buffer, 5)
    assert made._slowed_ns == 0
    made._budget.begin(0.02)
    made.on_buffer(buffer, 5)
    made.on_buffer(buffer, 5)
    assert made._slowed_ns == 2 * 24 * LAUNCH_NS
    made._budget.begin(None)
    made.on_buffer(buffer, 5)
    assert made._slowed_ns == 2 * 24 * LAUNCH_NS
    assert not made.unseen
    made.capture = None
    made.close()
