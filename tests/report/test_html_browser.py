"""The page in a real browser: no error, no request, hostile names inert, what it draws can be used."""

import re
from itertools import accumulate

import pytest
from support.browser import Browser, find_browser
from support.machine import require
from support.ranks import job_rank
from support.sessions import HOSTILE, MS, T0, US, block, block_counters, kernel, sample, session, training

from gpusense._runtime.text import time_text
from gpusense.analysis.facts import Facts
from gpusense.analysis.words import WHY_IDLE
from gpusense.report.divisions import GAPS, Divisions
from gpusense.report.html import page as html
from gpusense.report.tracks import label
from gpusense.session import Session, merge

DETAILS = "document.querySelector('#timeline .details').textContent"
PANEL = "document.querySelector('#timeline .area').innerText"


#: How many of a row's 18 pixels are in colour, at two times.
INK = """top => {
  const canvas = document.querySelector("#timeline .scroll canvas");
  const { data, width } = canvas.getContext("2d").getImageData(0, top, canvas.width, 18);
  return [50e6, 150e6].map(time => {
    const x = Math.round(gpusense.timeline.place(time));
    const places = [...Array(18).keys()].map(y => (y * width + x) * 4);
    return places.filter(at => Math.abs(data[at] - data[at + 2]) > 20).length;
  });
}"""


def focus(page):
    page.evaluate("document.querySelector('#timeline .scroll canvas').focus()")


def press(page, *keys):
    """Keys as a person presses them: what has the focus gets them."""
    for key in keys:
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} if len(key) == 1 else {}))


def mouse(page, kind, x, y, **more):
    """At a place of the timeline's canvas, as far as it is seen."""
    box = page.evaluate(
        "(b => [b.left, b.top])(document.querySelector('#timeline .scroll').getBoundingClientRect())"
    )  # the canvas may be scrolled
    page.call("Input.dispatchMouseEvent", type=kind, x=box[0] + x, y=box[1] + y, **more)


def place(page, time_ns):
    """How far from the left a time is drawn."""
    return page.evaluate(f"gpusense.timeline.place({time_ns})")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    require(find_browser(), "Chromium or Chrome")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(run, **options):
        path = tmp_path / "report.html"
        html.write(run, path, **options)
        browser.open(path.as_uri())
        return browser

    return open_page


def test_no_error_and_no_request(opened):
    page = opened(training(6), title="train.gpusense")
    assert page.evaluate("document.title") == "gpusense · train.gpusense"
    assert page.evaluate("[...document.querySelectorAll('section')].map(s => s.id).filter(Boolean)") == [
        "verdict", "breakdown", "timeline", "findings", "shares", "blocks", "flame", "metrics", "operations", "host",
    ]  # fmt: skip
    groups = page.evaluate(
        "[...document.querySelectorAll('#tiles > *')].map(g => [...g.children].map(c => c.tagName).join())"
    )
    assert set(groups) <= {"DT,DD", "DT,DD,DD"}  # a list of terms holds nothing else
    assert page.evaluate("[...document.querySelectorAll('.table')].every(one => one.querySelector('[tabindex=\"0\"]'))")
    words = r"\bkept\b|\bcounted\b|\bseen =|\bnull\b|\bundefined\b|\bNaN\b"
    assert not re.search(words, page.evaluate("document.body.innerText"))
    assert page.complaints() == []


def test_hostile_names_are_inert(opened):
    names = [*HOSTILE, "\u202eright to left \u0645\u0631\u062d\u0628\u0627", "x" * 10_000]
    records = [
        kernel(name, at * US, at * US + 900, full_name=name, path=(name,), block_id=at + 1)
        for at, name in enumerate(names)
    ]
    records += [block((name,), at * US, at * US + 990, number=at + 1) for at, name in enumerate(names)]
    threads = [{"thread": 1, "native_id": 5, "name": HOSTILE[0]}]
    page = opened(session(*records, end=20 * US, threads=threads), title=HOSTILE[0])
    focus(page)
    press(page, "ArrowDown")
    for _ in names:  # each block with its details and sums
        press(page, "m", "ArrowRight")
    press(page, "ArrowDown", *["ArrowLeft"] * len(names))
    assert page.evaluate(DETAILS).startswith("</script><script>")
    assert "launched it" in page.evaluate(DETAILS)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "PWNED" in page.evaluate("document.title")  # as text of the title, put there by the file itself
    assert page.evaluate("document.title").startswith("gpusense · </script>")
    assert page.evaluate("document.querySelectorAll('img, script:not([type]):not(:last-of-type)').length") == 0
    assert page.evaluate("document.querySelectorAll('#operations tbody tr').length") == len(names)
    assert page.complaints() == []


def test_a_browser_that_cannot_read_base64_by_itself_draws_the_same(opened, browser):
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete Uint8Array.fromBase64")["identifier"]
    page = opened(training(2))
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert page.evaluate("typeof Uint8Array.fromBase64") == "undefined"
    focus(page)
    press(page, "n")
    assert page.evaluate(DETAILS).startswith(f"train · {time_text(training(2).blocks[0].duration_ns)} from 2.0 ms")
    assert page.complaints() == []


#: Names that are too long, written from the right, or of many lines.
WIDE = ("x" * 10_000, "\u05e9\u05dc\u05d5\u05dd " * 40, "\u202eevil\u202c", "a\n" * 300, "&lt;b&gt;" * 500)


def test_hostile_names_fit_and_lead_to_the_timeline(opened, browser):
    names = HOSTILE + WIDE
    records = [kernel(name, at * US, at * US + 900, full_name=name, path=(name,)) for at, name in enumerate(names)]
    records += [block((name,), at * US, at * US + 990, number=at) for at, name in enumerate(names)]
    page = opened(session(*records, end=20 * US), title=HOSTILE[0])
    for table in ("operations", "blocks"):
        assert page.evaluate(f"document.querySelectorAll('#{table} tbody tr').length") == len(names)
    for width in (400, 800, 1400, 2500):  # dark and light in turn
        browser.size(width, 900)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelector('#tools button').click()")
        boxes = page.evaluate(  # each name is shown on the timeline, and the bar that tells of it fits
            "[...document.querySelectorAll('#blocks tbody tr')].map(row => {"
            " row.click(); const box = trail.getBoundingClientRect(); return [box.left, box.right, box.height]; })"
        )
        assert all(0 <= left <= right <= width and height < 300 for left, right, height in boxes)
        bar, details = page.evaluate(
            "[trail, document.querySelector('#timeline .details')].map(one => one.getBoundingClientRect())"
            ".map(box => [box.top, box.bottom])"
        )
        assert width > 640 or bar[1] <= details[0]  # else it may lie over them
        page.evaluate("document.querySelector('#trail > button').click()")
    browser.size(1360, 900)
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.complaints() == []


def test_an_empty_session_has_a_page(opened):
    page = opened(Session())
    assert page.evaluate("document.querySelector('#verdict .sentence').textContent") == "Nothing was recorded."
    assert "Confidence" not in page.evaluate("document.body.innerText")
    assert page.complaints() == []


def test_a_run_without_a_gpu_says_how_long_each_block_took(opened):
    why = "no CUDA device or driver is there"
    passes = [block(("fit", "load"), at * 10 * MS, at * 10 * MS + 3 * MS, number=2 + at, parent=1) for at in range(4)]
    run = session(block(("fit",), 0, 40 * MS), *passes, end=42 * MS, capture={"state": "unavailable", "reason": why})
    page = opened(run)
    sentence = page.evaluate("document.querySelector('#verdict .sentence').textContent")
    assert sentence == "“fit” took 40.0\xa0ms in 1 call."
    told = page.evaluate("document.querySelector('#verdict').innerText").replace("\xa0", " ")
    assert told.count("No GPU work was seen") == told.count(why) == 1
    assert "In it: “load” 12.0 ms (4 calls)." in told
    assert "onfidence" not in told
    there = page.evaluate("[...document.querySelectorAll('section')].map(one => one.id)")
    assert there == ["verdict", "timeline", "blocks", "flame"]
    assert page.evaluate("document.querySelectorAll('#blocks tbody tr').length") == 2
    assert page.evaluate("document.querySelector('#flame h2').textContent").endswith("time for which blocks were open")
    page.evaluate("document.querySelector('#flame canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        press(page, key)
    assert (
        page.evaluate("trail.querySelector('.what').textContent")
        == "load 3.00 ms at 0 ns · the longest · 1 of 4 passes"
    )
    assert page.complaints() == []


def test_the_timeline_is_moved_by_keys_and_searched(opened):
    page = opened(training(6))
    whole = page.evaluate("gpusense.data.timeline.span")
    focus(page)
    for key, check in (("w", "to - view.from < span"), ("d", "from > 0"), ("0", "to - view.from === span")):
        press(page, key)
        assert page.evaluate(f"(({{view}}, span) => view.{check})(gpusense.timeline, {whole})"), key
    press(page, "n")
    assert "starts at" in page.evaluate(DETAILS)
    page.evaluate("gpusense.timeline.find('gemm')")
    expected = sum("gemm" in record.name for record in training(6).records)
    assert page.evaluate("document.querySelector('#timeline .controls .quiet').textContent") == f"{expected} found"
    page.evaluate("gpusense.timeline.draw()")
    assert page.complaints() == []


def test_the_table_sorts_and_searches(opened):
    page = opened(training(6))
    page.evaluate(
        "[...document.querySelectorAll('#operations th button')].find(b => b.textContent === 'Calls').click()"
    )
    calls = page.evaluate("[...document.querySelectorAll('#operations tbody tr')].map(r => +r.cells[5].textContent)")
    assert calls == sorted(calls, reverse=True)
    page.evaluate(
        "(i => { i.value = 'flash'; i.dispatchEvent(new Event('input')); })"
        "(document.querySelector('#operations input'))"
    )
    assert page.evaluate("document.querySelectorAll('#operations tbody tr').length") == 2
    assert page.complaints() == []


TO_TIMELINE = {
    "operation": "document.querySelectorAll('#operations tbody tr')[1]",
    "block": "document.querySelectorAll('#blocks tbody tr')[2]",
    "heaviest": "document.querySelector('#shares .share button')",
    "finding": "document.querySelector('#findings .finding > button')",
    "verdict": "document.querySelector('#verdict button')",
    "wait": "document.querySelector('#host tbody tr')",
    "flame": "document.querySelector('#flame canvas')",
}


def test_each_row_leads_to_the_timeline_and_back(opened):
    page = opened(training(6))
    places = page.evaluate("gpusense.data.places")
    page.evaluate("gpusense.choose('whole')")
    for what, element in TO_TIMELINE.items():
        page.evaluate(f"window.row = {element}; row.focus(); gpusense.timeline.look(0, 1)")
        if what == "flame":
            press(page, "ArrowDown")
        press(page, "Enter")
        if what in ("finding", "verdict", "heaviest"):  # buttons, which the browser itself presses
            page.evaluate("trail.hidden && row.click()")
        told = page.evaluate("trail.querySelector('.what').textContent")
        view = page.evaluate("gpusense.timeline.view")
        times = [
            (start, length)
            for place in places
            if told.startswith(place["name"] or "This part of the run")
            for start, length in zip(accumulate(place["at"][::2]), place["at"][1::2], strict=True)
        ]
        assert any(view["from"] <= start and start + length <= view["to"] for start, length in times), (what, told)
        assert "the longest" in told or len(times) == 1, told
        assert page.evaluate("document.activeElement.closest('section').id") == "timeline"
        press(page, "Escape")
        assert page.evaluate("[trail.hidden, document.activeElement === row]") == [True, True], what
        assert page.evaluate("document.querySelector('[aria-pressed=true][data-phase]').dataset.phase") == "whole", what
    assert page.complaints() == []


def test_other_times_are_one_key_away(opened):
    page = opened(training(6))
    page.evaluate("gpusense.choose('whole')")
    page.evaluate(
        "[...document.querySelectorAll('#blocks tbody tr')].find(r => r.textContent.startsWith('forward')).click()"
    )
    forward = sorted((one for one in training(6).blocks if one.name == "forward"), key=lambda one: one.start_ns)
    longest = max(range(6), key=lambda at: forward[at].duration_ns)
    told = "trail.querySelector('.what').textContent"
    assert f" · the longest · {longest + 1} of 6 passes" in page.evaluate(told)
    for _ in range(7):
        press(page, "n")
    assert " · 6 of 6 passes" in page.evaluate(told)
    assert page.evaluate("[...trail.querySelectorAll('.steps button')].map(one => one.disabled)") == [False, True]
    press(page, "p")
    assert " · 5 of 6 passes" in page.evaluate(told)
    view = page.evaluate("gpusense.timeline.view")
    start = forward[4].start_ns - training(6).meta["start_ns"]
    assert view["from"] <= start <= start + forward[4].duration_ns <= view["to"]
    page.evaluate("gpusense.choose('steady')")
    page.evaluate(
        "[...document.querySelectorAll('#blocks tbody tr')].find(r => r.textContent.startsWith('forward')).click()"
    )
    spans = [one[2:] for one in page.evaluate("gpusense.data.timeline.phases") if one[0] == "steady"]
    zero = training(6).meta["start_ns"]
    inside = sum(any(low <= one.start_ns - zero < high for low, high in spans) for one in forward)
    assert 2 <= inside < 6
    assert f" of {inside} here, 6 passes in the run" in page.evaluate(told)
    assert page.complaints() == []


def test_a_row_of_any_table_is_reached_by_keys(opened):
    page = opened(training(6))
    tables = page.evaluate("document.querySelectorAll('tbody').length")
    assert tables >= 4
    for at in range(tables):
        rows = f"[...document.querySelectorAll('tbody')[{at}].rows]"
        assert page.evaluate(f"{rows}.filter(row => row.tabIndex === 0).length") == 1
        count = page.evaluate(f"{rows}.length")
        page.evaluate(f"{rows}[0].focus()")
        for key, expected in (
            ("ArrowDown", min(1, count - 1)),
            ("End", count - 1),
            ("ArrowUp", max(0, count - 2)),
            ("Home", 0),
        ):
            press(page, key)
            assert page.evaluate(f"{rows}.indexOf(document.activeElement)") == expected, key
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert page.evaluate(f"{rows}.filter(row => row.tabIndex === 0).length") == 1
    assert page.complaints() == []


def test_blocks_are_a_tree_that_can_be_sorted_and_searched(opened):
    page = opened(training(6))
    names = "[...document.querySelectorAll('#blocks tbody tr')].map(row => row.cells[0].textContent)"
    assert page.evaluate(names) == ["train", "step", "backward", "forward", "load"]
    heads = page.evaluate("[...document.querySelectorAll('#blocks .groups th')].map(head => head.textContent)")
    assert heads == ["time it was open", "work of the device it launched", "of that time, the host"]
    head = "[...document.querySelectorAll('#blocks th button')].find(one => one.textContent === '{}')"
    page.evaluate(head.format("own") + ".click()")
    assert page.evaluate(names)[0] == "train › step › backward"
    page.evaluate(head.format("own") + ".click()")
    assert page.evaluate(names)[-1] == "train › step › backward"
    page.evaluate(
        "(i => { i.value = 'ward'; i.dispatchEvent(new Event('input')); })(document.querySelector('#blocks input'))"
    )
    assert page.evaluate(names) == ["train › step › forward", "train › step › backward"]
    page.evaluate(head.format("Block") + ".click()")
    assert page.evaluate(names) == ["train › step › backward", "train › step › forward"]
    assert page.complaints() == []


def test_the_flame_graph_is_searched_and_turned_over(opened):
    run = training(6)
    page = opened(run)
    device = sum(one.duration_ns for one in [*run.kernels, *run.transfers, *run.memsets])
    share = 100 * sum(one.duration_ns for one in run.kernels if "gemm" in one.name) / device
    search = "(i => {{ i.value = '{}'; i.dispatchEvent(new Event('input')); }})(document.querySelector('#flame input'))"
    said = "document.querySelector('#flame .controls .quiet').textContent"
    page.evaluate(search.format("gemm"))
    assert page.evaluate(said).startswith("2 matches: ")
    assert page.evaluate(said).endswith(f", {share:.0f} %")
    page.evaluate(search.format("step"))  # and what is inside counts once
    step = 100 * sum(one.duration_ns for one in [*run.kernels, *run.transfers, *run.memsets] if one.path) / device
    assert page.evaluate(said).endswith(f"1 match: {page.evaluate(said).split(': ')[1]}")
    assert page.evaluate(said).endswith(f", {step:.0f} %")
    page.evaluate(search.format("gemm"))
    page.evaluate(
        "[...document.querySelectorAll('#flame button')].find(b => b.textContent === 'Callers below').click()"
    )
    assert page.evaluate(said).startswith("1 match: ")  # one operation, whoever called it
    assert page.evaluate(said).endswith(f", {share:.0f} %")
    page.evaluate("document.querySelector('#flame canvas').focus()")
    press(page, "ArrowDown")
    details = "document.querySelector('#flame .details').textContent"
    assert page.evaluate(details).startswith("sm90_xmma_gemm_bf16 · ")
    press(page, "ArrowDown")
    assert " · in train › step › backward › sm90_xmma_gemm_bf16" not in page.evaluate(details)
    assert " · in backward › sm90_xmma_gemm_bf16" in page.evaluate(details)
    press(page, "Escape")
    assert page.evaluate(said) == ""
    box = page.evaluate("(b => [b.left, b.top])(document.querySelector('#flame canvas').getBoundingClientRect())")
    for kind in ("mousePressed", "mouseReleased"):  # on the innermost caller, inside which is nothing to zoom into
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0] + 9, y=box[1] + 88, button="left", clickCount=1)
    assert page.evaluate("trail.querySelector('.what').textContent").startswith("sm90_xmma_gemm_bf16 ")
    assert page.complaints() == []


#: Middle of a point of the roofline, and whether all that is drawn lies inside the picture.
POINT = """name => {
  const points = [...document.querySelectorAll("#roofline .point")];
  const of = points.find(one => one.getAttribute("aria-label").startsWith(name));
  const box = of.querySelector("circle").getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}"""
INSIDE = """(() => {
  const box = document.querySelector("#roofline svg").getBoundingClientRect();
  return [...document.querySelectorAll("#roofline svg :is(text, circle, path)")].every(one => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return left >= box.left - 1 && right <= box.right + 1 && top >= box.top - 1 && bottom <= box.bottom + 1;
  });
})()"""


def test_a_point_of_the_roofline_is_reached_by_keys_and_leads_to_its_block(opened, browser):
    run = training(6)
    of = ("train", "step")
    run.records.append(block_counters((*of, "forward"), MS, 11 * MS, tensor={"bf16": 4.1e12}, read=1e10, written=1e10))
    run.records.append(block_counters((*of, "load"), MS, 5 * MS, flops={"fp32": 8e6}, read=8e6, written=8e6))
    page = opened(run)
    for width in (400, 800, 1400):
        browser.size(width, 900)
        page.wait_for(f"document.querySelector('#roofline svg').clientWidth > {width} - 180")
        assert page.evaluate(INSIDE), width
    labels = page.evaluate("[...document.querySelectorAll('#roofline .point')].map(one => one.ariaLabel)")
    assert [label.split(", ") for label in labels] == [
        [
            *("train/step/forward", "410 TFLOP/s bf16 (41 % of peak)", "2.00 TB/s DRAM (60 %)"),
            *("205 operations a byte: memory roof", "1 pass measured", "10.0 ms each"),
        ],
        [
            *("train/step/load", "2 GFLOP/s fp32 without tensor cores (0.0 % of peak)", "4.00 GB/s DRAM (0.1 %)"),
            *("0.5 operations a byte: far below both roofs", "1 pass measured", "4.00 ms each"),
        ],
    ]
    page.evaluate("document.getElementById('roofline').scrollIntoView()")
    x, y = page.evaluate(f"({POINT})('train/step/load')")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert page.evaluate("document.getElementById('tip').innerText").startswith("train/step/load\n")
    page.evaluate("document.querySelector('#roofline .point').focus()")
    press(page, "ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("train/step/load")
    press(page, "Enter")
    assert page.evaluate("document.getElementById('trail').innerText").startswith("load ")
    press(page, "Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("train/step/load")


def test_what_is_selected_on_the_timeline_is_marked_in_the_tables(opened):
    page = opened(training(6))
    detail = "{ start: 0, end: 1e7, name: 'sm90_xmma_gemm_bf16', row: 'stream 7' }"
    page.evaluate(f"document.dispatchEvent(new CustomEvent('gpusense:selected', {{ detail: {detail} }}))")
    marked = page.evaluate("[...document.querySelectorAll('tr.selected')].map(row => row.cells[0].textContent)")
    assert marked == ["sm90_xmma_gemm_bf16"]
    assert page.complaints() == []


def test_a_constant_value_is_drawn_at_its_height_over_zero(opened):
    run = session(
        kernel("k", 0, 900 * US), end=1000 * US,
        metrics=[sample(at * 100 * US, sm_mhz=1500.0, celsius=37.0, why=()) for at in (0, 1, 2, 3, 8, 9)],
    )  # fmt: skip
    page = opened(run)
    canvases = "[...document.querySelectorAll('#metrics canvas')]"
    labels = page.evaluate(f"{canvases}.map(one => one.getAttribute('aria-label'))")
    assert labels == [
        "GPU 0, SM clock over time: 1,500 MHz throughout",
        "GPU 0, Temperature over time: 37 °C throughout",
    ]
    blue = """(canvas, share) => {
      const x = Math.round(68 + (canvas.width - 68) * share), seen = [];
      const { data } = canvas.getContext('2d').getImageData(x, 0, 1, canvas.height);
      for (let y = 0; y < canvas.height; y++) if (data[4 * y + 2] > data[4 * y] + 90) seen.push(y);
      return seen;
    }"""
    first, later = (page.evaluate(f"({blue})({canvases}[0], {share})") for share in (0.15, 0.85))
    assert first == later
    assert 15 <= first[0] <= 35  # three quarters of 2,000 MHz, on a plot of 84 pixels
    assert page.evaluate(f"({blue})({canvases}[0], 0.5)") == []  # nothing was sampled there


def test_a_chart_says_the_range_of_the_time_that_is_shown(opened):
    clocks = [345.0] * 5 + [1980.0] * 6
    run = session(
        kernel("k", 0, 1000 * US), end=1000 * US,
        metrics=[sample(at * 100 * US, sm_mhz=mhz, why=()) for at, mhz in enumerate(clocks)],
    )  # fmt: skip
    page = opened(run)
    said = "document.querySelector('#metrics canvas').getAttribute('aria-label')"
    assert page.evaluate(said).endswith("SM clock over time: 345 MHz to 1,980 MHz")
    page.evaluate("document.querySelector('#metrics canvas').scrollIntoView()")
    for start, end, told in ((620, 880, "1,980 MHz throughout"), (110, 190, "345 MHz throughout")):
        page.evaluate(f"gpusense.timeline.look({start}e3, {end}e3)")
        page.wait_for(f"{said}.endsWith('over time: {told}')")
    assert page.complaints() == []


def test_the_page_is_looked_at_by_phase(opened):
    page = opened(training(12))
    pressed = "document.querySelector('#phases [aria-pressed=true]').dataset.phase"
    share = "document.querySelector('#operations tbody tr').cells[3].textContent"
    assert page.evaluate(pressed) == "steady"
    assert page.evaluate("document.querySelectorAll('#operations th button')[3].textContent") == "% of steps"
    steady, first = page.evaluate("document.querySelector('#tiles').textContent"), page.evaluate(share)
    assert page.evaluate("gpusense.timeline.view.from") > 0
    page.evaluate("document.querySelector('#phases [data-phase=whole]').click()")
    assert page.evaluate(pressed) == "whole"
    assert page.evaluate("document.querySelector('#tiles').textContent") != steady
    assert page.evaluate(share) != first
    assert page.evaluate("document.querySelectorAll('#operations th button')[3].textContent") == "% of run"
    assert page.evaluate("gpusense.timeline.view.from") == 0
    assert page.complaints() == []


def test_a_finding_shows_its_phase(opened):
    page = opened(training(12))
    page.evaluate("gpusense.choose('whole')")
    at = next(i for i, one in enumerate(page.evaluate("gpusense.data.findings")) if one["phase"] == "steady")
    page.evaluate(f"document.querySelectorAll('details.finding')[{at}].querySelector('summary').click()")
    page.wait_for("document.querySelector('#phases [aria-pressed=true]').dataset.phase === 'steady'")
    assert page.complaints() == []


def test_it_fits_a_phone_and_changes_theme(opened, browser):
    browser.size(390, 844)
    page = opened(training(6))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.evaluate("document.querySelector('#tools button').click()")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != before
    assert page.complaints() == []
    browser.size(1360, 900)


def test_printing_opens_everything_and_puts_it_back(opened):
    page = opened(training(6))
    page.call("Emulation.setEmulatedMedia", media="print")
    of = "getComputedStyle(document.querySelector('{}')).{}"
    assert {page.evaluate(of.format(one, "printColorAdjust")) for one in (".bar i", ".track i", ".swatch")} == {"exact"}
    canvas = "document.querySelector('#timeline .scroll canvas')"
    drawn, made = page.evaluate(f"(c => [c.clientWidth / c.clientHeight, c.width / c.height])({canvas})")
    assert drawn == pytest.approx(made, rel=0.02)
    page.call("Emulation.setEmulatedMedia", media="")
    page.evaluate(
        "document.documentElement.dataset.theme === 'dark' || document.querySelector('#tools button').click()"
    )
    assert len(page.call("Page.printToPDF", printBackground=True)["data"]) > 10_000
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.complaints() == []


def test_a_record_that_began_long_before_the_run_does_not_hang_the_page(opened):
    """As one whose start a program took from another clock."""
    early = kernel("early", 0, 500 * US)._replace(start_ns=1)
    page = opened(session(early, kernel("k", 0, 500 * US), block(("b",), 0, 500 * US), end=999 * US))
    assert page.evaluate("document.title")
    assert page.complaints() == []


def test_other_parts_of_the_page_show_an_event_and_hear_what_a_person_selects(opened):
    run = training(6)
    page = opened(run)
    one = max((record for record in run.kernels if "gemm" in record.name), key=lambda record: record.duration_ns)
    begin, length = one.start_ns - T0, one.duration_ns
    page.evaluate("scrollTo(0, 0)")
    page.evaluate(f"showOnTimeline({{start: {begin}, end: {begin + length}, name: '{one.name}', row: 'stream 7'}})")
    view = page.evaluate("gpusense.timeline.view")
    assert (view["to"] - view["from"]) == pytest.approx(3 * length)
    assert one.name in page.evaluate(DETAILS)
    page.wait_for("document.getElementById('timeline').getBoundingClientRect().top < innerHeight")
    page.evaluate("showOnTimeline({start: 1000, end: 2000})")
    assert page.evaluate(DETAILS).startswith("Marked · 1.00 µs from 1.00 µs")
    page.evaluate("document.addEventListener('gpusense:selected', event => { globalThis.heard = event.detail; })")
    focus(page)
    press(page, "n")
    whole = {"start": 2 * MS, "end": run.blocks[0].end_ns - T0, "name": "train", "row": "blocks · thread 1"}
    assert page.evaluate("heard") == whole
    assert page.complaints() == []


def test_neighbouring_marks_of_the_ruler_differ_at_every_zoom(opened):
    page = opened(session(kernel("k", 0, MS), kernel("k", 13_000 * MS, 13_001 * MS), end=13_500 * MS))
    for width in (1e10, 1e9, 3e6, 1e6, 40_000, 999, 100, 50):
        for begin in (0, 205.1e6, 12_999.99e6):
            page.evaluate(f"gpusense.timeline.look({begin}, {begin + width})")
            ruler = page.evaluate("gpusense.timeline.marks()")
            words = [text for _, text in ruler["marks"]]
            assert len(words) == len(set(words)) > 1, (width, begin)
            assert max(map(len, words)) < 14
            for at, text in ruler["marks"]:  # and each says the truth
                assert read(ruler["base"]) * text.startswith("+") + read(text) == pytest.approx(at, abs=0.01)
    page.evaluate("gpusense.timeline.look(205.1e6, 206.1e6)")
    assert [text for _, text in page.evaluate("gpusense.timeline.marks()")["marks"]][:3] == [
        "205.1 ms", "205.2 ms", "205.3 ms",
    ]  # fmt: skip
    page.evaluate("gpusense.timeline.look(12999.99e6, 12999.99e6 + 100)")
    ruler = page.evaluate("gpusense.timeline.marks()")
    assert (ruler["base"], ruler["marks"][0][1]) == ("12.9999900 s", "+0")
    assert page.complaints() == []


def read(text):
    """Nanoseconds."""
    number, _, unit = text.lstrip("+").partition(" ")
    return float(number or 0) * {"s": 1e9, "ms": 1e6, "µs": 1e3}.get(unit, 1)


def test_a_column_of_many_events_says_how_much_of_it_they_fill(opened):
    """Half of the time a kernel of 10 µs runs, and then another for a quarter of it."""
    first = [kernel("half", at * 20 * US, (at * 20 + 10) * US) for at in range(5_000)]
    last = [kernel("quarter", (at * 40 + 100_000) * US, (at * 40 + 100_010) * US) for at in range(2_500)]
    page = opened(session(*first, *last, end=200 * MS))
    page.evaluate("gpusense.choose('whole'); document.getElementById('timeline').scrollIntoView()")
    page.evaluate("gpusense.timeline.draw()")
    y = page.evaluate("gpusense.timeline.rows().find(row => row.title === 'stream 7').y") + 9
    tip = "document.getElementById('tip').innerText"
    for time_ns, name, percent in ((50 * MS, "half", 50), (150 * MS, "quarter", 25)):
        mouse(page, "mouseMoved", place(page, time_ns), y)
        count, busy, longest = page.evaluate(tip).split("\n")
        assert count.partition(" ")[0].isdigit()
        assert int(busy.split()[2]) == pytest.approx(percent, abs=4)
        assert longest == f"the longest: {name}, 10.0 µs"
    ink = page.evaluate(f"({INK})({y - 9})")
    assert ink == [8, 4]  # of sixteen
    assert page.complaints() == []


def test_a_time_that_is_dragged_over_is_summed_up_by_name_and_by_stream(opened):
    run = training(6)
    page = opened(run)
    page.evaluate("gpusense.choose('whole'); document.getElementById('timeline').scrollIntoView()")
    page.evaluate("gpusense.timeline.draw()")
    page.evaluate(
        "document.addEventListener('copy', () => { globalThis.copied = document.activeElement.value; }, { once: true })"
    )
    spans = [(30, 8, 0), (30, 60, 8)]  # on the ruler; with Shift anywhere
    for begin, y, shift in spans:
        left, right = place(page, begin * MS), place(page, 60 * MS)
        mouse(page, "mousePressed", left, y, button="left", clickCount=1, modifiers=shift)
        mouse(page, "mouseMoved", right, y, button="left", buttons=1, modifiers=shift)
        mouse(page, "mouseReleased", right, y, button="left", clickCount=1, modifiers=shift)
        low, high = page.evaluate("(a => [a.from, a.to])(gpusense.timeline.area())")
        assert (low, high) == (pytest.approx(30 * MS, abs=MS), pytest.approx(60 * MS, abs=MS))
        inside = [
            (record.name, min(high, record.end_ns - T0) - max(low, record.start_ns - T0))
            for record in run.kernels
            if record.end_ns - T0 > low and record.start_ns - T0 < high
        ]
        gemms = [spent for name, spent in inside if name == "sm90_xmma_gemm_bf16"]
        rows = page.evaluate(
            "[...document.querySelectorAll('#timeline .area tr')].map(r => [...r.cells].map(c => c.innerText))"
        )
        (row,) = [row for row in rows if row[0] == "sm90_xmma_gemm_bf16"]
        assert row[1:] == [time_text(sum(gemms)), str(len(gemms)), f"{sum(gemms) / (high - low) * 100:.0f} %"]
        assert {"stream 7", "stream 20", "copies host to device"} <= {row[0] for row in rows}
        page.evaluate(
            "[...document.querySelectorAll('#timeline .area button')].find(b => b.innerText === 'Copy').click()"
        )
        focus(page)
        press(page, "Escape")
        assert page.evaluate("document.querySelector('#timeline .area').hidden")
    lines = page.evaluate("copied").splitlines()
    assert lines[0].startswith(time_text(high - low))
    (line,) = [line.split() for line in lines if line.startswith("sm90_xmma_gemm_bf16 ")]
    assert " ".join(line[1:]) == " ".join(row[1:])
    assert page.complaints() == []


def test_every_row_is_reached_by_keys_and_all_that_is_found_is_walked_through(opened):
    page = opened(training(6))
    focus(page)
    press(page, "0", "ArrowDown")
    filled = page.evaluate("gpusense.timeline.rows().filter(row => row.to > row.at).map(row => row.y)")
    reached = []
    for _ in filled:
        reached.append(page.evaluate("gpusense.timeline.selectedRow().y"))
        press(page, "ArrowDown")
    assert reached == filled
    press(page, *["ArrowUp"] * len(filled))
    assert page.evaluate("gpusense.timeline.selectedRow().y") == filled[0]
    first = page.evaluate(DETAILS)
    press(page, "ArrowRight")
    assert page.evaluate(DETAILS) != first
    press(page, "ArrowLeft")
    assert page.evaluate(DETAILS) == first
    press(page, "Escape", "/")
    page.call("Input.insertText", text="AllReduce")
    seen, count = [], sum("AllReduce" in record.name for record in training(6).records)
    for key in ["Enter", *["ArrowDown"] * (count - 2), "Enter"]:
        press(page, key)
        seen.append(page.evaluate(DETAILS))
    assert len(set(seen)) == count
    assert all("AllReduce" in one for one in seen)
    status = "document.querySelector('#timeline .controls .quiet').textContent"
    assert page.evaluate(status).endswith(f" of {count}")
    press(page, "ArrowUp")
    assert page.evaluate(DETAILS) == seen[-2]
    press(page, "Escape", "?")
    keys = page.evaluate("document.querySelector('dialog').innerText")
    assert page.evaluate("document.querySelector('dialog').open")
    assert all(word in keys for word in ("zoom in", "the row above", "find events by name"))
    press(page, "?")
    assert not page.evaluate("document.querySelector('dialog').open")
    assert page.complaints() == []


def test_an_arrow_leads_from_the_block_that_launched(opened):
    """It is certain where the launch is known, or those before and after it in the stream tell; else the block's last
    pass is taken."""
    passes = [block(("step",), at * MS, at * MS + 500 * US, number=at + 1) for at in range(5)]
    listed = kernel("late", 3_600 * US, 3_700 * US, path=("step",), block_id=2)
    between = kernel("between", 3_720 * US, 3_740 * US, path=("step",))
    then = kernel("then", 3_750 * US, 3_760 * US, path=("step",), block_id=2)
    run = session(*passes, listed, between, then, kernel("counted", 4_100 * US, 4_200 * US, path=("step",)), end=5 * MS)
    page = opened(run)
    page.evaluate(f"showOnTimeline({{start: {3_720 * US}, end: {3_740 * US}, name: 'between'}})")
    assert "not recorded" not in page.evaluate(DETAILS)
    page.evaluate("document.querySelector('#timeline .details button').click()")
    assert "step · 500 µs from 1.000 ms" in page.evaluate(DETAILS)
    page.evaluate(f"showOnTimeline({{start: {3_600 * US}, end: {3_700 * US}, name: 'late'}})")
    assert "launched it" in page.evaluate(DETAILS)
    assert "not recorded" not in page.evaluate(DETAILS)
    page.evaluate("document.querySelector('#timeline .details button').click()")
    assert "step · 500 µs from 1.000 ms" in page.evaluate(DETAILS)
    page.evaluate(f"showOnTimeline({{start: {4_100 * US}, end: {4_200 * US}, name: 'counted'}})")
    assert "which one is not recorded" in page.evaluate(DETAILS)
    page.evaluate("document.querySelector('#timeline .details button').click()")
    assert "step · 500 µs from 4.000 ms" in page.evaluate(DETAILS)
    assert page.complaints() == []


def test_curves_of_the_device_are_of_the_time_that_the_timeline_shows(opened):
    page = opened(training(20))
    left_end = """new Promise((told) => requestAnimationFrame(() => {
        const curve = document.querySelector("#metrics canvas"), box = curve.getBoundingClientRect();
        curve.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 70, clientY: box.top + 20}));
        told(curve.parentElement.querySelector("h3 span:last-child").textContent);
    }))"""
    page.evaluate("gpusense.timeline.look(0, gpusense.data.window_ns)")
    assert page.evaluate(left_end).endswith(" at 0 ns")
    page.evaluate("gpusense.timeline.look(30e6, 60e6)")
    assert page.evaluate(left_end).endswith(" at 30.0 ms")


def test_a_person_finds_the_slowest_step_its_longest_gap_and_what_the_host_did_then(opened):
    run = training(20)
    steps, step = longest_step(run)
    page = opened(run)
    press(page, "l")  # wherever one is on the page
    begin, end = steps[step]
    assert page.evaluate(DETAILS).startswith(f"step {step + 1} · {time_text(end - begin)} from")
    press(page, "Enter")
    assert page.evaluate("gpusense.timeline.view") == {"from": begin - T0, "to": end - T0}
    while not page.evaluate(DETAILS).startswith("idle: "):
        press(page, "ArrowDown")
    press(page, "l")
    gap = max(
        (gap for gap in Divisions(Facts(run)).gaps(("cuda", 0)) if gap.end_ns > begin and gap.start_ns < end),
        key=lambda gap: gap.end_ns - gap.start_ns,
    )
    length = gap.end_ns - gap.start_ns
    assert page.evaluate(DETAILS).startswith(f"{GAPS[gap.cause]} · {time_text(length)} from")
    assert WHY_IDLE[gap.cause] in page.evaluate(DETAILS)
    ran = [one for one in run.records if type(one).__name__ in ("GpuKernel", "GpuMemoryTransfer", "GpuMemset")]
    before = max((one for one in ran if one.end_ns <= gap.start_ns), key=lambda one: one.end_ns)
    after = min((one for one in ran if one.start_ns >= gap.end_ns), key=lambda one: one.start_ns)
    assert page.evaluate(
        "[...document.querySelectorAll('#timeline .details div button')].map(one => one.parentNode.innerText)"
    ) == [
        f"{word} {label(one.name)} {time_text(one.end_ns - one.start_ns)}"
        for word, one in (("after", before), ("until", after))
    ]
    press(page, "m")
    inside = {
        name: sum(max(0, min(one.end_ns, gap.end_ns) - max(one.start_ns, gap.start_ns)) for one in run.records
                  if one.name == name and type(one).__name__ in ("BlockRecord", "ComputeBlock"))
        for name in ("load", "tokenize", "forward")
    }  # fmt: skip
    assert inside["load"] > 0.9 * length > inside["forward"]  # which is the answer
    rows = page.evaluate(
        "[...document.querySelectorAll('#timeline .area tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    shown = {row[0]: row[1:] for row in rows}
    assert shown["load"] == [time_text(inside["load"]), "1", f"{inside['load'] / length * 100:.0f} %"]
    assert shown["tokenize"][1] == "1"
    assert page.complaints() == []


def longest_step(run):
    (program,) = Facts(run).programs
    steps = list(zip(program.steps.starts, program.steps.ends, strict=True))
    return steps, max(range(len(steps)), key=lambda at: steps[at][1] - steps[at][0])


def test_what_ran_in_several_ranks_at_the_same_time_is_shown_in_the_row_it_belongs_to(opened):
    runs = [session(block(("step",), 0, 9 * MS), kernel("gemm", MS, 2 * MS, path=("step",)), end=10 * MS) for _ in "12"]
    for rank, run in enumerate(runs):
        run.meta |= {"rank": rank, "world_size": 2}
    page = opened(merge(runs))
    for table, more in (("blocks", "row.cells[0].innerText === 'step'"), ("operations", "true")):
        rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter(row => {more})"
        assert page.evaluate(f"{rows}.length") == 2
        told = [page.evaluate(f"{rows}[{at}].click(), {DETAILS}") for at in (0, 1)]
        assert [[rank for rank in (0, 1) if f" · in rank {rank}" in one] for one in told] in ([[0], [1]], [[1], [0]])
    assert page.complaints() == []


CELL = "document.querySelector('#waiting .details').textContent"


def test_keys_walk_over_the_waiting_of_ranks_and_lead_to_the_timeline(opened):
    page = opened(merge([job_rank(rank, 3, late=1, why="load") for rank in range(3)]))
    page.evaluate("document.querySelector('#waiting canvas').focus()")
    assert page.evaluate(CELL).startswith("rank 0 waits 5.")
    assert page.evaluate(CELL).endswith("AllReduce number 0, 26.2 MB · rank 1 comes last")
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    assert page.evaluate(CELL) == "rank 1 waits 0 ns · AllReduce number 2, 26.2 MB · comes last"
    press(page, "Enter")
    assert page.evaluate("document.querySelector('#trail .what').textContent").startswith("AllReduce number 2 5.")
    press(page, "Escape")
    assert page.evaluate("document.activeElement === document.querySelector('#waiting canvas')")
    press(page, "End")
    assert "AllReduce number 19" in page.evaluate(CELL)
    press(page, "ArrowDown", "ArrowDown", "ArrowDown")
    assert page.evaluate(CELL).startswith("rank 2 ")
