"""What is remembered of streams while nothing hangs."""

from support.cupti import STRIDES, T0, kernel, view

from gpusense._capture import hang


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
