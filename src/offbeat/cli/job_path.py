"""offbeat job path: the same job with one strength of the penalty after the other, each begun with the model before."""

from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from offbeat.cli.orgs import SUBMIT_WITHIN_S, HomeOption, PartyOption, ask, followed, job, refuse_failed
from offbeat.cli.output import Json, say, show
from offbeat.errors import BadInput

JUDGED_BY = {"test_log_loss": min, "test_deviance": min, "test_auc": max, "test_rmse": min}
"""Metrics of held-out rows, the one that is looked at first, and what is best."""


@job.command("path")
def job_path(
    file: Annotated[Path, typer.Argument(metavar="JOB", help="The job file; its strength is not looked at.")],
    strength: Annotated[list[float], typer.Option("--strength", help="A strength to try; give two or more.")],
    party: PartyOption = "",
    home: HomeOption = Path("."),
    json: Json = False,
) -> None:
    """Choose the penalty's strength between organisations: a run for each, from the strongest on, compared by the test
    rows that all parties score together."""
    from offbeat.jobs.organisations import read_job
    from offbeat.orgs.control import Submit
    from offbeat.orgs.disclosure import disclosures

    wanted, strengths = read_job(file), sorted(set(strength), reverse=True)
    _check(wanted, strengths)
    lines = [*disclosures(wanted), f"All of this {len(strengths)} times: every strength is a run of its own."]
    say("\n".join(["What these jobs tell whom:", *(f"  - {line}" for line in lines)]))
    tried: list[dict[str, Any]] = []
    for one in strengths:
        model = msgspec.structs.replace(wanted.model, strength=one)
        method = msgspec.structs.replace(wanted.method, start=tried[-1]["run"] if tried else wanted.method.start)
        next_job = msgspec.structs.replace(wanted, model=model, method=method)
        run = ask(home, party, Submit(next_job.text), SUBMIT_WITHIN_S).run
        say(f"strength {one:g}: run {run}")
        status = followed(run, party, home)
        refuse_failed(status)
        tried.append({"strength": one, "run": run, "passes": status.progress.get("passes"), **status.metrics})
        metric = _metric(tried[-1], wanted.labels_at[0])
    best = JUDGED_BY[metric](tried, key=lambda found: found[metric])
    say(f"the best by {metric} is strength {best['strength']:g} ({best[metric]:.4g}): run {best['run']}")
    show({"by": metric, "best": best, "tried": tried}, json)


def _check(wanted: Any, strengths: list[float]) -> None:
    if len(strengths) < 2 or not all(0.0 < one < inf for one in strengths):
        raise BadInput("expected two or more different strengths above 0, as in --strength 0.1 --strength 0.01.")
    if wanted.embeds or wanted.model.penalty != "l2" or not wanted.rows.test_fraction:
        raise BadInput(
            "a path of strengths is for linear methods with the penalty 'l2' (l1_ratio too) and test rows: set "
            "test_fraction above 0 under [rows]."
        )


def _metric(found: dict[str, Any], learner: str) -> str:
    for metric in JUDGED_BY:
        if metric in found:
            return metric
    raise BadInput(
        f"run {found['run']} has ended, and '{learner}' told no metric of its test rows that models are compared by "
        f"({', '.join(JUDGED_BY)}): where all test labels are alike there is none. Hold more rows out (test_fraction)."
    )
