"""The steward's console in a real browser: a proposal is read, accepted by hand, followed, and used to predict."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")
pytest.importorskip("uvicorn", reason="needs the extra 'web'")

from town import Town, job

from offbeat.orgs import control, leading
from offbeat.orgs.client import connect

PICTURES = os.environ.get("OFFBEAT_PICTURES")  # a folder, for those who want to look


def until(browser, condition):
    """Until the page fulfils it; the page itself says when something changes."""
    browser.evaluate(
        "new Promise((done) => { const look = () => { if (" + condition + ") done(true); }; "
        "new MutationObserver(look).observe(document, {subtree: true, childList: true, characterData: true, "
        "attributes: true}); look(); })"
    )


def text_of(browser, part):
    return browser.evaluate(f"document.getElementById('{part}').textContent")


def pictures(browser, name):
    if PICTURES:
        browser.pictures(Path(PICTURES), name)


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setattr(leading, "WORD_PAUSE_S", 0.05)
    opened = Town(tmp_path)
    opened.settings("shop", approve='"by hand"', row_cap="5000")
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def address(town):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    shop = str(town.folder / "shop")
    console = subprocess.Popen(
        [sys.executable, "-m", "offbeat", "party", "console", "--home", shop, "--json"],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    yield json.loads("".join(iter(console.stdout.readline, "}\n")) + "}")["address"]
    console.send_signal(signal.SIGINT)
    console.communicate(timeout=60)
    assert console.returncode == 0


def status_of(address, path, **headers):
    request = urllib.request.Request(address.split("/enter")[0] + path, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as problem:
        return problem.code


def test_from_a_proposal_by_hand_to_a_prediction(town, address, browser):
    browser.complaints.clear()
    browser.open(address)
    assert "Nothing waits" in text_of(browser, "proposals")
    assert "Daemon up" in text_of(browser, "daemon") and "2 of 2" in text_of(browser, "daemon")
    pictures(browser, "empty")

    run = town.ask("bank", control.Submit(job(target=1e-3).text)).run
    until(browser, "document.querySelector('#proposals form.decide')")
    told = text_of(browser, "proposals")
    assert run in told and "bank proposes the job “credit” to bank, shop and telecom" in told
    assert "You would learn the labels of bank." in told and "What it would cost you" in told
    assert browser.evaluate("document.title").startswith("(1) ")
    pictures(browser, "proposal")

    browser.evaluate("document.querySelector('#proposals input[name=by]').focus()")  # from here on by keyboard alone
    for key in "Ada":
        browser.press(key)
    browser.press("Tab")
    for key in "fine":
        browser.press(key)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Accept"
    browser.press_and_load(" ")
    until(browser, f"document.getElementById('finished')?.textContent.includes('{run}')")
    assert {town.ended(name, run).phase for name in town.names} == {"done"}  # each ends by itself
    assert "Reached the target" in text_of(browser, "finished")
    assert "Nothing waits" in text_of(browser, "proposals")
    assert "accepted" in text_of(browser, "ledgers") and "Ada" in text_of(browser, "ledgers")
    assert town.daemons["shop"].approvals.history()[0]["reason"] == "fine"

    assert "of at most 5,000 sums" in text_of(browser, "cap")
    browser.evaluate("document.querySelector('#scores textarea').focus()")
    for key in "c1,c2":
        browser.press(key)
    browser.press("Tab")
    browser.press_and_load(" ")
    until(browser, "document.querySelector('#scores td')")
    scores = [
        float(s)
        for s in browser.evaluate("[...document.querySelectorAll('#scores td:nth-child(2)')].map((c) => c.textContent)")
    ]
    assert scores == pytest.approx(connect(town.folder / "shop", run).decision_function(["c1", "c2"]), rel=1e-5)
    until(browser, "[...document.querySelectorAll('#ledgers svg .row')].some((row) => row.textContent === 'shop')")
    before = text_of(browser, "cap")
    everybody = ",".join(f"c{i}" for i in range(240))
    browser.evaluate(f"document.querySelector('#scores textarea').value = {everybody!r}")
    browser.evaluate("document.querySelector('#scores button').focus()")
    browser.press_and_load(" ")
    until(browser, f"document.getElementById('cap').textContent !== {before!r}")  # what is left has shrunk by one
    assert "240 rows by" in text_of(browser, "scores")
    pictures(browser, "after")
    assert sticks_out(browser) <= 0
    assert browser.complaints == []
    assert all(url.startswith(address.split("/enter")[0]) for url in browser.requested)

    for page, part in (
        ("report", "What was disclosed"),
        ("audit", "Every mask word was used once"),
        ("card", "Privacy"),
    ):
        link = f"document.querySelector('#finished a[href=\"runs/{run}/{page}\"]')"
        browser.open(browser.evaluate(f"{link}.href"))
        assert part in browser.evaluate("document.body.textContent") and sticks_out(browser) <= 0
        pictures(browser, page)
        browser.open(address)
    assert browser.complaints == []
    browser.open("about:blank")  # the page would ask on when its server is gone


def test_the_policy_is_changed_by_keyboard_with_the_difference_before_it_is_written(town, address, browser):
    browser.complaints.clear()
    browser.open(address)
    browser.evaluate("document.querySelector('#policy a.button').focus()")
    browser.press_and_load("Enter")
    pictures(browser, "policy-form")
    assert sticks_out(browser) <= 0
    type_into(browser, "rows_least", "0")
    browser.press_and_load("Enter")
    assert "policy.rows_least must be a whole number of 1 or more; got 0." in text_of(browser, "problem")
    pictures(browser, "policy-wrong")
    type_into(browser, "rows_least", "150")
    type_into(browser, "initiators", "bank, tellecom")
    browser.press_and_load("Enter")
    told = browser.evaluate("document.querySelector('main').textContent")
    assert "+rows_least = 150" in told and "At least 150 common training rows" in told
    assert "no party of the roster is called so. Did you mean 'telecom'?" in told
    pictures(browser, "policy-difference")
    assert sticks_out(browser) <= 0
    browser.evaluate("document.querySelector('button[value=edit]').focus()")
    browser.press_and_load("Enter")
    type_into(browser, "initiators", "bank")
    browser.press_and_load("Enter")
    file = town.folder / "shop" / "party.toml"
    assert "rows_least = 100 " in file.read_text()
    type_into(browser, "by", "Ada")
    browser.press_and_load("Enter")
    until(browser, "document.getElementById('ledgers')?.textContent.includes('Ada')")
    assert "rows_least = 150 " in file.read_text() and 'initiators = ["bank"]' in file.read_text()
    assert "At least 150 common training rows" in text_of(browser, "policy")
    assert town.daemons["shop"].home.config.policy.rows_least == 150, "the daemon has taken it up"
    assert browser.complaints == []


def type_into(browser, name, text):
    browser.evaluate(f"(() => {{ const field = document.querySelector('input[name={name}]'); "
                     "field.focus(); field.select(); })()")  # fmt: skip
    for key in text:
        browser.press(key)


def sticks_out(browser):
    """By how many pixels something hangs out of a narrow screen."""
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    try:
        return browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")


def test_the_console_is_for_those_who_have_its_address(address):
    token = address.partition("token=")[2]
    assert status_of(address, "/") == 403
    assert status_of(address, "/enter?token=wrong") == 403
    assert status_of(address, "/state", Cookie=f"offbeat-console={token}") == 200
    assert status_of(address, "/state", Cookie=f"offbeat-console={token}", Host="evil.example") == 400
    request = urllib.request.Request(
        address.split("/enter")[0] + "/stop", data=b"run=x", method="POST",
        headers={"Cookie": f"offbeat-console={token}", "Origin": "http://evil.example"},
    )  # fmt: skip
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 403
    policy = {"Cookie": f"offbeat-console={token}"}
    assert (status_of(address, "/policy"), status_of(address, "/policy", **policy)) == (403, 200)
    assert status_of(address, "/runs/..%2f..%2fparty.toml/report", Cookie=f"offbeat-console={token}") == 404
