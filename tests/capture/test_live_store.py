"""The live store by itself: buffers and boundaries in; records, sums and totals out."""

import ctypes
from types import SimpleNamespace

import pytest
from support.cupti import STRIDES, T0, kernel, view

from gpusense._attribution.boundaries import CLOSE, ENDED, OPEN, PLACED, Boundary
from gpusense._capi import cstring
from gpusense._capture import live_store
from gpusense._capture.live_store import LiveStore
from gpusense._capture.sinks import Sinks
from gpusense._capture.store import remember
from gpusense._runtime.config import Settings


def pause():
    pass


class Capture:
    kinds, marker_shape, epoch, strides = None, None, 0, STRIDES
    sharing = SimpleNamespace(others_markers=frozenset())
    done = False

    def glance(self, names):
        return lambda: True

    def name(self, pointer):
        return b"kernel_%d" % pointer

    def occupancy(self, kernel):
        return 0.5

    def markers_done(self):
        return self.done


@pytest.fixture
def capture():
    return Capture()


@pytest.fixture
def sinks():
    made = Sinks()
    made.got = []
    made.add(made.got.extend)
    return made


@pytest.fixture
def store(capture, sinks):
    made = LiveStore(Settings(trace_all=True), capture, sinks, T0)
    made.attached(capture)
    return made


def opened(block, parent=None, token=0):
    return Boundary(OPEN, block, parent, 5, T0, T0 + 1, f"block {block}", token)


def kernels(store):
    records, *_ = store.results()
    return {record.correlation_id: record.path for record in records}


def test_a_boundary_is_behind_what_was_read_so_far(store):
    store.add(view(kernel(T0, T0 + 9, 1), kernel(T0 + 10, T0 + 19, 2)), 5, pause)
    store.cycle(pause)
    store.boundary(opened(1), early=False)
    store.add(view(kernel(T0 + 20, T0 + 29, 3)), 5, pause)
    store.cycle(pause)
    assert kernels(store) == {1: (), 2: (), 3: ("block 1",)}


def test_one_from_before_capture_is_before_all_launches(store):
    store.boundary(opened(1), early=True)
    store.add(view(kernel(T0, T0 + 9, 1)), 5, pause)
    store.cycle(pause)
    assert kernels(store) == {1: ("block 1",)}


def test_placed_ones_are_where_they_say_and_give_the_records_of_blocks(store):
    ended = (ENDED, None, 5, 2, "step", 1, None, ("step",), T0, T0 + 50, 5, None, None)
    (record,) = store.placed([(PLACED, OPEN, 1, None, 5, T0, "step", 1), ended])
    assert (record.name, record.start_ns, record.end_ns) == ("step", T0, T0 + 50)
    store.add(view(*[kernel(T0 + at, T0 + at + 1, at) for at in (1, 2, 3)]), 5, pause)
    store.cycle(pause)
    assert kernels(store) == {1: (), 2: ("step",), 3: ()}


def test_without_capture_blocks_are_known_and_have_no_place(sinks):
    store = LiveStore(Settings(), None, sinks, T0)
    store.boundary(opened(1), early=True)
    store.boundary(opened(2, 1), early=True)
    assert store.pipeline.attribution.path(2) == ("block 1", "block 2")
    assert store.pipeline.attribution.resolve(5, 1) == ((), True)


def test_a_marker_that_the_device_has_done_is_lost_soon(store, capture, monkeypatch):
    now = [T0 + 10]
    monkeypatch.setattr(live_store, "now_ns", lambda: now[0])
    store.boundary(opened(1, token=41), early=False)
    store.cycle(pause)
    now[0] += live_store.DONE_PATIENCE_NS + 10
    store.cycle(pause)
    assert not store.idle  # the device may still work
    capture.done = True
    store.cycle(pause)
    assert store.idle
    assert store.counters().lost_markers == 1


def test_what_is_kept_goes_to_the_sinks_and_a_buffer_names_its_kernels(store, sinks):
    store.add(view(kernel(T0, T0 + 9, 1, name=7)), 5, pause)
    assert store.name(7) == "kernel_7"
    store.cycle(pause)
    assert sinks.hand_out(10)
    assert [(record.name, record.occupancy) for record in sinks.got] == [("kernel_7", 0.5)]


def test_after_a_reset_blocks_are_open_still_and_nothing_of_before_counts(store):
    store.placed([(PLACED, OPEN, 1, None, 5, T0, "step", 0)])
    store.own({9: ("owner",)})
    store.add(view(kernel(T0, T0 + 9, 1)), 5, pause)
    store.cycle(pause)
    owners, watched = store.owners, store.watched
    store.reset(T0 + 100)
    assert store.results()[:3] == ([], [], [])
    assert len(store.results()[3]) == 0
    assert (store.owners, store.watched) == (owners, watched)
    store.add(view(kernel(T0 + 50, T0 + 59, 2), kernel(T0 + 100, T0 + 109, 3)), 5, pause)
    store.cycle(pause)
    assert kernels(store) == {3: ("step",)}
    assert store.counters().pre_session == 1


def test_the_last_cycle_decides_all(store):
    store.boundary(opened(1, token=41), early=False)
    store.boundary(Boundary(CLOSE, 1, None, 5, T0 + 50, T0 + 51, "", 42), early=False)
    store.add(view(kernel(T0 + 9, T0 + 10, 1)), 5, pause)
    store.cycle(None)
    assert store.idle
    assert list(kernels(store)) == [1]


def test_the_oldest_owners_are_forgotten(monkeypatch):
    monkeypatch.setattr("gpusense._capture.store.MAX_OWNERS", 3)
    known = {}
    for node in range(5):
        remember(known, {node: (str(node),)})
    assert list(known) == [2, 3, 4]


def test_a_module_that_is_loaded_to_the_place_of_another_has_its_own_names_at_once(capture, store):
    text = ctypes.create_string_buffer(b"first", 64)
    capture.name, capture.glance = cstring.read, cstring.Glance
    for number, name in enumerate((b"first", b"second", b"second", b"third"), 1):
        text.value = name
        store.add(view(kernel(T0, T0 + 9, number, name=ctypes.addressof(text))), 5, pause)
    store.cycle(pause)
    records, _, _, work = store.results()
    assert [record.name for record in records] == ["first", "second", "second", "third"]
    assert [work.kinds[kind].name for kind in work.kind] == ["first", "second", "second", "third"]
