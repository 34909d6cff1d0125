"""The page in a real browser: no error, no request, hostile names inert, what it draws can be used."""

import re
from itertools import accumulate

import pytest
from support.browser import Browser, find_browser
from support.machine import require
from support.sessions import HOSTILE, MS, T0, US, block, kernel, sample, session, training

from gpusense.report.html import page as html
from gpusense.session import Session

DETAILS = "document.querySelector('#timeline .details').textContent"


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
    assert not re.search(r"\bkept\b|\bcounted\b|\bseen =", page.evaluate("document.body.innerText"))
    assert page.complaints() == []


#: Names that are too long, written from the right, or of many lines.
WIDE = ("x" * 10_000, "\u05e9\u05dc\u05d5\u05dd " * 40, "\u202eevil\u202c", "a\n" * 300, "&lt;b&gt;" * 500)


def test_hostile_names_are_inert(opened, browser):
    names = HOSTILE + WIDE
    records = [kernel(name, at * US, at * US + 900, full_name=name, path=(name,)) for at, name in enumerate(names)]
    records += [block((name,), at * US, at * US + 990, number=at) for at, name in enumerate(names)]
    page = opened(session(*records, end=20 * US), title=HOSTILE[0])
    assert "PWNED" in page.evaluate("document.title")  # as text of the title, put there by the file itself
    assert page.evaluate("document.title").startswith("gpusense · </script>")
    assert page.evaluate("document.querySelectorAll('img, script:not([type]):not(:last-of-type)').length") == 0
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
    assert page.evaluate("document.querySelector('#verdict .sentence').textContent") == "“fit” took 40.0 ms in 1 call."
    told = page.evaluate("document.querySelector('#verdict').innerText")
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
    page.evaluate("document.querySelector('#timeline .scroll canvas').focus()")
    for key, check in (("w", "to - view.from < span"), ("d", "from > 0"), ("0", "to - view.from === span")):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        assert page.evaluate(f"(({{view}}, span) => view.{check})(gpusense.timeline, {whole})"), key
    page.call("Input.dispatchKeyEvent", type="keyDown", key="n", text="n")
    assert "starts at" in page.evaluate("document.querySelector('#timeline .details').textContent")
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


def press(page, key):
    """A key as a person presses it: what has the focus gets it."""
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} if len(key) == 1 else {}))


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
    page.evaluate("document.querySelector('#timeline .scroll canvas').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="n", text="n")
    whole = {"start": 2 * MS, "end": run.blocks[0].end_ns - T0, "name": "train", "row": "blocks · thread 1"}
    assert page.evaluate("heard") == whole
    assert page.complaints() == []
