"""The console's pages: a frame that is sent once with parts that are made anew when something has changed, and what is
left of an ended run: its model card, and the audit of this party's side.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from offbeat.names import counted
from offbeat.orgs.console.overview import Overview, Proposal, Scores
from offbeat.orgs.control import PAUSED, QUEUED, RunStatus
from offbeat.party.verdicts import verdict_named
from offbeat.report import numbers, wording
from offbeat.report.charts import ChartLine, legend, line_chart, value_bars
from offbeat.report.html import (
    Markup,
    PageFrame,
    document,
    figure,
    figures,
    listed,
    page_frame,
    quiet,
    section,
    table,
    tag,
)
from offbeat.report.page import header

SCORES_SHOWN = 200
SOON_DAYS = 30
CHART_FROM_S = 60.0  # uses within a minute would be one upright line
SECTIONS = (
    ("proposals", "Waiting for you"),
    ("running", "Under way"),
    ("finished", "Ended"),
    ("scores", "Score rows"),
    ("ledgers", "What was given"),
    ("policy", "Policy"),
    ("peers", "Peers"),
)


@cache
def frame() -> PageFrame:
    """Pages of the console may run their own script, and send questions and forms to the server they came from."""
    style, script = (files("offbeat.orgs.console").joinpath(f"console.{kind}").read_text() for kind in ("css", "js"))
    names = ("page.css", "live.css", "theme.js")
    return page_frame(*names, style=style, script=script, more="; connect-src 'self'", forms="'self'")


def console_page(seen: Overview) -> str:
    parts = {name: tag("div", body, id=name) for name, body in parts_of(seen).items()}
    return frame().page(
        f"{seen.party}: console",
        header(
            f"{seen.party}: console",
            parts["daemon"],
            tag("p", "", id="connection", class_="bad", role="status", hidden=True),
            tag("nav", *(tag("a", title, href=f"#{name}-section") for name, title in SECTIONS), aria_label="Sections"),
        ),
        tag("main", *(section(f"{name}-section", title, parts[name]) for name, title in SECTIONS)),
        tag("noscript", tag("p", "Without scripts this page stays as it is: load it again to see what came since.")),
    )


def own_page(title: str, *body: Markup) -> str:
    """Another page of the console, which stays as it is while somebody types."""
    return frame().page(title, header(title), tag("main", *body))


def parts_of(seen: Overview) -> dict[str, Markup]:
    asked = {"proposals": _proposals, "running": _running, "finished": _finished, "scores": _scores}
    unknown = quiet("Not known: the daemon does not answer.")
    return {
        "daemon": _daemon(seen),
        **{name: unknown if seen.problem else part(seen) for name, part in asked.items()},
        "ledgers": _ledgers(seen),
        "policy": _policy(seen),
        "peers": _peers(seen),
    }


# -- how the party stands --------------------------------------------------------------------------------------------


def _daemon(seen: Overview) -> Markup:
    badge = tag("strong", "Daemon down" if seen.problem else "Daemon up", class_=f"badge {_mood(not seen.problem)}")
    up = sum(peer.good for peer in seen.peers)
    told = [
        ("Waiting for you", str(len(seen.proposals))),
        ("Under way", str(sum(not run.ended and run.phase != "waiting" for run in seen.runs))),
        ("Peers up", f"{up} of {len(seen.peers)}"),
        ("Certificate", _left(seen.days_left)),
    ]
    words = tag("p", badge, " ", seen.problem or f"offbeat {seen.version}", class_="verdict")
    return tag("div", words, figures(told))


def _left(days: int) -> str:
    return f"{counted(days, 'day')} left" if days >= 0 else f"ended {counted(-days, 'day')} ago"


def _peers(seen: Overview) -> Markup:
    if not seen.peers:
        return quiet("The roster lists nobody else.")
    rows = [
        (
            peer.name,
            peer.address or numbers.UNKNOWN,
            tag("span", peer.standing, class_=_mood(peer.good)),
            tag("span", f"{peer.days_left}", class_=_mood(peer.days_left > SOON_DAYS)),
        )
        for peer in seen.peers
    ]
    head = ("Party", "Address", "Now", "Days of its certificate")
    return table(head, rows, "Asked every quarter of a minute", (3,), stacked=True)


def _mood(good: bool) -> str:
    return "good" if good else "bad"


# -- proposals -------------------------------------------------------------------------------------------------------


def _proposals(seen: Overview) -> Markup:
    if not seen.proposals:
        how = (
            "Proposals that the policy allows will wait here."
            if seen.by_hand
            else 'The policy decides alone. With approve = "by hand" under [policy], proposals wait here for you.'
        )
        return quiet(f"Nothing waits. {how}")
    return tag("div", *(_proposal(one) for one in seen.proposals))


def _proposal(one: Proposal) -> Markup:
    job = one.job
    facts = (
        f"{one.initiator} proposes the job “{job.name}” to {_listed(job.parties)}: {job.method.algorithm}, at most "
        f"{job.method.passes:g} passes, labels at {_listed(job.labels_at)}."
    )
    against = [f"Your policy does not allow it any more: {reason}." for reason in one.objections]
    return tag(
        "article",
        tag("h3", one.run),
        tag("p", facts),
        listed(against, class_="warnings"),
        tag("div", _list("Who would learn what", one.told), _list("What it would cost you", one.costs), class_="two"),
        tag(
            "form",
            tag("input", type="hidden", name="run", value=one.run),
            tag("label", "Your name ", tag("input", name="by", required=True, maxlength=200, autocomplete="name")),
            tag("label", "Reason ", tag("input", name="reason", maxlength=1000)),
            tag("span", tag("button", "Accept", name="decision", value="accept", class_="yes"),
                tag("button", "Refuse", name="decision", value="refuse", class_="no")),
            method="post", action="decide", class_="decide", aria_label=f"Decide about {one.run}",
        ),
        class_="card",
    )  # fmt: skip


def _list(title: str, lines: Sequence[str]) -> Markup:
    return tag("div", tag("h4", title), listed(lines))


# -- runs ------------------------------------------------------------------------------------------------------------


def _running(seen: Overview) -> Markup:
    going = [run for run in seen.runs if not run.ended and run.phase != "waiting"]
    if not going:
        return quiet("No run is under way.")
    return tag("div", *(_going(seen, run) for run in going))


def _going(seen: Overview, run: RunStatus) -> Markup:
    job, passes = seen.jobs.get(run.run), run.progress.get("passes")
    parts = [tag("h3", run.run), tag("p", tag("strong", run.phase, class_="badge going"), " ", _progress_text(run))]
    if job is not None and isinstance(passes, int | float):
        most = job.method.passes
        bar = tag("progress", max=most, value=min(float(passes), most), aria_label="Passes done")
        parts.append(tag("p", bar, f" {passes:.1f} of at most {most:g} passes", class_="far"))
    curve = seen.curves.get(run.run, [])
    if len(curve) > 1:
        chart = line_chart([ChartLine("certified bound", curve)], "passes", "certified bound", log=True)
        parts.append(tag("figure", chart, class_="small"))
    stop = tag("form", tag("input", type="hidden", name="run", value=run.run), tag("button", "Stop this run"),
               method="post", action="stop", aria_label=f"Stop {run.run}")  # fmt: skip
    return tag("article", *parts, stop, class_="card")


def _progress_text(run: RunStatus) -> str:
    waiting = run.progress.get("awaiting") if run.phase == "accepted" else None
    if waiting:
        return f"The owners of {_listed(waiting)} have not decided yet."
    if run.phase == QUEUED:
        return f"Led by {run.initiator}. Waits for a place: {run.progress.get(QUEUED, '')}."
    if PAUSED in run.progress:
        return f"Led by {run.initiator}. {run.progress[PAUSED].capitalize()}; it goes on by itself once there is room."
    known = {key: run.progress.get(key) for key in ("rows", "objective", "gap")}
    words = {"rows": "common rows", "objective": "objective", "gap": "certified within"}
    shown = [f"{words[key]} {numbers.short(value)}" for key, value in known.items() if isinstance(value, int | float)]
    return f"Led by {run.initiator}. {', '.join(shown).capitalize()}{'.' if shown else ''}"


def _finished(seen: Overview) -> Markup:
    ended = [run for run in reversed(seen.runs) if run.ended]
    if not ended:
        return quiet("No run has ended yet.")
    rows = [
        (
            tag("span", run.run, _papers(run)),
            run.initiator,
            tag("span", _ended(run), class_=_mood(run.phase == "done"), title=run.reason),
            ", ".join(
                f"{wording.metric_name(name).removeprefix('Test ')} {value:.4g}" for name, value in run.metrics.items()
            )
            or (numbers.UNKNOWN if run.phase == "done" else run.reason),
        )
        for run in ended
    ]
    return table(("Run", "Led by", "Verdict", "Test scores, or why not"), rows, "The newest first", stacked=True)


def _ended(run: RunStatus) -> str:
    return verdict_named(run.verdict).words if run.verdict else run.phase.capitalize()


def _papers(run: RunStatus) -> Markup:
    if run.phase != "done":
        return Markup("")
    pages = [("report", "report"), ("audit", "audit"), ("card", "model card")]
    links = [
        tag("a", words, href=f"runs/{run.run}/{page}", aria_label=f"{words} of {run.run}") for page, words in pages
    ]
    return tag("span", *links, class_="links")


def _scores(seen: Overview) -> Markup:
    able = [run.run for run in reversed(seen.runs) if run.phase == "done" or (run.ended and run.kept)]
    if not able:
        return quiet("Rows can be scored once a run has ended well.")
    form = tag(
        "form",
        tag("label", "Run ", tag("select", *(tag("option", name, value=name) for name in able), name="run")),
        tag("label", "Ids, one a line or with commas between ",
            tag("textarea", name="ids", rows=2, required=True, maxlength=20000)),
        tag("button", "Score together with the others"),
        method="post", action="score", class_="decide", aria_label="Score rows",
    )  # fmt: skip
    return tag("div", form, _last_scores(seen.scores) if seen.scores is not None else "")


def _last_scores(scores: Scores) -> Markup:
    if scores.answer is None:
        return tag("p", scores.problem, class_="bad", role="status")
    rows = [
        (id_, "not known to all" if score is None else _short(score, 6), _short(chance))
        for id_, score, chance in scores.answer.rows(scores.ids)
    ][:SCORES_SHOWN]
    caption = f"{len(rows)} of {len(scores.ids)} rows by {scores.run}; every party has counted them"
    return tag("div", table(("Id", "Score", "Probability"), rows, caption, (1, 2)), class_="gap")


def _short(value: Any, digits: int = 4) -> str:
    """One number, or one for each of several classes."""
    each = value if isinstance(value, list) else [value]
    return " ".join(numbers.short(one, digits) for one in each)


# -- ledgers and policy ----------------------------------------------------------------------------------------------


def _ledgers(seen: Overview) -> Markup:
    decided = [
        (line["at"], line["run"], "accepted" if line["accepted"] else "refused", line["by"], line["reason"])
        for line in seen.decisions
    ]
    refused = [
        (one.at, one.peer, f"{one.request} ({one.times} times)" if one.times > 1 else one.request, one.reason)
        for one in seen.refusals
    ]
    changed = [
        (line["at"], line["by"], "; ".join(f"{key}: {how}" for key, how in line["changed"].items()))
        for line in seen.policy_changes
    ]
    return tag(
        "div",
        _rows_given(seen),
        _budget(seen),
        _newest_first("Decisions by hand", ("When", "Run", "Decision", "By", "Reason"), decided),
        _newest_first("Refused lately", ("When", "Asked by", "What", "Why not"), refused),
        _newest_first("Changes of the policy", ("When", "By", "What"), changed),
    )


def _newest_first(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    shown = table(head, reversed(rows), title, stacked=True)
    return tag("div", shown, class_="gap") if rows else Markup("")


def _rows_given(seen: Overview) -> Markup:
    if not seen.uses.total:
        return tag("div", quiet("No row of yours has entered a sum yet."), _most_used(seen))
    askers = sorted(seen.uses.total)
    bars = [(asker, float(seen.uses.total[asker]), 0.0, numbers.count(seen.uses.total[asker])) for asker in askers]
    drawn = value_bars(bars, "Uses of rows by asker")
    given = figure("How often rows of yours have entered a sum, by who asked", drawn, class_="ledger")
    lines = [ChartLine(asker, seen.uses.points[asker], tone) for tone, asker in enumerate(askers)]
    if max(line.points[-1][0] for line in lines) < CHART_FROM_S:
        return tag("div", given, _most_used(seen))
    chart = line_chart(lines, "time_s", "uses of rows so far", log=False, along="time since the first use")
    names = legend([(asker, tone) for tone, asker in enumerate(askers)]) if len(askers) > 1 else ""
    return tag("div", tag("div", given, tag("figure", names, chart), class_="two"), _most_used(seen))


def _most_used(seen: Overview) -> Markup:
    most, cap = seen.most_used, seen.row_cap
    if not cap:
        words = f" The most used row has entered {numbers.count(most)}, or may in a run under way." if most else ""
        return quiet(f"There is no cap on sums (row_cap).{words}")
    words = f" The most used row has entered {most:,} of at most {cap:,} sums, {max(0, cap - most):,} left."
    return tag("p", _meter(most, cap), words, class_="far", id="cap")


def _meter(spent: float, most: float) -> Markup:
    return tag("meter", f"{spent:.4g}", min=0, max=most, high=0.8 * most, value=min(spent, most))


def _budget(seen: Overview) -> Markup:
    budget = seen.budget
    at = f"epsilon at delta {budget.delta:g}"
    if budget.epsilon is None:
        spent = f" Jobs with noise have spent {at[:7]} = {budget.spent:.4g}{at[7:]}." if budget.points else ""
        words = quiet(f"There is no privacy budget: the policy has no epsilon.{spent}")
    else:
        left = max(0.0, budget.epsilon - budget.spent)
        told = f" {at}, over all jobs: {budget.spent:.4g} of {budget.epsilon:g} spent, {left:.4g} left."
        words = tag("p", _meter(budget.spent, budget.epsilon), told, class_="far", id="epsilon")
    if not budget.points or budget.points[-1][0] < CHART_FROM_S:
        return words
    line, levels = ChartLine("epsilon spent", budget.points), [] if budget.epsilon is None else [budget.epsilon]
    chart = line_chart(
        [line], "time_s", at, log=False, levels=levels, along="time since the first job", level_name="budget"
    )
    return tag("div", words, figure("Privacy budget spent", chart, class_="ledger"))


def _policy(seen: Overview) -> Markup:
    return tag(
        "div",
        listed(seen.policy),
        quiet("It stands in ", tag("code", seen.policy_file), "; what is changed there holds at once."),
        tag("p", tag("a", "Change the policy", href="policy", class_="button")),
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


Line = tuple[str, str]
"""A line of text with the element that it becomes: h2, li or p."""


def card_page(text: str) -> str:
    """A model card, which is Markdown of headings, lists and paragraphs alone."""
    title, *lines = (re.sub(r"\\(.)", r"\1", line) for line in text.splitlines() if line.strip())
    marks = {"##": "h2", "-": "li"}
    kinds = [(marks.get(line.partition(" ")[0], "p"), line) for line in lines]
    return _page(
        title.removeprefix("# "), [(kind, line if kind == "p" else line.partition(" ")[2]) for kind, line in kinds]
    )


def audit_page(text: str) -> str:
    """An audit: headings, with indented lines below them."""
    title, *lines = (line for line in text.splitlines() if line.strip())
    return _page(title, [("li", line.strip()) if line.startswith(" ") else ("h2", line) for line in lines])


def _page(title: str, lines: Iterable[Line]) -> str:
    body: list[Markup] = []
    for kind, group in groupby(lines, key=lambda line: line[0]):
        made = [tag(kind, text) for _, text in group]
        body += [tag("ul", *made)] if kind == "li" else made
    return document(title, header(title), tag("main", *body))
