"""The strace parser on lines of every shape, against lines made from known calls, and on random text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense.cli.importers.strace import DETAIL_LIMIT, Parser

T = 1_700_000_000_000_000_000


def one(line, **options):
    parser = Parser(**options)
    records = parser.feed([line])
    assert len(records) == 1, parser.counters()
    return records[0]


def test_a_call():
    call = one("77  1700000000.000123 ioctl(4, _IOC(_IOC_READ, 0x46, 0x2a, 0x20), 0x7ffd) = 0 <0.000250>")
    assert (call.name, call.thread, call.result) == ("ioctl", 77, "0")
    assert (call.start_ns, call.end_ns) == (T + 123_000, T + 373_000)
    assert call.detail == "4, _IOC(_IOC_READ, 0x46, 0x2a, 0x20), 0x7ffd"
    assert call.backend == "os"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("read(3, 0x7f, 8) = -1 EAGAIN (Resource temporarily unavailable) <0.000010>", "-1 EAGAIN"),
        (
            "futex(0x7, FUTEX_WAIT, 1, NULL) = ? ERESTARTSYS (To be restarted) <1.5>",
            "? ERESTARTSYS",
        ),
        ("mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f2a00000000 <0.000010>", "0x7f2a00000000"),
        ("poll([{fd=3}], 1, 0) = 1 ([{fd=3, revents=POLLIN}]) <0.000010>", "1"),
        ('write(1, "a) = 9 <0.5>\\" b"..., 20)   = 20 <0.000010>', "20"),
        ("getpid()                = 41 <0.000010>", "41"),
    ],
)
def test_results(text, result):
    assert one(f"1 1700000000.0 {text}").result == result


@pytest.mark.parametrize(
    "head",
    [
        "77 1700000000.000123 ", "77<python3> 1700000000.000123 ", "77<CPU 0/worker> 1700000000.000123 ",
        "77<a> 1.2 (b)> 1700000000.000123 ", "[pid 77] 1700000000.000123 ", "[pid    77<a b>] 1700000000.000123 ",
        "77 1700000000.000123 (+     0.000409) ", "77 1700000000.000123 [   0] ", "77 1700000000.000123000 ",
        "77 1700000000.000123 [00007fa0d3a95b74] ", "77<x> 1700000000.000123 (+ 0.1) [ 1] [????????????????] ",
    ],
)  # fmt: skip
def test_what_options_put_before_a_call(head):
    call = one(f"{head}ioctl(4, 0x7) = 0 <0.000250>")
    assert (call.name, call.thread, call.start_ns, call.detail) == ("ioctl", 77, T + 123_000, "4, 0x7")


def test_names_of_threads_do_not_part_a_call():
    parser = Parser()
    calls = parser.feed(
        [
            "7<CPU 0/worker> 1700000000.000100 futex(0x1, FUTEX_WAIT, 0, NULL <unfinished ...>",
            "8<python3> 1700000000.000200 futex(0x1, FUTEX_WAKE, 1) = 1 <0.000008>",
            "7<CPU 0/renamed> 1700000000.000300 <... futex resumed>) = 0 <0.000200>",
            " > /usr/lib/libc.so.6(read+0x12) [0x20b74]",
        ]
    )
    assert [(call.thread, call.duration_ns) for call in calls] == [(8, 8_000), (7, 200_000)]
    assert parser.counters()["unreadable"] == 0


def test_times_that_are_no_moment_give_no_record():
    parser = Parser()
    assert parser.feed(["7      0.000000 read(3) = 1 <0.1>", "7 1700000000 read(3) = 1 <0.1>", "nonsense"]) == []
    assert parser.counters()["unreadable"] == 3
    assert parser.why_not() == "the times are relative to the line before (-r)"


def test_what_the_program_read_or_wrote_is_not_kept():
    call = one('1 1700000000.0 write(1, "se\\"cret"..., 6) = 6 <0.000010>')
    assert call.detail == '1, "…", 6'
    assert len(one(f"1 1700000000.0 ioctl({'x' * 999}) = 0 <0.1>").detail) == DETAIL_LIMIT


def test_two_threads_that_interrupt_each_other():
    parser = Parser()
    records = parser.feed(
        [
            "7 1700000000.000000 futex(0x1, FUTEX_WAIT, 2, NULL <unfinished ...>",
            "8 1700000000.000100 read(3,  <unfinished ...>",
            "7 1700000000.000300 <... futex resumed>) = 0 <0.000290>",
            '8 1700000000.000500 <... read resumed>"abc", 3) = 3 <0.000390>',
        ]
    )
    assert [(call.name, call.thread, call.start_ns - T, call.end_ns - T, call.detail) for call in records] == [
        ("futex", 7, 0, 290_000, "0x1, FUTEX_WAIT, 2, NULL"),
        ("read", 8, 100_000, 490_000, '3,"…", 3'),
    ]
    assert parser.open_calls == 0


def test_lines_that_are_no_calls_are_counted():
    parser = Parser()
    records = parser.feed(
        [
            "strace: Process 12 attached",
            "1 1700000000.0 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---",
            "1 1700000000.1 futex(0x1, FUTEX_WAIT <unfinished ...>",
            "1 1700000000.2 +++ exited with 0 +++",
            "2 1700000000.3 exit_group(0) = ?",
            "2 1700000000.4 +++ killed by SIGKILL (core dumped) +++",
            "3 1700000000.5 <... read resumed>) = 0 <0.1>",
            "3 1700000000.6 something else",
            "not strace at all",
            "4 1700000000.7 read(3, 0x1, 2 <detached ...>",
            "",
        ]
    )
    assert records == []
    assert parser.counters() == {
        "lines": 10,
        "calls": 0,
        "signals": 1,
        "exits": 2,
        "unreadable": 3,
        "half": 1,
        "open_calls": 0,
    }


def test_pids_of_a_terminal_trace_and_of_none():
    assert one("[pid  812] 1700000000.5 getpid() = 812 <0.1>").thread == 812
    assert one("1700000000.5 getpid() = 812 <0.1>", pid=5).thread == 5
    assert one("1700000000.5 getpid() = 812 <0.1>").thread is None


def test_without_durations_a_resumed_call_ends_where_it_resumed():
    parser = Parser()
    parser.feed(["1 1700000000.0 read(3,  <unfinished ...>"])
    (call,) = parser.feed(["1 1700000000.25 <... read resumed>0x1, 3) = 3"])
    assert call.duration_ns == 250_000_000


calls = st.lists(
    st.tuples(
        st.sampled_from(["ioctl", "read", "write", "futex", "epoll_wait"]),
        st.integers(1, 4),
        st.integers(0, 10**9),
        st.integers(0, 10**7),
        st.integers(-1, 99),
        st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12),
        st.booleans(),
    ),
    max_size=30,
)


@given(calls)
@examples(100)
def test_lines_of_known_calls_give_them_back(rows):
    lines, expected = [], []
    for name, pid, start_us, took_us, result, text, split in rows:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        begin = f"{pid} 17{start_us // 10**6:08d}.{start_us % 10**6:06d} {name}(3, "
        end = f'"{quoted}", 4) = {result} <{took_us // 10**6}.{took_us % 10**6:06d}>'
        if split:
            lines += [f"{begin} <unfinished ...>", f"{pid} 1800000000.0 <... {name} resumed>{end}"]
        else:
            lines.append(begin + end)
        start = (17 * 10**8 + start_us // 10**6) * 10**9 + start_us % 10**6 * 1000
        expected.append((name, pid, start, start + took_us * 1000, str(result)))
    parser = Parser()
    found = parser.feed(lines)
    assert [(call.name, call.thread, call.start_ns, call.end_ns, call.result) for call in found] == expected
    assert (parser.unreadable, parser.half, parser.open_calls) == (0, 0, 0)


@given(st.lists(st.text(alphabet='0123456789.()<>=?" \\,abpid[]+-resumdfnh_', max_size=60), max_size=20))
@examples(200)
def test_any_text_is_read_without_an_error(lines):
    parser = Parser()
    parser.feed(lines)
    assert parser.lines <= len(lines)


@pytest.mark.parametrize(
    "line",
    [
        "12 99999999999999999999.5 read(3, 5) = 5 <0.1>",
        "12 1700000000.5 read(3, 5) = 5 <99999999999999999999.5>",
        "999999999999 1700000000.5 read(3, 5) = 5 <0.1>",
    ],
)
def test_times_that_no_clock_shows_are_unreadable(line):
    parser = Parser()
    assert parser.feed([line]) == []
    assert parser.unreadable == 1
