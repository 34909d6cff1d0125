"""Collectives by a library that does with a profiler what NCCL does, in each version of the interface."""

import ctypes
import os
import threading
import time

import pytest
from support.machine import NATIVE

from gpusense import monitor
from gpusense._capi.machine import nccl_code
from gpusense._runtime import clock
from gpusense.backends.nccl import plugin as plugins
from gpusense.backends.nccl.peers import Peers, Waiting
from gpusense.backends.nccl.source import ASTRAY, SHARED, NcclSource

pytestmark = pytest.mark.skipif(NATIVE not in nccl_code.CODES, reason="there is no code for this processor and system")
SETTLED = plugins.SETTLED_NS / 1e9 + 0.02


@pytest.mark.parametrize("version", plugins.VERSIONS)
def test_a_collective_and_a_send_are_told_as_they_were(version, nccl, source):
    identity = 0xFEED_0000_0000_0000 + version
    # A newer NCCL takes the newest that both know.
    communicator = nccl.init(9 if version == plugins.VERSIONS[-1] else version, identity, b"data parallel", 2, 16, 5)
    assert nccl.profiler(communicator) == b"gpusense"
    before = clock.now_ns()
    one = nccl.launch(communicator, 0, b"AllGather", 41, b"ncclBfloat16", 1000, 3, 2)
    between = clock.now_ns()
    spans = nccl.run(communicator, one, [4, 63])
    two = nccl.launch(communicator, 1, b"Send", 0, b"ncclFloat8e4m3", 77, 9, 1)
    nccl.run(communicator, two, [0])
    if version < 4:  # how many channels there will be is not told exactly
        source.poll()
        time.sleep(SETTLED)
    source.poll()
    collective, send = source.records
    assert (collective.name, send.name) == ("AllGather", "Send")
    for each in (collective, send):
        assert (each.communicator, each.communicator_name, each.rank) == (f"{identity:016x}", "data parallel", 5)
        assert before - 10**6 < each.start_ns <= each.end_ns < clock.now_ns() + 10**6
    assert collective.start_ns <= between + 10**6
    assert (collective.sequence, collective.root, collective.peer) == (41, 3, None)
    assert (send.sequence, send.root, send.peer) == (None, None, 9)
    assert (collective.elements, collective.data_type) == (1000, "bfloat16")
    assert (send.elements, send.data_type, send.bytes) == (77, "float8_e4m3", 77)
    assert (collective.algorithm, collective.protocol) == ("RING", "LL128")
    assert (send.algorithm, send.protocol) == (None, None)
    assert collective.thread == threading.get_ident()
    if version < 4:  # it tells nothing of a communicator as it is made
        assert (collective.ranks, collective.nodes, collective.bytes) == (None, None, None)
    if version >= 4:
        assert (collective.ranks, collective.nodes, collective.bytes) == (16, 2, 1000 * 2 * 16)
        assert collective.duration_ns == max(e for _, _, e in spans) - min(s for _, s, _ in spans)
        ahead = nccl.timer_ahead_ns
        for (number, start, end), (told, told_start, told_end) in zip(spans, collective.channels, strict=True):
            assert number == told
            true = clock.SESSION.of_monotonic(start - ahead)
            assert 0 <= told_start - true <= collective.clock_error_ns + 50_000
            assert told_end - told_start == end - start
    elif version == 3:
        assert collective.attributes == {"timing": "host"}
        assert collective.device_start_ns >= between - 10**6
    else:  # it tells of no channels: what the host has launched is all there is to know, and its slot is free again
        assert (collective.device_start_ns, collective.channels, source.status()["under_way"]) == (None, (), 0)


def test_sums_are_there_for_whoever_reads_metrics(nccl, source):
    communicator = nccl.init(6, 0xABC, b"world", 1, 4, 2)
    for n in range(3):
        nccl.run(communicator, nccl.launch(communicator, 0, b"AllReduce", n, b"ncclFloat32", 256, 0, 1), [0], 2000)
    source.poll()
    hung = nccl.launch(communicator, 0, b"AllReduce", 3, b"ncclFloat32", 256, 0, 2)
    channel = nccl.channel_begins(communicator, hung, 0, nccl.timer())
    done = nccl.channel_begins(communicator, hung, 1, nccl.timer())
    nccl.channel_ends(communicator, done, nccl.timer())
    (row,) = [row for row in monitor.collectives() if row.communicator == f"{0xABC:016x}"]
    assert (row.name, row.communicator_name, row.rank, row.ranks) == ("AllReduce", "world", 2, 4)
    assert (row.calls, row.bytes, row.timed, row.time_ns) == (3, 3 * 1024, 3, 6000)
    assert row.bus_bandwidth == pytest.approx(1024 / 2e-6 * 1.5)
    assert 0 < row.waiting_ns < 10**10
    (pending,) = source.pending()
    assert pending.device_end_ns is None  # although one of its channels has ended
    nccl.channel_ends(communicator, channel, nccl.timer())
    source.poll()
    assert [row.waiting_ns for row in monitor.collectives() if row.communicator == f"{0xABC:016x}"] == [None]
    source.stop()
    assert monitor.collectives() == ()


def test_who_waits_says_in_what_and_for_whom(nccl, plugin, tmp_path):
    source = NcclSource(plugin, str(tmp_path), 4)
    source.start(list.clear)
    communicator = nccl.init(6, 0xAB, b"world", 1, 4, 0)
    nccl.run(communicator, nccl.launch(communicator, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1), [0])
    hung = nccl.launch(communicator, 0, b"AllReduce", 1, b"ncclFloat32", 1, 0, 1)
    channel = nccl.channel_begins(communicator, hung, 0, nccl.timer())
    behind = nccl.launch(communicator, 0, b"AllReduce", 2, b"ncclFloat32", 1, 0, 1)
    from_peer = nccl.init(6, 0xAC, None, 1, 2, 1)
    received = nccl.launch(from_peer, 1, b"Recv", 0, b"ncclFloat32", 1, 0, 1)
    receiving = nccl.channel_begins(from_peer, received, 0, nccl.timer())
    source.poll()
    assert source.waits(10**12) == []
    with pytest.MonkeyPatch.context() as patch:
        for rank, job_rank, name, reached in ((3, 7, "AllReduce", 2), (1, 5, "Broadcast", 9)):
            patch.setattr(os, "getpid", lambda pid=(1 << 30) + rank: pid)
            there = Peers(str(tmp_path), job_rank)
            there.note(f"{0xAB:016x}", name, rank, reached)
            there.tell([Waiting(f"{0xAC:016x}", "AllReduce", 0, 8, 0, 6)] if rank == 1 else [])
    one, two, three = source.waits(0)
    assert one.text.startswith(
        f"rank 4 (0 of the communicator) has been in AllReduce number 1 of communicator {0xAB:016x} (world) for "
    )
    assert one.text.endswith(
        "; rank 5 (1 of the communicator) has not come: it has launched none yet; its process has ended; "
        "of 1 other rank nothing is known here"
    )
    assert (one.facts["came"], one.facts["absent"], one.facts["sequence"]) == ([4, 7], [5], 1)
    assert two.text.startswith(
        f"rank 4 (1 of the communicator) has been in Recv from rank 0 of communicator {0xAC:016x} "
    )
    assert three.text.startswith(
        "rank 4 (1 of the communicator) is waited for: rank 6 (0 of the communicator) has been in AllReduce number 8 "
    )
    assert three.text.endswith(", and rank 4 has launched none yet")
    assert {wait.key for wait in source.waits(0)} == {one.key, two.key, three.key}
    old = [(each.name, each.sequence, each.device_end_ns is None) for each in source.last()]
    assert old == [("AllReduce", 0, False), ("AllReduce", 1, True), ("AllReduce", 2, True), ("Recv", None, True)]
    nccl.channel_ends(communicator, channel, nccl.timer())
    source.poll()
    assert [wait.key for wait in source.waits(0)] == [two.key, three.key]
    nccl.channel_ends(from_peer, receiving, nccl.timer())
    nccl.run(communicator, behind, [0])
    source.poll()
    assert [wait.key for wait in source.waits(0)] == [three.key]
    source.stop()


def test_what_no_channel_is_told_of_is_given_up_with_its_communicator(nccl, source):
    communicator = nccl.init(6, 13, b"", 1, 2, 0)
    nccl.launch(communicator, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1)
    later = time.monotonic_ns() + plugins.PATIENCE_NS + 10**9
    assert source.plugin.take(later) == []
    nccl.finalize(communicator)
    assert source.plugin.take(later) == []
    (slot,) = source.plugin.take(later + plugins.PARTING_NS)
    assert slot.why == "NCCL told of no channels"


def test_a_communicator_without_channels_leaves_room_and_loses_nothing(nccl, source):
    communicator = nccl.init(6, 14, b"", 1, 2, 0)
    busy = nccl.init(6, 15, b"", 1, 2, 0)
    hung = nccl.launch(busy, 0, b"Broadcast", 0, b"ncclInt8", 1, 0, 1)
    channel = nccl.channel_begins(busy, hung, 0, nccl.timer())
    lost, at, count, taken = source.plugin.lost, time.monotonic_ns(), 0, []
    for turn in range(12):
        for _ in range(plugins.SLOTS // 4):
            nccl.launch(communicator, 0, b"AllReduce", count, b"ncclFloat32", 1, 0, 0)
            count += 1
        taken += source.plugin.take(at + turn * 100_000_000)
    assert source.plugin.lost == lost
    assert source.plugin.under_way <= plugins.SLOTS - plugins.SLOTS // 4
    assert {(slot.why, slot.channels) for slot in taken} == {("given up for others to have room", ())}
    nccl.channel_ends(busy, channel, nccl.timer())
    nccl.finalize(communicator)
    for turn in range(200, 203):
        taken += source.plugin.take(at + turn * 100_000_000)
    numbers = [int.from_bytes(slot.event[24:32], "little") for slot in taken if slot.event[0] == 2]
    assert sorted(numbers) == sorted([0, *range(count)])  # that of the one that hung, too
    assert source.plugin.under_way == 0


def test_a_channel_that_comes_late_begins_in_nobody_elses_slot(nccl, source):
    communicator = nccl.init(6, 16, b"", 1, 2, 0)
    given_up = [nccl.launch(communicator, 0, b"AllReduce", n, b"ncclFloat32", 1, 0, 1) for n in range(plugins.SLOTS)]
    late, at = source.plugin.late, time.monotonic_ns()
    assert source.plugin.take(at) == []
    nccl.channel_begins(communicator, given_up[0], 0, nccl.timer())  # it is being given up
    assert len(source.plugin.take(at + plugins.PARTING_NS)) == plugins.CROWD
    nccl.channel_begins(communicator, given_up[1], 0, nccl.timer())  # its slot is free
    again = [nccl.launch(communicator, 0, b"AllGather", n, b"ncclFloat32", 1, 0, 1) for n in range(plugins.CROWD)]
    assert len({*again, *given_up}) == plugins.SLOTS + plugins.CROWD  # although in the same slots
    nccl.channel_begins(communicator, given_up[2], 5, nccl.timer())  # its slot is another's
    assert source.plugin.late == late + 3
    for handle in (*given_up[plugins.CROWD :], *again):
        nccl.run(communicator, handle, [0])
    source.poll()
    assert [(each.name, len(each.channels)) for each in source.records] == [
        *[("AllReduce", 1)] * plugins.CROWD, *[("AllGather", 1)] * plugins.CROWD
    ]  # fmt: skip
    assert source.status()["under_way"] == 0


def test_one_whose_channel_begins_as_it_is_given_up_is_kept(nccl, source):
    communicator = nccl.init(6, 17, b"", 1, 2, 0)
    handle = nccl.launch(communicator, 0, b"AllReduce", 7, b"ncclFloat32", 1, 0, 1)
    nccl.finalize(communicator)
    later = time.monotonic_ns() + plugins.PATIENCE_NS + 10**9
    assert source.plugin.take(later) == []
    state = ctypes.c_uint64.from_address(handle & -nccl_code.SLOT_BYTES)
    assert state.value == nccl_code.GIVEN_UP
    state.value = nccl_code.LAUNCHED  # as a thread sees it that was interrupted just before it begins the channel
    channel = nccl.channel_begins(communicator, handle, 0, nccl.timer())
    state.value = nccl_code.GIVEN_UP
    assert source.plugin.take(later + plugins.PARTING_NS) == []
    assert state.value == nccl_code.LAUNCHED
    nccl.channel_ends(communicator, channel, nccl.timer())
    source.poll()
    assert [(each.sequence, each.attributes) for each in source.records] == [(7, None)]


@pytest.mark.parametrize(
    ("told_start", "told_end"),
    [
        (lambda first, now: first, lambda first, now: first + 1000),  # of the first one once more
        (lambda first, now: now, lambda first, now: first + 1000),  # a right start, and an old end
        (lambda first, now: first - 900_000, lambda first, now: first - 800_000),  # long before it was launched
    ],
)
def test_times_of_earlier_collectives_are_told_of_as_such(told_start, told_end, nccl, source):
    """What NCCL does for the rest of a communicator's life once a graph was replayed and others launched, by turns."""
    communicator, other = nccl.init(6, 18, b"", 1, 2, 0), nccl.init(6, 19, b"", 1, 2, 0)

    def launch(of, number):
        return nccl.launch(of, 0, b"AllReduce", number, b"ncclFloat32", 1, 0, 1)

    ((_, first, _),) = nccl.run(communicator, launch(communicator, 0), [0])
    time.sleep(0.002)
    late = launch(communicator, 1)  # the kernel begins before NCCL tells of its launch, and that is no fault
    start = nccl.timer() - 100_000
    nccl.channel_ends(communicator, nccl.channel_begins(communicator, late, 0, start), start + 1000)
    handle = launch(communicator, 2)
    channel = nccl.channel_begins(communicator, handle, 0, told_start(first, nccl.timer()))
    nccl.channel_ends(communicator, channel, told_end(first, nccl.timer()))
    nccl.run(communicator, launch(communicator, 3), [0])
    nccl.run(other, launch(other, 0), [0])
    source.poll()
    assert [each.duration_ns for each in source.records] == [1000, 1000, None, None, 1000]
    for astray in source.records[2:4]:
        assert (astray.channels, astray.clock_error_ns, astray.attributes) == ((), None, {"untimed": ASTRAY})
    assert source.status()["without_times"] == {ASTRAY: 2}


def test_of_a_receive_that_shares_a_kernel_with_a_send_no_end_is_known(nccl, source):
    communicator = nccl.init(6, 20, b"", 1, 2, 0)
    pair = [nccl.launch(communicator, 1, name, 0, b"ncclFloat32", 8, 1, 1) for name in (b"Recv", b"Send")]
    slots = [handle & -nccl_code.SLOT_BYTES for handle in pair]
    ctypes.memmove(slots[1] + nccl_code.BEGUN, slots[0] + nccl_code.BEGUN, 16)  # as of one plan
    start = nccl.timer()
    for channel in [nccl.channel_begins(communicator, handle, 3, start) for handle in pair]:
        nccl.channel_ends(communicator, channel, start + 5000)
    nccl.run(communicator, nccl.launch(communicator, 1, b"Recv", 0, b"ncclFloat32", 8, 1, 1), [3])
    source.poll()
    received, sent, alone = source.records
    assert (received.device_end_ns, received.channels, received.attributes) == (None, (), {"untimed": SHARED})
    assert received.device_start_ns == sent.device_start_ns
    assert (sent.duration_ns, alone.duration_ns) == (5000, 1000)
    assert source.status()["without_times"] == {SHARED: 1}


def test_nothing_is_asked_while_it_is_switched_off(nccl, source):
    communicator = nccl.init(6, 7, None, 1, 2, 0)
    source.stop()
    assert nccl.mask() == 0
    assert nccl.launch(communicator, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1) is None
    later = nccl.init(6, 8, None, 1, 2, 0)  # a communicator made meanwhile switches nothing on
    assert nccl.mask() == 0
    source.start(source.records.extend)
    assert nccl.mask() == plugins.EVENTS
    nccl.run(later, nccl.launch(later, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1), [0])
    source.poll()
    assert [(each.communicator, each.name) for each in source.records] == [(f"{8:016x}", "AllReduce")]


def test_threads_lose_and_mix_nothing(nccl, source):
    threads, count = 6, 3000
    all_of_them = [nccl.init(5, 100 + n, b"", 1, 8, n) for n in range(threads)]
    lost = source.plugin.lost
    storm = threading.Thread(target=nccl.storm, args=((ctypes.c_void_p * threads)(*all_of_them), threads, count, 20))
    storm.start()
    while storm.is_alive():
        source.poll()
    storm.join()
    source.poll()
    by_rank = {n: [] for n in range(threads)}
    for each in source.records:
        assert each.communicator == f"{100 + each.rank:016x}"
        assert each.elements == 1024 + each.sequence
        assert [number for number, _, _ in each.channels] == [0, 1, 2, 3]
        assert all(start <= end for _, start, end in each.channels)
        by_rank[each.rank].append(each.sequence)
    missing = 0
    for sequences in by_rank.values():
        assert sequences == sorted(set(sequences))
        missing += count - len(sequences)
    assert missing == source.plugin.lost - lost


def test_what_finds_no_room_is_counted_and_harms_nothing(nccl, source):
    communicator = nccl.init(6, 9, b"", 1, 2, 0)
    lost = source.plugin.lost
    handles = [
        nccl.launch(communicator, 0, b"AllReduce", n, b"ncclFloat32", 1, 0, 1) for n in range(plugins.SLOTS + 10)
    ]
    assert source.plugin.lost - lost == 10
    assert len(source.pending()) == plugins.SLOTS
    for handle in handles:
        nccl.run(communicator, handle, [0])
    source.poll()
    assert [each.sequence for each in source.records] == list(range(plugins.SLOTS))
    assert source.status()["under_way"] == 0


def test_one_that_hangs_is_named_and_its_place_is_not_taken(nccl, source):
    communicator = nccl.init(6, 10, b"pipeline", 1, 2, 1)
    hung = nccl.launch(communicator, 0, b"AllReduce", 5, b"ncclFloat32", 64, 0, 2)
    channel = nccl.channel_begins(communicator, hung, 0, nccl.timer())
    for _ in range(3):
        for n in range(plugins.SLOTS // 2):
            nccl.run(communicator, nccl.launch(communicator, 0, b"Broadcast", n, b"ncclInt8", 1, 0, 1), [0])
        source.poll()
    (waiting,) = source.pending()
    assert (waiting.name, waiting.sequence, waiting.communicator_name) == ("AllReduce", 5, "pipeline")
    assert [(number, end) for number, _, end in waiting.channels] == [(0, None)]
    nccl.channel_ends(communicator, channel, nccl.timer())
    nccl.run(communicator, hung, [1])
    source.poll()
    assert source.records[-1].name == "AllReduce"


def test_a_profiler_that_the_user_chose_is_left_alone_and_named(run_python, build_library, tmp_path):
    (tmp_path / "libnccl-profiler.so").write_bytes(b"theirs")
    path = build_library("libnccl.c", "libnccl.so.2", "-ldl")
    done = run_python(
        f"""
import ctypes, os
from gpusense.backends.nccl import plugin
os.environ[plugin.VARIABLE] = "/opt/nccl/libnccl-profiler-inspector.so"
print(plugin.install().reason)
os.environ[plugin.VARIABLE] = ""
os.environ["LD_LIBRARY_PATH"] = {str(tmp_path)!r}  # NCCL would find it by its name
print(plugin.install().reason)
from gpusense import doctor, enable, get_tracer
from gpusense.integrations import nccl
print({{row.name: row for row in doctor.environment()}}["collectives"].reason)
enable()
print(nccl.instrument().hint)
print(get_tracer().status()["nccl"]["reason"] == get_tracer().session().meta["sources"]["nccl"]["reason"])
os.environ[plugin.VARIABLE] = plugin.IN_THE_PROCESS  # as a parent with gpusense leaves it
made = plugin.install()
print(type(made).__name__, plugin.install() is made, made.used)
fake = ctypes.CDLL({str(path)!r})
fake.fake_init.restype = ctypes.c_void_p
fake.fake_init(6, 1, None, 1, 1, 0)
print(made.used)
"""
    )
    theirs = f"NCCL takes the profiler {tmp_path}/libnccl-profiler.so, which stays"
    assert done.stdout.split("\n")[:7] == [
        "NCCL_PROFILER_PLUGIN names another profiler, /opt/nccl/libnccl-profiler-inspector.so, which stays",
        theirs,
        theirs,
        "NCCL_PROFILER_PLUGIN=STATIC_PLUGIN",
        "True",
        "Plugin True False",
        "True",
    ], done


def test_more_communicators_than_rows(nccl, source):
    made = [nccl.init(6, 5000 + n, b"x" * 300, 1, 2, 0) for n in range(plugins.ROWS + 5)]
    nccl.run(made[-1], nccl.launch(made[-1], 0, b"AllReduce", 3, b"ncclFloat32", 1, 0, 1), [0])
    source.poll()
    (each,) = source.records
    assert (each.name, each.sequence, each.communicator) == ("AllReduce", 3, None)
    assert all(len(row.name) <= 95 for row in source.plugin.communicators().values())


def test_nothing_of_it_reaches_a_fork_badly(nccl, source):
    communicator = nccl.init(6, 11, b"", 1, 2, 0)
    child = os.fork()
    if not child:
        code = 1
        try:
            nccl.run(communicator, nccl.launch(communicator, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1), [0])
            source.poll()
            code = 0 if len(source.records) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    source.poll()
    assert not source.records


def test_who_asks_in_the_middle_waits_for_nothing(nccl, source):
    """As a signal handler on the thread that is handing on, which could wait for ever for what it interrupted."""
    communicator = nccl.init(6, 12, b"", 1, 2, 0)
    answers = []

    def ask(records):
        answers.append((len(records), source.poll(), source.flush(0.01), source.status()["collectives"]))

    source.start(ask)
    nccl.run(communicator, nccl.launch(communicator, 0, b"AllReduce", 0, b"ncclFloat32", 1, 0, 1), [0])
    assert source.flush(5) is True
    assert answers == [(1, False, False, 1)]
