"""Graphs of the dashboard: parts against their definition, kept graphs against fresh ones, dots and their colours."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense.cli.dashboard.graphs import Graph, Graphs, code, dots
from gpusense.cli.dashboard.paint import Theme

SECOND = 1_000_000_000
PLAIN = Theme(color=False)
ASCII = Theme(color=False, ascii=True)


class Reading(NamedTuple):
    monotonic_ns: int
    percent: float | None


readings = st.lists(
    st.tuples(st.integers(0, 130 * SECOND), st.one_of(st.none(), st.floats(-50, 200))), max_size=80
).map(lambda pairs: [Reading(*pair) for pair in sorted(pairs, key=lambda pair: pair[0])])


def graph(values, count, align=1, span_s=60):
    made = Graph(count, align, span_s)
    for reading in values:
        made.add(*reading)
    return made


def defined(values, now_ns, count, align, span_s=60):
    """The parts, one by one, as the class promises them."""
    span = span_s * SECOND
    end = (now_ns * (count // align) // span + 1) * align
    inside = {}
    for time_ns, percent in values:
        if percent is not None:
            inside.setdefault(time_ns * count // span, []).append(percent)
    means = {place: code(sum(found) / len(found)) for place, found in inside.items() if place < end}
    longest = count * 3 // span_s + 1
    parts = []
    for place in range(end - count, end):
        before = max((known for known in means if known <= place), default=None)
        after = min((known for known in means if known > place), default=None)
        held = before is not None and (
            before == place or (after - before <= longest if after is not None else end - 1 - before <= longest)
        )
        parts.append(means[before] if held else 0)
    return bytes(parts)


@examples(150)
@given(readings, st.integers(60 * SECOND, 140 * SECOND), st.integers(1, 200), st.sampled_from([1, 2]))
def test_parts_are_what_is_promised(values, now_ns, cells, align):
    values = [reading for reading in values if reading.monotonic_ns <= now_ns]
    assert graph(values, cells * align, align).codes(now_ns) == defined(values, now_ns, cells * align, align)


def test_what_is_later_than_now_is_not_drawn():
    found = graph([(0, 5.0), (1 * SECOND, 7.0), (30 * SECOND, 9.0)], 60).codes(10 * SECOND)
    assert found == bytes(49) + bytes([code(5), code(7)]) + bytes(9)


def test_a_value_older_than_the_last_is_left_out():
    assert graph([(5 * SECOND, 5.0), (1 * SECOND, 99.0)], 60).codes(5 * SECOND)[-5:] == bytes(4) + bytes([code(5)])


def test_a_hole_of_more_than_three_seconds_stays_a_hole():
    values = [(time_ns, 5.0) for time_ns in (0, 1 * SECOND, 2 * SECOND, 30 * SECOND)]
    found = graph(values, 60).codes(60 * SECOND - 1)
    assert found[:3] == bytes([code(5)] * 3)
    assert found[4:30] == bytes(26)


@examples(100)
@given(
    readings,
    st.lists(
        st.tuples(st.integers(0, 80), st.sampled_from(["one", "two"]), st.sampled_from([20, 50]), st.booleans()),
        min_size=2,
        max_size=12,
    ),
)
def test_kept_graphs_are_those_drawn_anew(values, pictures):
    """Whatever comes between two pictures: time, none, a jump back, another size, another device, nothing known."""
    kept = Graphs()
    for end, key, cells, back in pictures:
        history = values[max(end - 40, 0) : max(end // 2 if back else end, 1)]
        if not history:
            continue
        now_ns = history[-1].monotonic_ns + end % 7 * SECOND // 10 + 60 * SECOND
        ask = (history, now_ns, [lambda reading: reading.percent], cells * 2, 2, 60)
        (found,) = kept.codes(key, *ask)
        (anew,) = Graphs().codes(key, *ask)
        # What a fresh graph cannot know any more has left its history, not its sight.
        known = [reading.monotonic_ns for reading in history if reading.percent is not None]
        seen = (known or [now_ns])[0] * cells * 2 // (60 * SECOND)
        first = (now_ns * cells // (60 * SECOND) + 1) * 2 - cells * 2
        place = max(seen - first + 1, 0)
        assert found[place:] == anew[place:]


@given(st.integers(0, 60 * SECOND - 1), st.integers(1, 100), st.integers(0, 59 * SECOND))
def test_a_moment_keeps_its_side_of_a_cell_while_time_moves_on(moment, cells, later_ns):
    drawn = graph([(moment, 50.0)], cells * 2, 2)
    before, after = drawn.codes(60 * SECOND - 1), drawn.codes(60 * SECOND - 1 + later_ns)
    place, later = before.find(code(50)), after.find(code(50))
    assert place == moment * cells * 2 // (60 * SECOND)
    assert later <= place
    if later > 0:  # else it left, or its part is the oldest
        assert (place - later) % 2 == 0


def test_a_graph_fills_from_the_bottom():
    points = [0.0, 0.0, 50.0, 50.0, 100.0, 100.0, None, None]
    codes = bytes([0 if p is None else code(p) for p in points])
    (top, bottom) = ["".join(text for text, _ in line) for line in dots(codes, 2, PLAIN)]
    assert bottom == "⣀⣿⣿⠀"
    assert top == "⠀⠀⣿⠀"
    (line,) = dots(bytes([code(0), code(50), code(100), 0]), 1, ASCII)
    assert "".join(text for text, _ in line) == ".+@ "


def test_a_graph_is_coloured_by_its_load():
    codes = bytes([code(10)] * 2 + [code(75)] * 2 + [code(95)] * 2)
    (line,) = dots(codes, 1, Theme())
    assert [style for _, style in line] == ["good", "warm", "hot"]
    (line,) = dots(bytes([code(10), code(95), code(75), 0, 0, 0]), 1, Theme())
    assert line == [("⣸", "hot"), ("⡆", "warm"), ("⠀", "")]


def test_colours_change_where_the_numbers_do():
    styles = [dots(bytes([code(percent)]), 1, ASCII)[0][0][1] for percent in (0, 69, 70, 89, 90, 100, 150)]
    assert styles == ["good", "good", "warm", "warm", "hot", "hot", "hot"]


@given(st.lists(st.floats(-10, 250) | st.none(), min_size=2, max_size=80), st.integers(1, 6), st.booleans())
def test_higher_is_never_drawn_lower(points, rows, in_ascii):
    if len(points) % 2:
        points.append(None)
    theme = Theme(False, in_ascii)
    lines = ["".join(text for text, _ in line) for line in dots(bytes([code(p or 0) for p in points]), rows, theme)]
    assert {len(line) for line in lines} == {len(points) if in_ascii else len(points) // 2}
    if in_ascii:
        steps = " .:-=+*#%@"
        heights = [sum(steps.index(line[place]) for line in lines) for place in range(len(points))]
        pairs = sorted(zip([p or 0 for p in points], heights, strict=True))
        assert [height for _, height in pairs] == sorted(height for _, height in pairs)
