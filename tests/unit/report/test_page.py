"""The page for browsers: self-contained, escaped, complete, and bounded."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from report_samples import PARTIES, hostile_record, sample_party, sample_record, sample_timeline

from offbeat.metrics.curves import CurveRow
from offbeat.metrics.record import Transit
from offbeat.report.html import Markup, data_block, tag
from offbeat.report.page import PARTIES_DRAWN, report_page, write_report
from offbeat.report.timeline import LANES_SHOWN, MESSAGES_KEPT, Timeline, timeline_of, timeline_view

VOID = {"meta", "link", "br", "input"}
PLAIN_ATTRIBUTES = re.compile(r"^on|^style$|^srcdoc$")


class Page(HTMLParser):
    """A strict reader: every element must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts, self.broken = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.broken.append(name)

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, name, **wanted):
        return [a for n, a in self.elements if n == name and all(a.get(k) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def text():
    return report_page(sample_record(), run="credit")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_well_formed(page):
    assert page.broken == []
    assert page.open == []


def test_nothing_is_fetched(text, page):
    for _, attributes in page.elements:
        for name in ("src", "srcset", "action", "data", "poster"):
            assert name not in attributes
        assert attributes.get("href", "data:,").startswith("data:")
    assert "@import" not in text
    assert "url(http" not in text


def test_only_the_page_s_own_style_and_script_may_run(text, page):
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy.startswith("default-src 'none';")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    for part in (style, script):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy


def test_every_section_is_there_and_named(page):
    names = [attributes["id"] for attributes in page.all("section")]
    assert names == ["disclosed", "progress", "parties", "messages", "traffic", "record"]
    headings = {attributes.get("id") for attributes in page.all("h2")}
    assert all(f"{name}-title" in headings for name in names)


def test_warnings_stand_before_everything_else(text):
    assert text.index("Masks are seeded") < text.index("<main>")
    assert text.index("Reached the target") < text.index("Masks are seeded")


def test_what_is_promised_has_a_place_of_its_own():
    text = report_page(sample_record(promises=("Rows are <safe>.",)))
    page = Page(text)
    assert page.broken == [] and page.all("section", id="promised") and page.all("ul", **{"class": "promises"})
    assert text.index("What was disclosed") < text.index("What is promised") < text.index("Rows are &lt;safe&gt;.")
    (warnings,) = re.findall(r'<ul class="warnings".*?</ul>', text, re.S)
    assert "Rows are" not in warnings and "Masks are seeded" in warnings


def test_images_say_what_they_show(text, page):
    charts = page.all("svg", role="img")
    assert len(charts) == 3 * 4 + 2
    assert "sub-optimality: from 0.261 at 0 s to 1.08e-08 at 48.25 s." in text
    assert "shop: compute 41.2 s, communicate 5.9 s, wait 1.15 s" in text


def test_curves_are_drawn_against_time_passes_and_bytes(text):
    for axis in ("time", "passes", "bytes sent"):
        assert f"sub-optimality and certified bound against {axis}" in text
    assert "time (s)" in text
    assert "bytes sent (MB)" in text


def test_without_an_optimum_the_objective_comes_first():
    curve = tuple(CurveRow(float(t), t / 8, t, objective=1 / (t + 1), gap=1 / (t + 1)) for t in range(9))
    text = report_page(sample_record(curve=curve))
    assert (
        text.index(">objective against time<")
        < text.index("More curves")
        < text.index(">certified bound against time<")
    )


def test_traffic_by_kind_adds_up(page):
    words = " ".join(page.texts)
    # four parties of 7,180,680 bytes each, of 31,469,760 in all, over 12.5 passes
    assert "MaskedShare 55,236 28.7 MB 91.3 % 2.3 MB" in " ".join(words.split())


def test_the_record_is_on_the_page(text):
    assert "&quot;secure_sum&quot;: &quot;pairwise&quot;" in text
    assert "35 duplicate rows dropped" in text


def test_the_privacy_ledger_is_on_the_page():
    text = report_page(
        sample_record(privacy={"edge-1": {"releases": 400, "epsilon": None, "warning": "not <private>"}})
    )
    assert "Privacy ledger: what each party released and spent" in text
    assert "not &lt;private&gt;" in text


def test_names_cannot_become_markup():
    text = report_page(hostile_record(), run="<b>")
    page = Page(text)
    assert page.broken == []
    assert page.all("img") == []
    assert page.all("b") == []
    assert len(page.all("script")) == 2
    for _, attributes in page.elements:
        assert not any(PLAIN_ATTRIBUTES.match(name) for name in attributes)


def test_data_for_the_script_cannot_end_its_element():
    block = data_block("x", {"a": "</script><!-- & >"})
    inside = block.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {"a": "</script><!-- & >"}


def test_tags_escape_children_and_attributes():
    assert tag("p", "a < b", Markup("<br>"), title='"q"', class_="x", hidden=True, x1=0.0, data_from=None) == (
        '<p title="&quot;q&quot;" class="x" hidden x1="0">a &lt; b<br></p>'
    )


def test_the_timeline_holds_the_messages_by_place(text):
    data = json.loads(re.search(r'id="timeline-data">(.*?)</script>', text)[1])
    assert data["parties"] == list(PARTIES)
    assert data["kinds"][0] == "MaskedShare"
    assert len(data["messages"]) == 640
    sent_s, received_s, sender, receiver, kind = data["messages"][0]
    first = sample_timeline()[0]
    assert (data["parties"][sender], data["parties"][receiver], data["kinds"][kind]) == (
        first.sender, first.receiver, first.kind,
    )  # fmt: skip
    assert sent_s == pytest.approx(first.sent_s, rel=1e-8)
    assert received_s == pytest.approx(first.received_s, rel=1e-8)
    assert data["messages"][96][1] is None


def test_the_first_stretch_is_drawn_without_a_script(text):
    arrows = re.search(r'<g id="timeline-arrows">(.*?)</g>', text, re.S)[1]
    assert 80 <= arrows.count("<path") <= 120
    assert "94 of 640 messages, 0 s to 116 ms" in text


def test_the_end_of_a_recording_is_not_looked_for_at_every_message(monkeypatch):
    asked, end_s = [], Timeline.end_s.fget
    monkeypatch.setattr(Timeline, "end_s", property(lambda timeline: asked.append(1) or end_s(timeline)))
    assert "<rect" in timeline_view(sample_record())
    assert len(asked) < 10


def test_a_ninth_kind_is_told_from_the_first():
    names = [f"Kind{number}" for number in range(9)]
    messages = [Transit(0.1 * place, 0.1 * place + 0.05, "bank", "shop", kind) for place, kind in enumerate(names)]
    timeline = timeline_of(sample_record(timeline=tuple(messages)))
    assert timeline.stroke("Kind0") == "arrow s0"
    assert timeline.stroke("Kind8") == "arrow s0 again"


def test_a_single_look_is_a_dot():
    text = report_page(sample_record(curve=(CurveRow(1.0, 1.0, 8, objective=0.5),)))
    assert 'class="marks few"' in text
    assert 'class="marks few"' not in report_page(sample_record(curve=sample_record().curve[::2]))


def test_large_runs_are_bounded_and_say_so():
    edges = tuple(f"edge-{number:03d}" for number in range(300))
    record = sample_record(
        parties={name: sample_party("bank") for name in edges},
        timeline=sample_timeline(messages=MESSAGES_KEPT + 500, parties=edges),
    )
    timeline = timeline_of(record)
    assert len(timeline.parties) == LANES_SHOWN
    assert len(timeline.messages) <= MESSAGES_KEPT
    text = report_page(record)
    assert f"Lanes are drawn for the {LANES_SHOWN} busiest of 300 parties." in text
    assert f"of {MESSAGES_KEPT + 500:,} recorded messages" in text
    assert f"the {PARTIES_DRAWN} parties that computed longest; {300 - PARTIES_DRAWN} more" in text
    assert len(text) < 600_000


def test_a_run_that_recorded_little_still_has_a_page():
    bare = sample_record(
        parties={}, reveals=(), warnings=(), curve=(), timeline=(), metrics={}, objective=None, options={}
    )
    page = Page(report_page(bare))
    words = " ".join(page.texts)
    assert page.broken == []
    assert "This run recorded no curve." in words
    assert "This run recorded no messages." in words
    assert "No warnings." in words


def test_write_report_makes_the_file(tmp_path):
    path = write_report(sample_record(), tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
