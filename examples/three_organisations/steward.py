"""The hospital's data steward at the console, in a real browser: everything is typed and read as a person would."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "browser"))

CHANGED = "new MutationObserver(look).observe(document, {subtree: true, childList: true, characterData: true});"


class Steward:
    """One browser on one console."""

    def __init__(self, offbeat: list[str], home: Path, say: Callable[[str], None]) -> None:
        from chromium import Chromium

        self.say, self.folder = say, home.parent / "pictures"
        self.folder.mkdir()
        command = [*offbeat, "party", "console", "--home", str(home), "--json"]
        self.console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.console.stdout is not None
        told = "".join(iter(self.console.stdout.readline, "}\n")) + "}"
        self.browser: Any = Chromium(home.parent / "browser", width=1440)
        self.browser.open(json.loads(told)["address"])

    def close(self) -> None:
        self.browser.close()
        self.console.send_signal(signal.SIGINT)
        self.console.wait()

    def text(self, part: str) -> str:
        return str(self.browser.evaluate(f"document.getElementById({part!r}).textContent"))

    def until(self, condition: str) -> None:
        """Until the page shows it: the page puts new parts in place by itself."""
        self.browser.evaluate(
            f"new Promise((done) => {{ const look = () => {{ if ({condition}) done(true); }}; {CHANGED} look(); }})"
        )

    def type(self, field: str, text: str) -> None:
        self.browser.evaluate(
            f"(() => {{ const it = document.querySelector({field!r}); it.focus(); it.select?.(); }})()"
        )
        for key in text:
            self.browser.press(key)

    def press(self, button: str) -> None:
        self.browser.evaluate(f"document.querySelector({button!r}).focus()")
        self.browser.press_and_load("Enter")

    def pictures(self, name: str) -> None:
        self.browser.pictures(self.folder, name)

    # -- the story ------------------------------------------------------------------------------------------------

    def decide_by_hand(self, cap: int) -> None:
        """Change the policy through its form: look at the difference, then write it."""
        self.press("#policy a.button")
        self.browser.evaluate("document.querySelector('select[name=approve]').value = 'by hand'")
        self.type("input[name=row_cap]", str(cap))
        self.pictures("policy-form")
        self.browser.press_and_load("Enter")
        for line in self.text("difference").splitlines():
            if line.startswith(("+", "-")):
                self.say(f"party.toml: {line}")
        self.pictures("policy-difference")
        self.type("input[name=by]", "Grace")
        self.browser.press_and_load("Enter")
        self.until("document.getElementById('policy')?.textContent.includes('by hand')")

    def approve(self) -> None:
        self.until("document.querySelector('#proposals form.decide')")
        for line in json.loads(self.browser.evaluate(
            "JSON.stringify([...document.querySelectorAll('#proposals li')].map((line) => line.textContent))"
        )):  # fmt: skip
            self.say(f"the page: {line}")
        self.pictures("proposal")
        self.type("#proposals input[name=by]", "Grace")
        self.type("#proposals input[name=reason]", "as agreed")
        self.press("#proposals button.yes")

    def watch(self, run: str) -> None:
        """Until the run has ended, with a look at it while it is under way."""
        self.until(f"/training|{run}/.test(document.getElementById('running')?.textContent + "
                   "document.getElementById('finished')?.textContent)")  # fmt: skip
        self.pictures("under-way")
        self.until(f"document.getElementById('finished')?.textContent.includes({run!r})")
        for page in ("report", "audit", "card"):
            here = self.browser.evaluate("location.origin")
            self.browser.open(f"{here}/runs/{run}/{page}")
            self.pictures(page)
            self.browser.open(f"{here}/")

    def predict(self, ids: list[str]) -> None:
        """Score rows, and see what is left of the cap shrink: all rows are asked for, so the most used one too."""
        before = self.text("cap")
        self.type("#scores textarea", ids[0])
        self.browser.evaluate(f"document.querySelector('#scores textarea').value = {chr(10).join(ids)!r}")
        self.press("#scores button")
        self.until("document.querySelector('#scores td')")
        self.until(f"document.getElementById('cap').textContent !== {before!r}")
        for row in json.loads(self.browser.evaluate(
            "JSON.stringify([...document.querySelectorAll('#scores tbody tr')].slice(0, 3).map((row) => "
            "[...row.children].map((cell) => cell.textContent).join('  ')))"
        )):  # fmt: skip
            self.say(f"the page: {row}")
        self.say(f"before: {before.strip()}")
        self.say(f"after:  {self.text('cap').strip()}")
        self.pictures("after")
        assert self.browser.complaints == [], self.browser.complaints


def has_browser() -> bool:
    return any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
