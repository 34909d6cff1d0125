"""Whatever names a program, a driver or a file brings: what leaves is read by strict readers, and obeyed by none."""

import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import strict
from support.sessions import H100, HOSTILE, MS, US, block, copy, kernel, sample, session, sync

from gpusense._records.records import Aggregate
from gpusense.analysis.diff import compare as diff
from gpusense.cli import devices as devices_verb
from gpusense.cli import monitor as monitor_verb
from gpusense.report import chrome, compare, flamegraph, perfetto, text
from gpusense.report import json as json_report
from gpusense.report.html import page
from gpusense.report.style import Style

#: Names that end in numbers, escape sequences, marks that turn the direction of writing, halves of a pair.
NAMES = st.one_of(
    st.sampled_from(
        [*HOSTILE, "gemm 128", "128", "7.5", "x 12.", "\x1b]0;title\x07", "\u202egnp.exe", "\u2066a\u2069", "\ud83d",
         "\ude00", "\ud83d\ude00", "a\xa0b", "\x9b31m", "\r\nHTTP/1.1 200", "a;b 3;c 4"]
    ),
    st.text(st.characters(), max_size=30),
)  # fmt: skip


@st.composite
def sessions(draw):
    device = H100._replace(name=draw(NAMES), driver=draw(NAMES), uuid=draw(NAMES))
    a, b, c, d = (draw(NAMES) for _ in range(4))
    summed = Aggregate((a, b), "kernel", c, "cuda", 0, 7, 10, 50 * US, 5 * US, 5 * US, 10 * (5 * US) ** 2)
    return session(
        block((a,), 0, 9 * MS, number=1),
        block((a, b), 0, 8 * MS, number=2, parent=1, attributes={c or "x": d}, error=d),
        kernel(c, 0, 5 * MS, path=(a, b), block_id=2, attributes={d or "x": c}),
        kernel(d, 5 * MS, 6 * MS, path=(a,)),
        copy("cpu_to_gpu", 8, 6 * MS, 7 * MS, path=(a,)),
        sync(7 * MS, 8 * MS, name=b, path=(a,), source_line=d),
        devices=(device,), aggregates=[summed], metrics=[sample(0, device=device, why=(c,)), sample(MS, device=device)],
        end=10 * MS, version=a, rank=None, damage=[b], backends={"cupti": c},
    )  # fmt: skip


def written(write, run, **options):
    file = io.StringIO()
    write(run, file, **options)
    return file.getvalue()


@settings(max_examples=60)
@given(sessions())
def test_json_and_traces_are_read_by_strict_readers(run):
    assert strict.json_value(written(json_report.write, run))["schema"]
    assert strict.json_value(written(json_report.write, run, indent=1))["schema"]
    assert strict.json_value(written(chrome.write, run))["traceEvents"]
    shared = strict.json_value(written(flamegraph.write_speedscope, run))["shared"]["frames"]
    assert all(frame["name"] for frame in shared)
    file = io.BytesIO()
    perfetto.write(run, file)
    assert strict.perfetto(file.getvalue())


@settings(max_examples=60)
@given(sessions())
def test_collapsed_stacks_have_one_weight(run):
    rows = strict.collapsed(written(flamegraph.write, run))
    assert sum(weight for _, weight in rows) == 7050


@settings(max_examples=60)
@given(sessions(), st.sampled_from(["utf-8", "ascii", "latin-1", "no such encoding"]), st.booleans())
def test_no_terminal_obeys_a_report(run, encoding, color):
    style = Style(80, color, encoding)
    for line in [*text.summary(run, style, "run\x1b[2J.gpusense"), *text.full(run, style)]:
        strict.terminal(line)
        assert "\n" not in line
    strict.terminal(compare.text(diff([run], [run])))
    for one in run.metrics:
        strict.terminal(style.fit(monitor_verb.describe(one)))
    for device in run.devices:
        strict.terminal(style.whole(devices_verb.describe(device)))


@settings(max_examples=30)
@given(sessions())
def test_pages_hold_text_alone(run):
    scripts = len(
        [tag for tag, _ in strict.page(written(page.write, session(end=10 * MS))).elements if tag == "script"]
    )
    for shown, most in (
        (strict.page(written(page.write, run)), scripts),
        (strict.page(written(compare.write, diff([run], [run]))), 0),
    ):
        tags = [tag for tag, _ in shown.elements]
        assert tags.count("script") == most
        assert not {"img", "iframe", "object", "a"} & set(tags)
        assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]


@given(NAMES, NAMES)
@example("gemm", "128")
@example("step 3", "gemm 7")
def test_a_stack_keeps_its_names(outer, inner):
    run = session(kernel(inner, 0, MS, path=(outer,)), end=MS)
    ((frames, weight),) = strict.collapsed(written(flamegraph.write, run))
    assert weight == 1000
    assert len(frames) == 2
    assert frames[0] == flamegraph.frame(outer)
    assert frames[1].replace("_", " ") == flamegraph.frame(inner).replace("_", " ")


@given(NAMES)
def test_lines_of_a_style_are_lines(name):
    style = Style(60)
    for shown in (style.line(name), style.whole(name), style.line(name, paint="bold")):
        strict.terminal(shown)
        assert "\n" not in shown
    strict.terminal(style.fit(name))


def test_the_reader_of_terminals_is_strict():
    for text_ in ("\x1b[2J", "\u202e", "\x9b", "\x07", "\u2028", "\r"):
        with pytest.raises(AssertionError):
            strict.terminal(text_)
    with pytest.raises(AssertionError):
        strict.collapsed("a;gemm 128 5\n")
    with pytest.raises(UnicodeEncodeError):
        strict.json_value('{"a":"\\ud800"}')
    strict.terminal("\x1b[1mbold\x1b[0m 40\xa0%")
