"""The report page in a real browser: it draws, filters, zooms, answers to the keyboard and asks nobody for anything."""

import subprocess

import pytest
from chromium import FLAGS, PATIENCE_S, find_chromium
from report_samples import PARTIES, hostile_record, sample_record, sample_timeline, synchronous_record

from offbeat.metrics.held_out import HeldOut, Worth
from offbeat.report.compare import Comparison, write_comparison
from offbeat.report.page import write_report

ARROWS = "document.querySelectorAll('#timeline-arrows .arrow')"
STATUS = "document.getElementById('timeline-status').textContent"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(sample_record(), tmp_path_factory.mktemp("run")).as_uri()


@pytest.fixture
def page(browser, report):
    def opened(fragment=""):
        browser.open(report + fragment)
        return browser

    return opened


def messages(party=None, kind=None):
    """The same filter, slowly, over the whole recording."""
    return [
        message
        for message in sample_timeline()
        if (party is None or party in (message.sender, message.receiver)) and (kind is None or kind == message.kind)
    ]


def focus(browser, selector):
    browser.evaluate(f"document.querySelector({selector!r}).focus()")


def choose(browser, identifier, value):
    """Choose from a list as the browser itself would report it."""
    browser.evaluate(
        f"(() => {{ const list = document.getElementById({identifier!r}); list.value = {value!r}; "
        "list.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_the_page_opens_and_asks_nobody_for_anything(page):
    browser = page()
    assert browser.evaluate("document.title") == "afsvrg-vp: Reached the target"
    assert [url for url in browser.requested if not url.startswith(("file:", "data:", "about:"))] == []
    assert browser.complaints == []


def test_the_timeline_is_drawn(page):
    browser = page()
    assert browser.evaluate(f"{ARROWS}.length") == 94
    assert browser.evaluate("[...document.querySelectorAll('[data-lane]')].map(lane => lane.dataset.lane)") == list(
        PARTIES
    )
    assert browser.evaluate(STATUS) == "94 of 640 messages, 0 s to 115.6 ms"
    boxes = browser.evaluate(f"[...{ARROWS}].every(arrow => arrow.getBoundingClientRect().width > 0)")
    assert boxes


def test_filtering_by_party_and_kind(page):
    browser = page("#from=0&to=9")
    assert browser.evaluate(STATUS).startswith("640 of 640 messages")
    choose(browser, "timeline-party", "bank")
    assert browser.evaluate(f"{ARROWS}.length") == len(messages(party="bank"))
    assert browser.evaluate(f"[...{ARROWS}].every(a => a.dataset.from === 'bank' || a.dataset.to === 'bank')")
    choose(browser, "timeline-kind", "Ready")
    assert browser.evaluate(f"{ARROWS}.length") == len(messages(party="bank", kind="Ready")) > 0
    assert browser.evaluate("location.hash").startswith("#party=bank&kind=Ready&from=0&to=")


def test_a_link_can_name_what_it_shows(page):
    browser = page("#party=shop&kind=SnapshotTable&from=0&to=9")
    assert browser.evaluate("document.getElementById('timeline-party').value") == "shop"
    assert browser.evaluate(f"{ARROWS}.length") == len(messages(party="shop", kind="SnapshotTable")) > 0


def test_the_timeline_works_by_keyboard(page):
    browser = page()
    focus(browser, "#timeline")
    browser.press("0")
    assert browser.evaluate(STATUS).startswith("640 of 640 messages, 0 s to ")
    browser.press("+")
    browser.press("+")
    closer = browser.evaluate(f"{ARROWS}.length")
    assert 100 < closer < 260
    browser.press("ArrowRight")
    assert browser.evaluate("location.hash") != ""
    assert not browser.evaluate(STATUS).startswith("640")
    browser.press("Home")
    assert ", 0 s to " in browser.evaluate(STATUS)
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    second = messages()[1]
    assert browser.evaluate(STATUS).startswith("2 of ")
    assert f"{second.kind}: {second.sender} → {second.receiver}, sent " in browser.evaluate(STATUS)
    assert browser.evaluate("document.querySelectorAll('.arrow.on').length") == 1


def test_every_control_is_reached_with_tab(page):
    browser = page()
    focus(browser, "#theme")
    reached = []
    for _ in range(30):
        browser.press("Tab")
        reached.append(browser.evaluate("document.activeElement.id || document.activeElement.dataset.action || ''"))
        if reached[-1] == "timeline":
            break
    assert [name for name in reached if name][-8:] == [
        "timeline-party", "timeline-kind", "earlier", "later", "closer", "wider", "whole", "timeline",
    ]  # fmt: skip


def test_the_overview_moves_the_view(page):
    browser = page()
    box = browser.evaluate(
        "(() => { const svg = document.getElementById('timeline-overview'); svg.scrollIntoView({block: 'center'}); "
        "const box = svg.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; })()"
    )
    browser.click(box[0] + 0.9 * box[2], box[1] + box[3] / 2)
    assert not browser.evaluate(STATUS).endswith("0 s to 115.6 ms")
    assert browser.evaluate("Number(document.getElementById('timeline-window').getAttribute('x'))") > 700


def test_charts_read_out_their_values_by_keyboard_and_pointer(page):
    browser = page()
    focus(browser, "svg.lines")
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('hint').textContent") == "sub-optimality 0.261 at 0 s"
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('hint').textContent") == "sub-optimality 0.22 at 0.4825 s"
    place = browser.evaluate(
        "(() => { const mark = document.querySelectorAll('svg.lines .marks circle')[50]; "
        "const box = mark.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    browser.move_pointer(*place)
    assert browser.evaluate("document.getElementById('hint').textContent").startswith("sub-optimality 5.32e-05 at 24.1")


def test_light_and_dark(page):
    browser = page()
    background = "getComputedStyle(document.body).backgroundColor"
    focus(browser, "#theme")
    seen = [browser.evaluate(background)]
    browser.evaluate("document.getElementById('theme').click()")
    seen.append(browser.evaluate(background))
    assert sorted(seen) == ["rgb(20, 24, 29)", "rgb(255, 255, 255)"]


def test_nothing_sticks_out_on_a_small_screen(page):
    browser = page()
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    try:
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")


def test_held_out_rows_and_worth_fit_on_every_screen(browser, tmp_path):
    seen = HeldOut(
        rows=40, roc=((0.0, 0.0), (0.2, 0.7), (1.0, 1.0)), ks=0.5, calibration=((0.1, 0.2, 20), (0.7, 0.6, 20)),
        confusion=((15, 5), (8, 12)),
    )  # fmt: skip
    values = {"bank": 0.21, "shop": -0.02, "an insurer with a long name": 0.05}
    worth = Worth("auc", 40, 0.74, 0.5, values, dict.fromkeys(values, 0.02), dict.fromkeys(values, 0.6))
    browser.open(write_report(sample_record(held_out=seen, worth=worth), tmp_path).as_uri())
    outside = (
        "[...document.querySelectorAll('#unseen svg text, #worth svg text')].filter(text => { const box = "
        "text.getBoundingClientRect(), all = text.closest('svg').getBoundingClientRect(); "
        "return box.left < all.left - 1 || box.right > all.right + 1; }).map(text => text.textContent)"
    )
    try:
        for width in (1440, 1024, 390):
            browser.command(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
            )
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate("document.querySelectorAll('#unseen svg.lines').length") == 2
            assert browser.evaluate("document.querySelectorAll('#worth svg rect').length") == 3
            assert browser.evaluate(outside) == []
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints == []


def test_hostile_names_stay_text(browser, tmp_path):
    browser.open(write_report(hostile_record(), tmp_path).as_uri())
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate(f"{ARROWS}.length") == 1
    assert browser.evaluate("document.querySelector('h1').textContent").startswith('<script>alert("x")</script> with')
    assert browser.complaints == []


def test_a_comparison_opens(browser, tmp_path):
    runs = Comparison({"async": sample_record(), "sync": synchronous_record()}, target=1e-4)
    browser.open(write_comparison(runs, tmp_path / "compare.html").as_uri())
    assert browser.evaluate("document.querySelectorAll('svg.lines').length") == 3
    assert browser.evaluate("document.querySelectorAll('svg.lines path.line').length") == 6
    assert browser.complaints == []


def test_the_page_needs_no_driver_either(report, tmp_path):
    """The same filter in the plainest way: the browser prints the page it made of a link."""
    printed = subprocess.run(
        [find_chromium(), *FLAGS, f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--dump-dom",
         f"{report}#party=bank&kind=Ready&from=0&to=9"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    ).stdout  # fmt: skip
    arrows = printed.partition('id="timeline-arrows"')[2].partition("</g>")[0]
    assert arrows.count("<path") == len(messages(party="bank", kind="Ready"))
