"""Numbers and foreign text as people read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._runtime.text import (
    UNKNOWN,
    count_text,
    decoded,
    encodable,
    flops_text,
    gib_number,
    joules_text,
    mib_number,
    one_line,
    option_percent_text,
    percent_text,
    printable,
    ranks_text,
    rate_text,
    size_text,
    terminal,
    time_text,
    well_formed,
)

TIMES = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
SIZES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_number = re.compile(r"(-?[\d,.]+) (\S+)").fullmatch

anything = st.text(st.characters())  # lone surrogates and control characters too


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (12_300, "12.3 µs"),
        (999_600, "1.00 ms"),
        (1_234_000_000_000, "1,234 s"),
        (-1_500, "-1.50 µs"),
        (None, UNKNOWN),
    ],
)
def test_times(ns, text):
    assert time_text(ns) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500_000, "1.50 MB"), (10**15, "1,000 TB"), (None, UNKNOWN)]
)
def test_sizes_and_rates(size, text):
    assert size_text(size) == text
    assert rate_text(size) == (UNKNOWN if size is None else f"{text}/s")


@pytest.mark.parametrize(
    ("share", "shown", "option"),
    [
        (0, "0 %", "0%"),
        (0.0004, "0.0 %", "0.04%"),
        (0.005, "0.5 %", "0.5%"),
        (0.0996, "10 %", "10%"),
        (0.123, "12 %", "12%"),
        (1, "100 %", "100%"),
    ],
)
def test_shares(share, shown, option):
    assert (percent_text(share), option_percent_text(share)) == (shown, option)


def test_other_numbers():
    assert [joules_text(value) for value in (12.345, 999.6)] == ["12.3 J", "1.00 kJ"]
    assert [flops_text(value) for value in (5e8, 67e12, None)] == ["0.5 Gflop/s", "67 Tflop/s", UNKNOWN]
    assert [count_text(n, "kernel") for n in (0, 1, 8412)] == ["0 kernels", "1 kernel", "8,412 kernels"]
    assert count_text(2, "pass", "passes") == "2 passes"
    assert (gib_number(10 << 30), mib_number(1536 << 10)) == ("10.0", "2")
    assert percent_text(None) == UNKNOWN


@given(st.floats(0, 1e18) | st.integers(0, 10**18), st.sampled_from([(time_text, TIMES), (size_text, SIZES)]))
def test_a_number_read_back_is_the_number_to_three_figures(value, form):
    """The unit is the largest that leaves a one before the point; nothing is more than half a digit off."""
    make, units = form
    text, unit = _number(make(value)).groups()
    shown = float(text.replace(",", ""))
    assert abs(shown * units[unit] - value) <= max(value * 0.00501, 0.5)
    assert shown < 1000 or units[unit] == max(units.values()) or value < 1000
    assert shown >= 1 or unit in ("ns", "B")
    assert len(text) <= 4 or shown >= 1000


@given(st.floats(0, 10), st.floats(0, 10))
def test_a_larger_share_never_reads_smaller(one, other):
    small, large = sorted((one, other))
    assert float(percent_text(small)[:-2]) <= float(percent_text(large)[:-2])
    assert (option_percent_text(small) == "0%") <= (small == 0)


@given(anything, st.sampled_from(["\ufffd", " ", "?"]))
def test_printable_text_stays_and_all_else_has_one_stand_in_a_character(text, instead):
    shown = printable(text, instead)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert all(new == (old if old.isprintable() else instead) for old, new in zip(text, shown, strict=True))


@given(anything, st.integers(2, 200))
def test_one_line_is_never_empty_never_longer_and_keeps_both_ends(text, limit):
    shown = one_line(text, limit)
    whole = printable(text) or "(unnamed)"
    assert shown.isprintable()
    if len(whole) <= limit:
        assert shown == whole
    else:
        head, _, tail = shown.partition("…") if "…" not in whole else (whole[: (limit - 1) * 2 // 3], "…", "")
        assert len(shown) == limit
        assert whole.startswith(head)
        assert whole.endswith(tail)


@given(anything, st.sampled_from(["ascii", "latin-1", "utf-8", "cp437"]))
def test_encodable_text_can_be_written_and_keeps_what_the_encoding_has(text, encoding):
    shown = encodable(text, encoding)
    assert shown.encode(encoding).decode(encoding) == shown
    assert len(shown) == len(text)
    kept = text.encode(encoding, "ignore").decode(encoding)
    assert [new for old, new in zip(text, shown, strict=True) if new == old or new != "?"] == list(kept)


@given(anything)
def test_a_terminal_gets_lines_of_printable_text(text):
    shown = terminal(text)
    assert len(shown) == len(text)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("\n") == text.count("\n")
    assert all(new == old for new, old in zip(shown, text, strict=True) if old.isprintable())
    assert terminal("40\xa0%\tof\x1b[2J\u202e") == "40 % of\ufffd[2J\ufffd"


@given(anything)
def test_well_formed_text_can_be_written_and_halves_of_a_pair_are_marked(text):
    shown = well_formed(text)
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert [char for char in shown if char != "\ufffd"] == [
        char for char in text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore") if char != "\ufffd"
    ]
    assert well_formed("\ud83d\ude00 \ud83d") == "\U0001f600 \ufffd"


@given(st.binary() | anything)
def test_names_of_any_bytes_are_text(raw):
    text = decoded(raw)
    assert text == raw if isinstance(raw, str) else text.encode("utf-8").decode("utf-8") == text


def test_what_is_not_utf_8_is_marked():
    assert decoded(b"a\xffb") == "a\ufffdb"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([5, 0, 1], "ranks 0, 1 and 5"),
        ([*range(7), 9], "ranks 0 to 6 and 9"),
        (range(0, 1000, 2), "ranks 0, 2, 4, 6 and 496 more ranges"),
        (range(1000), "ranks 0 to 999"),
    ],
)
def test_ranks_are_as_short_for_a_thousand_as_for_ten(ranks, text):
    assert ranks_text(ranks) == text
