"""The machine code against its source, and the mailbox in each of its modes."""

import ctypes
import os
import platform
import re
import subprocess
import sys
import threading
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machine import FAKES, assembled, built_for

from gpusense._capi.machine import clock_code, executable, graph_code
from gpusense._capi.machine import mailbox_code as code
from gpusense._capi.machine import mailbox_layout as layout
from gpusense.backends.cupti import mailbox as boxes

LINUX = sys.platform == "linux"
NATIVE = platform.machine() if LINUX else None


HAS_NEWEST = NATIVE in code.CODES and "newest" in code.CODES[NATIVE].entries
ENTRIES = ("requested", "completed", "take", "give", "thread", "newest")


@pytest.mark.parametrize("machine", code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    native = code.CODES[machine]
    text, symbols = assembled(machine, native.assembly, tmp_path)
    assert text == native.machine
    assert len(text) <= boxes.PAGE
    assert {name: place for name, place in symbols.items() if name in ENTRIES} == native.entries


@pytest.mark.parametrize("machine", graph_code.CODES)
def test_the_graph_callback_is_what_its_source_assembles_to(machine, tmp_path):
    assert assembled(machine, graph_code.CODES[machine].assembly, tmp_path)[0] == graph_code.CODES[machine].machine


@pytest.mark.parametrize("machine", clock_code.CODES)
def test_the_clock_is_what_its_source_assembles_to(machine, tmp_path):
    text = assembled(machine, clock_code.CODES[machine].assembly, tmp_path)[0]
    assert text == clock_code.CODES[machine].machine
    assert text[-8:] == bytes(8)


@pytest.mark.skipif(NATIVE not in clock_code.CODES, reason="there is no code for this processor")
@pytest.mark.parametrize("mode", ["memfd", "mprotect"])
def test_the_clock_gives_wall_clock_nanoseconds(mode):
    image = clock_code.image(clock_code.CODES[NATIVE], executable.libc_address("clock_gettime"))
    now = ctypes.CFUNCTYPE(ctypes.c_uint64)(executable.map_code(image, mode))
    for _ in range(1000):
        before = time.time_ns()
        told = now()
        assert before <= told <= time.time_ns()


def test_python_and_assembly_agree_on_the_control_block():
    constants = dict(re.findall(r"\.set (\w+), (\w+)", layout.CONSTANTS))
    assert {name: int(value, 0) for name, value in constants.items()} == {
        name: getattr(layout, name) for name in constants
    }
    assert len(constants) == 23


@pytest.mark.parametrize("scrap", [0, 1])
@pytest.mark.parametrize("machine", code.CODES)
def test_many_threads_lose_and_tear_nothing(machine, scrap, compiler, tmp_path):
    build, run = built_for(machine, compiler)
    native = code.CODES[machine]
    program, image = tmp_path / "stress", tmp_path / "code.bin"
    image.write_bytes(native.machine)
    source = str(FAKES / "mailbox_stress.c")
    subprocess.run([*build, "-O2", "-pthread", "-o", str(program), source], check=True, timeout=120)
    offsets = [str(native.entries[name]) for name in ("requested", "completed", "take", "give", "thread")]
    rounds = "200000" if machine == NATIVE else "20000"
    done = subprocess.run(
        [*run, str(program), str(image), *offsets, "4", rounds, str(scrap)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"sent (\d+)", done.stdout)[1]) > 0


@pytest.mark.skipif(not HAS_NEWEST, reason="there is no code for it")
def test_no_id_is_missed_whatever_threads_do(compiler, tmp_path):
    native = code.CODES[NATIVE]
    program, image = tmp_path / "stress", tmp_path / "code.bin"
    image.write_bytes(native.machine)
    source = str(FAKES / "newest_stress.c")
    subprocess.run([*compiler, "-O2", "-pthread", "-o", str(program), source], check=True, timeout=120)
    offsets = [str(native.entries[name]) for name in ("requested", "completed", "take", "give", "newest")]
    done = subprocess.run(
        [str(program), str(image), *offsets, "4", "200000"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    written, asked = map(int, re.findall(r"\d+", done.stdout))
    assert written > 100_000
    assert asked > 100_000


MODES = {"memfd": ("memfd", "mprotect"), "mprotect": ("mprotect",), "ctypes": ()}


@pytest.fixture(params=MODES)
def mode(request):
    if not LINUX or (request.param != "ctypes" and NATIVE not in code.CODES):
        pytest.skip("machine code is for Linux on x86-64 and aarch64")
    return request.param


def open_box(mode, count=4, size=4096, scrap=0):
    box = boxes.Mailbox(count, size, scrap=scrap, modes=MODES[mode])
    assert box.mode == mode
    return box


def ask(box):
    """One request as CUPTI makes it: (buffer or None, size, max records)."""
    buffer, size, records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(9)
    boxes.REQUEST(box.requested)(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(records))
    assert records.value == 0
    return buffer.value, size.value


def complete(box, address, valid, size=4096):
    boxes.COMPLETE(box.completed)(None, 0, address, size, valid)


def test_a_buffer_goes_round(mode):
    box = open_box(mode)
    address, size = ask(box)
    assert size == box.buffer_size == 4096
    assert address % 4096 == 0
    assert box.take() is None
    assert box.in_use() == 1
    ctypes.memset(address, 7, 24)
    complete(box, address, 24)
    assert box.in_use() == 1
    assert box.take() == (address, 24, threading.get_ident())
    assert box.take() is None
    assert box.in_use() == 0
    box.give(address)
    assert box.in_use() == 0
    assert {ask(box)[0] for _ in range(4)} >= {address}
    assert box.counters() == (5, 1, 0, 0)


def test_the_reader_learns_which_thread_asked(mode):
    box = open_box(mode)
    asked = []
    thread = threading.Thread(target=lambda: asked.append((ask(box)[0], threading.get_ident())))
    thread.start()
    thread.join()
    address, ident = asked[0]
    complete(box, address, 8)  # from another thread
    assert box.take() == (address, 8, ident)


def test_an_empty_mailbox_refuses_and_counts(mode):
    box = open_box(mode)
    lent = [ask(box)[0] for _ in range(4)]
    assert len(set(lent)) == 4
    assert ask(box) == (None, 0)
    assert box.counters().missed == 1
    complete(box, lent[2], 8)
    address, *_ = box.take()
    box.give(address)
    assert ask(box) == (lent[2], 4096)


def test_scrap_buffers_are_lent_where_cupti_cannot_bear_a_refusal(mode):
    box = open_box(mode, scrap=2)
    lent = [ask(box)[0] for _ in range(4)]
    spare = [ask(box) for _ in range(2)]
    assert len({*lent, *(address for address, _ in spare)}) == 6
    assert all(size == 4096 for _, size in spare)
    assert box.counters().missed == 2
    for address, _ in spare:
        complete(box, address, 80)
    assert box.take() is None
    assert ask(box)[0] in {address for address, _ in spare}
    for _ in range(5):
        assert ask(box)[0]


def test_what_is_not_ours_is_counted_and_left_alone(mode):
    box = open_box(mode)
    address, _ = ask(box)
    other = ctypes.create_string_buffer(64)
    for stranger in (ctypes.addressof(other), 8, None, box.arena + 5 * 4096, box.arena - 4096, address + 64, 2**64 - 8):
        complete(box, stranger, 64)
    complete(box, box.arena + 4096, 64)  # ours, but not lent
    assert box.take() is None
    assert box.counters().foreign == 8
    complete(box, address, 64)
    complete(box, address, 64)  # twice
    assert box.take()[0] == address
    assert box.take() is None
    assert box.counters().foreign == 9


def test_a_length_beyond_the_buffer_is_cut(mode):
    box = open_box(mode)
    address, _ = ask(box)
    complete(box, address, 2**40)
    assert box.take()[1] == 4096


def test_ten_thousand_rounds_need_no_more_memory(mode):
    box = open_box(mode)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    for phase in range(2):
        before = resident()
        for _ in range(5_000 * (phase + 1)):
            address, _ = ask(box)
            complete(box, address, 4096)
            box.give(box.take()[0])
    assert resident() - before < 200  # pages
    assert box.counters() == (15_000, 15_000, 0, 0)


def test_sizes_are_rounded_up_to_a_power_of_two():
    if not LINUX:
        pytest.skip("Linux")
    assert boxes.Mailbox(1, 5000).buffer_size == 8192
    assert boxes.Mailbox(1, 1).buffer_size == 4096
    assert boxes.Mailbox(0, 4096).count == 1


@pytest.mark.skipif(NATIVE not in code.CODES, reason="machine code is for Linux on x86-64 and aarch64")
@pytest.mark.parametrize("refused", ["memfd", "both"])
def test_refused_executable_memory_falls_back_with_the_reason(monkeypatch, refused):
    def no_memfd(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    if refused == "both":
        monkeypatch.setattr(executable, "_PROT_EXEC", 0x1000)  # the kernel answers EINVAL
    box = boxes.Mailbox(2, 4096)
    assert box.mode == ("mprotect" if refused == "memfd" else "ctypes")
    assert "Operation not permitted" in box.reason
    assert ("mprotect:" in box.reason) == (refused == "both")
    assert ask(box)[0]


@pytest.mark.skipif(NATIVE not in code.CODES, reason="machine code is for Linux on x86-64 and aarch64")
def test_a_forked_child_gets_nothing_and_cannot_fault(run_python):
    done = run_python("""
import ctypes, os
from gpusense._capi.machine import executable, graph_code
from gpusense.backends.cupti import mailbox as boxes
box = boxes.Mailbox(4, 4096)
assert box.wiped_on_fork
def ask():
    buffer, size, records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(9)
    boxes.REQUEST(box.requested)(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(records))
    return buffer.value
complete = boxes.COMPLETE(box.completed)
lent = ask()
ctypes.memset(lent, 1, 4096)
child = os.fork()
if child == 0:
    good = ask() is None and ctypes.string_at(lent, 8) == bytes(8)
    complete(None, 0, lent, 4096, 64)
    good = good and box.take() is None
    box.give(lent)
    good = good and (box.newest is None or box.newest() == 0)
    os._exit(0 if good else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert box.take() is None and box.counters() == (1, 0, 0, 0)
complete(None, 0, lent, 4096, 64)
assert box.take()[:2] == (lent, 64)
print("fine")
""")
    assert done.stdout == "fine\n", done.stderr


def test_short_memory_gives_fewer_buffers(run_python):
    if not LINUX:
        pytest.skip("Linux")
    done = run_python("""
import resource
from gpusense._capi.machine import executable, graph_code
from gpusense.backends.cupti import mailbox as boxes
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), used + (24 << 20)))
print(boxes.Mailbox(128, 256 << 10).count)
try:
    boxes.Mailbox(1, 1 << 30)
except OSError as error:
    print(error)
""")
    assert done.returncode == 0, done.stderr
    count, refusal = done.stdout.splitlines()
    assert 8 <= int(count) < 128
    assert "cannot map" in refusal


# --- the newest id --------------------------------------------------------------------------------------------------

SIZES = {1: (96, 44), 2: (88, 40), 10: (216, 100), 17: (56, 0)}


def with_newest(size=4096, count=4):
    if not HAS_NEWEST:
        pytest.skip("there is no code for this processor")
    box = boxes.Mailbox(count, size)
    box.know(SIZES)
    return box


def write(address, kind, identity, begun=True):
    size, place = SIZES.get(kind, (64, 0))
    ctypes.c_uint32.from_address(address).value = kind | (begun << 31)
    if place:
        ctypes.c_uint32.from_address(address + place).value = identity
    return address + size


@given(st.data())
def test_the_newest_id_is_that_of_the_records(data):
    """Against a plain model: any kinds, buffers, order of completion, and ids around the wrap."""
    box = with_newest()
    at = data.draw(st.sampled_from([1, 1000, 2**31 - 5, 2**32 - 5]))
    newest, open_buffers = 0, {}
    assert box.newest() == 0
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["record", "record", "record", "complete", "read", "ask"]))
        thread = data.draw(st.integers(0, 1))
        if act == "record":
            if thread not in open_buffers:
                begin, _ = ask(box)
                if begin is None:
                    continue
                open_buffers[thread] = begin, begin
            begin, end = open_buffers[thread]
            kind = data.draw(st.sampled_from(list(SIZES)))
            if end + SIZES[kind][0] > begin + box.buffer_size:
                continue
            open_buffers[thread] = begin, write(end, kind, at & 0xFFFFFFFF, data.draw(st.booleans()))
            if kind != 17:
                newest = at & 0xFFFFFFFF
            at += data.draw(st.integers(1, 3)) if (at + 1) & 0xFFFFFFFF else 2
            at += not at & 0xFFFFFFFF
        elif act == "complete" and thread in open_buffers:
            begin, end = open_buffers.pop(thread)
            complete(box, begin, end - begin)
        elif act == "read" and (full := box.take()):
            box.give(full[0])
            assert not any(ctypes.string_at(full[0], box.buffer_size))
        elif act == "ask":
            assert box.newest() == newest
    assert box.newest() == newest


def test_a_record_that_is_just_being_written_is_looked_at_again():
    box = with_newest()
    address, _ = ask(box)
    end = write(address, 10, 7)
    write(end, 10, 0)
    assert box.newest() == 7
    write(end, 10, 8)
    assert box.newest() == 8


def test_a_record_without_an_id_hides_nothing_behind_it():
    """Not every wait or allocation need have one."""
    box = with_newest()
    address, _ = ask(box)
    end = write(write(address, 10, 7), 2, 0)
    assert box.newest() == 7
    end = write(end, 17, 0)
    assert box.newest() == 7
    write(write(end, 2, 0), 10, 8)
    assert box.newest() == 8


def test_an_unknown_kind_hides_what_is_behind_it():
    box = with_newest()
    address, _ = ask(box)
    end = write(address, 10, 7)
    write(write(end, 44, 0), 10, 8)
    assert box.newest() == boxes.MISSING | 7
    assert box.newest() == boxes.MISSING | 7  # for good: ids may be missing from now on


@pytest.mark.parametrize("garbage", [b"\x5a" * 64, b"\xff" * 64, b"\x0a\0\0\0" + b"\xff" * 60])
def test_garbage_is_never_followed_out_of_the_buffer(garbage):
    box = with_newest(count=1)
    address, size = ask(box)
    ctypes.memmove(address + size - 64, garbage, 64)
    for end in range(address, address + size - 64, 88):
        if end + 88 <= address + size - 64:
            write(end, 2, 5)
    assert box.newest() & 0xFFFFFFFF == 5


def test_a_mailbox_that_takes_anothers_place_goes_on_with_its_id():
    old = with_newest()
    address, _ = ask(old)
    write(address, 1, 900)
    assert old.newest() == 900
    new = boxes.Mailbox(4, 4096)
    new.follow(old)
    assert new.newest() == 900
    assert old.newest() >= boxes.MISSING  # who still asks it is told
    address, _ = ask(new)
    write(address, 1, 901)
    assert new.newest() == 901
    new.forget_newest()
    assert new.newest() == 0
    write(address + 96, 1, 3)
    assert new.newest() == 3


def test_memory_given_back_to_the_system_is_not_cleared_again():
    box = with_newest(count=1)
    address, _ = ask(box)
    complete(box, address, write(address, 10, 7) - address)
    assert box.take()[0] == address
    box.discard(address)
    box.give(address)
    assert ask(box)[0] == address
    write(address, 10, 8)
    assert box.newest() == 8


@pytest.mark.parametrize("locked", [False, True])
def test_a_buffer_that_is_lent_again_is_clean_also_where_memory_is_locked(monkeypatch, locked):
    box = boxes.Mailbox(1, 4096)
    if locked:  # as after mlockall
        refusing = types.SimpleNamespace(madvise=lambda *_: -1)
        monkeypatch.setattr(box, "_libc", refusing)
    ctypes.memset(box.arena, 0x5A, 4096)
    box.discard(box.arena)
    assert ctypes.string_at(box.arena, 4096) == bytes(4096)
