"""The table of blocks: on a screen as wide as it is, and on the page."""

import io
import json

import pytest
from support.sessions import HOSTILE, MS, block, kernel, session, training

from gpusense._records.records import OPEN_AT_END
from gpusense._runtime import tables
from gpusense.analysis.blocks import block_tree
from gpusense.report import blocks, text
from gpusense.report.html.data import page_data
from gpusense.report.html.page import write
from gpusense.report.json import to_dict
from gpusense.report.style import PLAIN


def of(run, width=200, most=50):
    return list(blocks.lines(run, block_tree(run), width, most))


@pytest.fixture(scope="module")
def blind():
    """A run of blocks alone, without a GPU."""
    return session(
        block(("fit",), 0, 5 * MS),
        *(block(("fit", "backward"), at * MS, at * MS + 900_000, number=10 + at, parent=1) for at in range(3)),
        end=6 * MS,
        capture={"state": "unavailable", "reason": "no NVIDIA GPU or driver was found"},
    )


def test_every_figure_is_there_where_there_is_room():
    heads, *rows = of(training(4))
    assert heads.split() == [
        *("total", "own", "calls", "avg", "p50", "p95", "max", "stddev"),
        *("GPU", "kernels", "copies", "bytes", "waits", "host", "block"),
    ]
    assert [row[heads.index("block") :] for row in rows] == [
        "train", "  step", "    backward", "    forward", "    load",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_screen_keeps_names_total_and_calls(width):
    heads, *rows = of(training(4), width)
    assert {"total", "calls", "block"} <= set(heads.split())
    assert width - heads.index("block") >= 14
    assert len({len(row) - len(row.lstrip()) for row in rows}) <= 3  # columns stand below each other


def test_a_run_without_a_gpu_says_what_took_long_and_why_the_rest_is_missing(blind):
    heads, fit, backward, *notes = of(blind)
    assert heads.split() == ["total", "own", "calls", "avg", "p50", "p95", "max", "stddev", "block"]
    assert fit.split()[:4] == ["5.00", "ms", "2.30", "ms"]
    assert backward.endswith("    0 ns    backward")
    assert notes == [
        "GPU, kernels, copies, bytes: not known, because no NVIDIA GPU or driver was found",
        "waits, host: not known, because waits were not recorded; configure(kinds=('sync',)) records them",
    ]


def test_the_page_has_them(blind):
    (table, *_) = page_data(blind).facts["tables"]
    assert table["title"] == "Blocks"
    assert table["heads"] == ("Block", "total", "own", "calls", "avg", "p50", "p95", "max", "stddev")
    assert [row[0].strip() for row in table["rows"]] == ["fit", "backward"]
    assert table["rows"][1][1] == "2.70 ms"
    assert "no NVIDIA GPU or driver was found" in table["note"]
    file = io.StringIO()
    write(blind, file)
    assert "2.70 ms" in file.getvalue()


def test_a_run_without_blocks_has_no_table():
    run = session(kernel("k", 0, MS), end=MS)
    assert of(run) == []
    assert "Blocks" not in [table["title"] for table in page_data(run).facts["tables"]]
    assert "Blocks" not in list(text.full(run, PLAIN))


def test_what_is_left_out_is_counted():
    run = session(*(block((f"request {at}",), at, at + 1000 - at, number=at) for at in range(600)), end=MS)
    lines = of(run, most=50)
    assert lines[50].endswith("request 49")
    assert lines[51] == "… and 550 more blocks"
    assert page_data(run).facts["tables"][0]["more"] == 100


def test_json_and_text_say_the_same(blind):
    for run in (blind, training(4)):
        rows = {tuple(row["path"]): row for row in to_dict(run)["analysis"]["block_tree"]}
        for _, node in block_tree(run).walk():
            row, times = rows[node.path], node.times._asdict()
            assert row["wall_ns"] == times.pop("total_ns")
            assert {name: row[name] for name in times} == {**times, "path": list(node.path)}
    assert (rows["train",]["gpu_ns"] or 0) > 0
    blind_rows = to_dict(blind)["analysis"]["block_tree"]
    assert {row["gpu_ns"] for row in blind_rows} == {row["own_kernels"] for row in blind_rows} == {None}


def test_names_are_inert():
    run = session(*(block((name,), at, at + 10, number=at) for at, name in enumerate(HOSTILE, 1)), end=MS)
    assert all(line.isprintable() for line in of(run))
    json.dumps(page_data(run).facts["tables"], allow_nan=False)


def test_where_blocks_were_left_out_no_count_is_that_of_all():
    run = training(4)
    assert not any("≥" in row for row in of(run))
    run.counters = run.counters._replace(shed_blocks=3)
    _, *rows, told = of(run)
    assert [[cell[0] for cell in row.split()].count("≥") for row in rows] == [3] * 5
    assert [row.split("≥")[3].split()[0] for row in rows] == ["1", "4", "4", "4", "4"]
    assert told == "≥: 3 blocks or more could not be recorded"
    (table,) = blocks.tables(run, block_tree(run), lambda _: None)
    assert told in table["note"]
    assert [row[3] for row in table["rows"]] == ["≥1", *["≥4"] * 4]


def test_times_of_a_block_that_has_no_end_are_bounds():
    left = [
        block(("fit",), 0, 40 * MS),
        block(("fit", "step"), 30 * MS, 40 * MS, number=5, parent=1),
        block(("fit", "step", "load"), 40 * MS, 40 * MS, number=6, parent=5),
    ]
    run = session(
        *(block(("fit", "step"), at * 10 * MS, at * 10 * MS + 8 * MS, number=2 + at, parent=1) for at in range(3)),
        *(one._replace(attributes={OPEN_AT_END: True}) for one in left),
    )
    heads, *rows, told = (line.split() for line in of(run)[:5])
    shown = [dict(zip(heads, " ".join(row).replace(" ms", "ms").split(), strict=True)) for row in rows]
    assert [(row["total"], row["own"], row["calls"], row["max"], row["stddev"]) for row in shown] == [
        ("≥40.0ms", "≥6.00ms", "1", "≥40.0ms", "–"),
        ("≥34.0ms", "≥34.0ms", "4", "≥10.0ms", "–"),
        ("–", "–", "1", "–", "–"),  # nothing is known of it but that it began
    ]
    assert " ".join(told) == "≥: 3 blocks have no end, and count as far as is known"
    assert [(row.total_ns, row.open_count) for row in run.block_table()] == [(40 * MS, 1), (34 * MS, 1), (0, 1)]
    assert [line.split()[0][0] for line in tables.lines(run.block_table())[1:]] == ["≥", "≥", "0"]
