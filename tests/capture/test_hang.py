"""What is remembered of streams while nothing hangs."""

import struct

from support.cupti import STRIDES, T0, kernel, view

from gpusense._capture import hang
from gpusense._records.protocols import Wait
from gpusense._runtime import threads


def test_streams_that_come_and_go_do_not_pile_up():
    watch = hang.HangWatch(1.0, clock=lambda: 0.0)
    for number in range(0, 3 * hang.MOST_STREAMS, 10):
        streams = [7, *range(1000 + number, 1010 + number)]  # 7 is used all the time
        records = [kernel(T0 + number * 1000, T0 + number * 1000 + stream, stream=stream) for stream in streams]
        watch.read(view(*records), STRIDES, lambda pointer: "k")
    last = watch.note()["streams"]
    newest = 1000 + 3 * hang.MOST_STREAMS
    assert len(last) == hang.MOST_STREAMS
    assert {row["stream"] for row in last} == {7, *range(newest - hang.MOST_STREAMS + 1, newest)}


MEMSET = struct.Struct("<IIQQQIIIIHHIQQIIII")


def memset(context, stream, size=4):
    return MEMSET.pack(2, 0, size, T0, T0 + 10, 0, context, stream, 1, *[0] * 9)


def test_streams_of_two_contexts_have_the_same_number():
    watch = hang.HangWatch(1.0, clock=lambda: 0.0)
    records = [memset(1, 5), memset(2, 5), memset(3, 6), memset(1, 5, size=64)]
    watch.read(view(records[0], records[2]), {2: MEMSET.size}, str, own={(1, 5), (3, 6)})
    assert watch.note()["streams"] == []  # markers say nothing of the program
    watch = hang.HangWatch(1.0, clock=lambda: 0.0)
    watch.read(
        view(*records, kernel(T0, T0 + 5, context=4, stream=5)), {**STRIDES, 2: MEMSET.size}, hex, own={(1, 5), (3, 6)}
    )
    assert [(row["context"], row["stream"]) for row in watch.note()["streams"]] == [(2, 5), (1, 5), (4, 5)]


def test_a_wait_for_others_is_found_once_and_its_end_is_told():
    now = [0.0]
    watch = hang.WaitWatch(None, clock=lambda: now[0])
    assert watch.after_s == hang.WAIT_S
    assert watch.due()
    assert not watch.due()
    now[0] = hang.LOOK_S
    assert watch.due()
    wait = Wait(7, T0, "rank 0 waits", {"absent": [1]})
    (found,) = watch.look([wait])
    assert (found["text"], found["wait"]) == ("rank 0 waits", {"since_ns": T0, "absent": [1]})
    assert found["ended_ns"] is None
    assert any(frame.endswith("test_a_wait_for_others_is_found_once_and_its_end_is_told")
               for stack in found["stacks"] for frame in stack["frames"])  # fmt: skip
    assert watch.look([wait]) == []
    assert watch.look([]) == []
    assert found["ended_ns"] >= found["noticed_ns"]
    more = [Wait(number, T0, "", {}) for number in range(3 * hang.MOST_HANGS)]
    assert len(watch.look(more)) == hang.MOST_HANGS - 1
    assert len(watch.found) == hang.MOST_HANGS


def test_the_programs_threads_come_before_ours():
    bell = threads.Bell()
    ours = threads.start(lambda: bell.wait(10), "gpusense-test")
    while not any(ours.ident == stack["thread"] for stack in hang.stacks()):
        pass
    order = [stack["thread"] for stack in hang.stacks()]
    assert order.index(threads.thread_id()()) < order.index(ours.ident)
    bell.set()
    ours.join()
