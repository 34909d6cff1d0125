"""Rows as tables: what is known, in units that people read, and nothing that a name could do to a page."""

from typing import NamedTuple

import pytest
from support.sessions import HOSTILE

from gpusense._runtime.tables import Table, escape, lines, table


class Operation(NamedTuple):
    name: str
    total_ns: int | None = 1_500_000
    share: float = 0.25
    bytes: int = 0
    count: int = 1234  # type: ignore[assignment]
    device: int | None = None
    kind: str = "kernel"
    avg_ns: None = None
    median_ns: None = None
    p95_ns: None = None
    max_ns: None = None


class Other(NamedTuple):
    what: str
    length_ns: float | None


def test_units_and_only_columns_that_have_a_value():
    heads, row = lines([Operation("gemm", bytes=2_000_000)])
    assert heads.split() == ["share", "total", "calls", "bytes", "kind", "name"]
    assert row.split() == ["25", "%", "1.50", "ms", "1,234", "2.00", "MB", "kernel", "gemm"]


def test_rows_of_any_other_kind_have_all_their_fields():
    assert lines([Other("a", 5.0), Other("bc", None)]) == ["what  length_ns", "   a       5 ns", "  bc          –"]


def test_more_rows_than_are_shown_are_counted():
    rows = [Other(str(at), at) for at in range(25)]
    assert lines(rows)[-1] == "… and 5 more"
    assert table(rows).endswith("<p>… and 5 more</p>")
    assert lines([]) == ["nothing"]
    assert table([]) == "<p>nothing</p>"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_inert(name):
    shown = table([Operation(name)])
    assert "<script" not in shown
    assert "<img" not in shown
    assert shown.count("<td") == 5
    shown.encode("utf-8")
    assert "\n" not in "".join(lines([Operation(name)]))
    assert escape("<&\x1b") == "&lt;&amp;\ufffd"


def test_a_table_is_the_tuple_that_it_is():
    rows = Table([Other("a", 1)])
    assert rows == (Other("a", 1),)
    assert rows._repr_html_() == table(rows)
