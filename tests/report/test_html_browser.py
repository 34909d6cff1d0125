"""The page in a real browser: no error, no request, hostile names inert, what it draws can be used."""

import pytest
from support.browser import Browser, find_browser
from support.machine import require
from support.sessions import HOSTILE, MS, T0, US, block, kernel, session, training

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
    assert page.complaints() == []


def test_hostile_names_are_inert(opened):
    records = [kernel(name, at * US, at * US + 900, full_name=name, path=(name,)) for at, name in enumerate(HOSTILE)]
    records += [block((name,), at * US, at * US + 990, number=at) for at, name in enumerate(HOSTILE)]
    page = opened(session(*records, end=20 * US), title=HOSTILE[0])
    assert "PWNED" in page.evaluate("document.title")  # as text of the title, put there by the file itself
    assert page.evaluate("document.title").startswith("gpusense · </script>")
    assert page.evaluate("document.querySelectorAll('img, script:not([type]):not(:last-of-type)').length") == 0
    assert page.evaluate("document.querySelectorAll('#operations tbody tr').length") == len(HOSTILE)
    assert page.complaints() == []


def test_an_empty_session_has_a_page(opened):
    page = opened(Session())
    assert page.evaluate("document.querySelector('#verdict .sentence').textContent") == "Nothing was recorded."
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
