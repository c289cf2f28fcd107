"""The steward's console in a real browser: a proposal is read, accepted by hand, followed, and used to predict."""

import base64
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

from offbeat.orgs import control, daemon
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


def picture(browser, name, width=1440, height=900):
    if not PICTURES:
        return
    browser.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    whole = browser.command("Page.captureScreenshot", captureBeyondViewport=True)
    Path(PICTURES, f"{name}-{width}.png").write_bytes(base64.b64decode(whole["data"]))
    browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "WORD_PAUSE_S", 0.05)
    opened = Town(tmp_path)
    opened.settings("shop", approve='"by hand"')
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
    picture(browser, "empty")

    run = town.ask("bank", control.Submit(job(target=1e-3).text)).run
    until(browser, "document.querySelector('#proposals form.decide')")
    told = text_of(browser, "proposals")
    assert run in told and "bank proposes the job “credit” to bank, shop and telecom" in told
    assert "You would learn the labels of bank." in told and "What it would cost you" in told
    assert browser.evaluate("document.title").startswith("(1) ")
    for width in (1440, 1024, 390):
        picture(browser, "proposal", width)

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
    assert "target" in text_of(browser, "finished")
    assert "Nothing waits" in text_of(browser, "proposals")
    assert "accepted" in text_of(browser, "ledgers") and "Ada" in text_of(browser, "ledgers")
    assert town.daemons["shop"].approvals.history()[0]["reason"] == "fine"

    before = browser.evaluate("document.querySelector('#ledgers td').textContent")
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
    own = "[...document.querySelectorAll('#ledgers tr')].some((row) => row.textContent.startsWith('shop'))"
    until(browser, own)
    assert before  # the bank's uses were there before; the shop's own came with its question
    for width in (1440, 1024, 390):
        picture(browser, "after", width)
    widest = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    assert browser.evaluate(widest) <= 0  # nothing hangs out of a narrow screen
    browser.command("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints == []
    assert all(url.startswith(address.split("/enter")[0]) for url in browser.requested)

    browser.open(address.split("/enter")[0] + f"/runs/{run}/report")
    assert "vfb2-svrg" in browser.evaluate("document.body.textContent").lower()


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
    assert status_of(address, "/runs/..%2f..%2fparty.toml/report", Cookie=f"offbeat-console={token}") == 404
