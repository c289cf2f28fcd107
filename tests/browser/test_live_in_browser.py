"""The live view in a real browser, on a real run: rows arrive while it goes on, then the verdict and the report."""

import json
import signal
import subprocess
import sys
from threading import Semaphore, Thread

import pytest

from offbeat.data.vertical import vertical_from_dataset
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import Job
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_record

LOOKS = "(document.querySelector('#looks caption')?.textContent ?? '')"
STANDING = "document.getElementById('standing').textContent"
LINES = "document.querySelectorAll('#charts svg.lines path.line').length"


def wait_for(browser, condition):
    """Until the page fulfils it; the page itself says when something changes."""
    browser.evaluate(
        "new Promise((done) => { const look = () => { if (" + condition + ") done(true); }; "
        "new MutationObserver(look).observe(document, {subtree: true, childList: true, characterData: true, "
        "attributes: true}); look(); })"
    )


class Run:
    """A run that takes one look whenever it is allowed to."""

    def __init__(self, folder):
        self.folder, self.allowed, self.free = folder, Semaphore(0), False
        self.thread = Thread(target=self._train)

    def _train(self):
        data = vertical_from_dataset("credit-like@0.02", parties=["bank", "shop", "telecom"])
        slow = RuntimeEntry(slow={"shop": 4.0})
        job = Job(algorithm="afsvrg-vp", passes=4, seed=3, runtime=slow)
        write_job(job, self.folder)
        record = run_experiment(data, job, folder=self.folder, watch=self._look).record
        write_record(record, self.folder)

    def _look(self, glance):
        if not self.free:
            self.allowed.acquire()
        return True

    def look(self, times):
        self.allowed.release(times)

    def finish(self):
        self.free = True
        self.allowed.release()
        self.thread.join()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.metrics.live.EVERY_S", 0.0)
    folder = tmp_path / "run"
    folder.mkdir()
    going = Run(folder)
    going.thread.start()
    yield going
    going.finish()


@pytest.fixture
def address(run):
    watching = subprocess.Popen(
        [sys.executable, "-m", "offbeat", "watch", str(run.folder), "--json"], stdout=subprocess.PIPE, text=True
    )
    yield json.loads("".join(iter(watching.stdout.readline, "}\n")) + "}")["address"]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 0


def test_a_run_is_watched_from_its_first_rows_to_its_verdict(browser, run, address):
    browser.complaints.clear()
    browser.open(address)
    wait_for(browser, f"{LOOKS}.startsWith('1 of 1 looks')")
    assert browser.evaluate(STANDING).startswith("Running")
    run.look(1)
    wait_for(browser, f"{LOOKS}.startsWith('2 of 2 looks')")
    run.look(6)
    wait_for(browser, f"{LOOKS}.startsWith('8 of 8 looks')")
    assert browser.evaluate(LINES) >= 3
    assert browser.evaluate("[...document.querySelectorAll('#parties tbody th')].map((cell) => cell.textContent)") == [
        "bank", "shop", "telecom",
    ]  # fmt: skip
    run.look(24)
    wait_for(browser, f"{LOOKS}.includes(' of 32 looks')")
    assert browser.evaluate("document.querySelectorAll('#parties meter').length") == 3
    browser.evaluate("document.querySelector('#charts svg.lines').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('hint').textContent").startswith("sub-optimality ")
    run.look(1)
    wait_for(browser, f"{LOOKS}.includes(' of 33 looks')")
    assert browser.evaluate("document.activeElement.matches('svg.lines')"), "the focus stays where it was"
    run.finish()
    wait_for(browser, f"{STANDING}.startsWith('Used all its passes')")
    assert browser.evaluate("document.getElementById('connection').hidden")
    assert set(browser.requested) - {"data:,"} == {address, f"{address}events"}
    assert browser.complaints == []
    browser.open(f"{address}report")
    assert browser.evaluate("document.title") == "afsvrg-vp: Used all its passes"
    assert browser.evaluate("document.querySelectorAll('svg.lines').length") > 0
    assert browser.complaints == []


def test_light_and_dark_and_a_small_screen(browser, run, address):
    browser.open(address)
    run.look(3)
    wait_for(browser, f"{LOOKS}.startsWith('4 of 4 looks')")
    background = "getComputedStyle(document.body).backgroundColor"
    seen = [browser.evaluate(background)]
    browser.evaluate("document.getElementById('theme').click()")
    seen.append(browser.evaluate(background))
    assert sorted(seen) == ["rgb(20, 24, 29)", "rgb(255, 255, 255)"]
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    try:
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
        browser.open("about:blank")
