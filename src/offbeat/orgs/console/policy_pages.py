"""The policy in sentences, as a form, and the difference that a change would make: typed, looked at, written.

The form is made of the policy's own types. Nothing of it is checked here: what was typed goes into the file's values,
and the reader of the file says what it does not take.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from offbeat.errors import BadInput, OffbeatError
from offbeat.jobs.methods import METHODS
from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.budget import charges_of
from offbeat.orgs.party_config import read_home
from offbeat.orgs.policy import Names, Policy, Spent, meanings, told_labels
from offbeat.orgs.policy_file import Change, changed, doubts, write_change
from offbeat.report.html import Markup, listed, quiet, tag


def sentences(policy: Policy, has_labels: bool) -> list[str]:
    """What this party agrees to, one sentence for each thing; what nobody may do is said too."""
    return [*_about_jobs(policy), *_about_rows(policy, has_labels), *_about_limits(policy)]


def _about_jobs(policy: Policy) -> list[str]:
    by_hand = "What the policy allows waits until its owner accepts it by hand."
    at_once = "What the policy allows is accepted at once, without asking its owner."
    others = f"or by {_who(policy.initiators)}" if policy.initiators else "alone"
    return [
        f"It takes part in {_jobs(policy.jobs)}, proposed by its owner {others}.",
        by_hand if policy.approve == "by hand" else at_once,
        f"It works on at most {policy.runs_at_once} at a time; at most {policy.runs_waiting} more wait their turn.",
        f"It works with {_who(policy.peers, 'nobody')}; at least {policy.parties_least} parties take part.",
        f"The matching of ids may be led by {_who(policy.leaders)}.",
        f"Methods: {', '.join(policy.methods)}. Sums are hidden by: {', '.join(policy.secure_sum)}. "
        f"At most {policy.passes_most:g} passes.",
    ]


def _about_rows(policy: Policy, has_labels: bool) -> list[str]:
    takes = "It takes derivatives, which tell it others' labels." if policy.derivatives else "It takes no derivatives."
    never = f"Columns that are never used: {', '.join(policy.columns_never)}."
    return [
        f"At least {policy.rows_least:,} common training rows; nobody may bring more than {policy.ids_ratio_most:g} "
        "times its ids.",
        f"Its labels may be learned by {_who(policy.labels_for, 'nobody')}." if has_labels else takes,
        never if policy.columns_never else "No column is kept out.",
    ]


def _about_limits(policy: Policy) -> list[str]:
    end = ", also without a party that does not answer." if policy.predict_without else "."
    account = f"epsilon = {policy.epsilon} at delta {policy.delta:g}"
    budget = f"Its privacy budget over all jobs is {account}; a job without noise is refused."
    return [
        f"Joint predictions may be asked for by its owner and {_who(policy.predictions_for)}, at most "
        f"{policy.prediction_rows_most:,} rows in one question{end}",
        f"A row may enter at most {policy.row_cap:,} sums, ever." if policy.row_cap else "Uses of a row have no cap.",
        "It keeps no privacy budget." if policy.epsilon is None else budget,
        *_about_products(policy),
    ]


def _about_products(policy: Policy) -> list[str]:
    if policy.product_epsilon_most is None:
        return []
    helpers = f", also if {policy.colluders_least} others help whoever asks" if policy.colluders_least else ""
    return [
        f"Products must be private, of epsilon {policy.product_epsilon_most:g} at delta {policy.delta:g} at most in "
        f"one job{helpers}; models that were trained so give no predictions."
    ]


def _jobs(names: Names) -> str:
    if "any" in names or not names:
        return "any job" if names else "no job"
    return f"the job {names[0]}" if len(names) == 1 else f"the jobs {', '.join(names)}"


def _who(names: Names, nobody: str = "nobody else") -> str:
    return "everyone on the roster" if "any" in names else ", ".join(names) or nobody


def costs(job: OrgJob, me: str, policy: Policy, spent: Spent) -> list[str]:
    """What accepting this job would cost this party, in sentences."""
    charges = charges_of(job, me)
    budget = [
        f"It adds no noise to your {charge.what}: nothing is counted against a privacy budget."
        for charge in charges
        if charge.releases is None
    ]
    if any(charge.releases for charge in charges):
        what = " and ".join(charge.what for charge in charges if charge.releases)
        limit = f" of {policy.epsilon:g}" if policy.epsilon is not None else ""
        after = spent(charges, policy.delta)
        budget.append(f"It adds noise to your {what}; epsilon = {after:.4g}{limit} would then be spent in all.")
    cap = f"your cap is {policy.row_cap:,}" if policy.row_cap else "you have set no cap"
    sums = f"{len(job.labels_at) * job.method.passes:,.0f} sums at most, plus surveys"
    sums = f"{job.products.rounds} noisy sums" if job.private_products else sums
    rows = f"Each common row enters about {sums}; {cap}."
    learners, holders = told_labels(job, me), [name for name in job.labels_at if me in told_labels(job, name)]
    labels = [f"Your labels are told to {' and '.join(learners)}."] if learners else []
    learned = [f"You would learn the labels of {' and '.join(holders)}."] if holders else []
    return [*labels, *learned, *budget, rows]


Fields = Mapping[str, Sequence[str]]
"""By name: what a form brought."""

GROUPS = {"jobs": "Jobs", "labels_for": "What may be learned", "predictions_for": "Predictions and budgets"}
"""By the first key of each."""
LISTS = "Names with commas between. Nothing means nobody; “any” means everyone on the roster."
WORDS = {"true": "yes", "false": "no"}

_KEYS = meanings()


# -- from the form ---------------------------------------------------------------------------------------------------


def typed(policy: Policy) -> dict[str, list[str]]:
    """What the form shows of a policy before anybody has typed."""
    return {key: _as_typed(value) for key, value in msgspec.to_builtins(policy).items()}


def _as_typed(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return list(value)
    return ["" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"]


def wanted(fields: Fields) -> dict[str, Any]:
    """What was typed, as the values of the file: a number that is none stays text, for the reader to name."""
    return {key: _value(kind, list(fields.get(key, ()))) for key, (kind, _) in _KEYS.items() if f"has-{key}" in fields}


def _value(kind: Any, given: list[str]) -> Any:
    if isinstance(kind, inspect.VarTupleType):
        parts = given if _choices(kind) else [part for line in given for part in line.split(",")]
        return [name for part in parts if (name := part.strip())]
    text = "".join(given[:1]).strip()
    if isinstance(kind, inspect.BoolType):
        return text == "true" if text in ("true", "false") else text
    if isinstance(kind, inspect.LiteralType):
        return text
    return _number(text) if text or not isinstance(kind, inspect.UnionType) else None


def _number(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, int | float) else text


def _choices(kind: Any) -> list[str]:
    item = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
    if isinstance(item, inspect.BoolType):
        return ["true", "false"]
    return [str(value) for value in item.values] if isinstance(item, inspect.LiteralType) else []


# -- to the page -----------------------------------------------------------------------------------------------------


BACK = tag("p", tag("a", "Back to the console, changing nothing", href="./#policy-section"))


def _problem(text: str) -> Markup:
    return tag("p", text, class_="bad problem", role="alert", id="problem") if text else Markup("")


def form(fields: Fields, parties: Sequence[str], problem: str = "") -> Markup:
    """The questions with what was typed; `problem`: why that cannot be written."""
    titles = list(accumulate(_KEYS, lambda title, key: GROUPS.get(key, title), initial="Jobs"))[1:]
    groups = [
        tag("fieldset", tag("legend", title), *(_question(key, fields.get(key, ())) for _, key in asked))
        for title, asked in groupby(zip(titles, _KEYS, strict=True), key=itemgetter(0))
    ]
    return tag(
        "div",
        _problem(problem),
        quiet(f"{LISTS} On the roster: {', '.join(parties)}."),
        tag("form", *groups, _buttons(("look", "See the difference", "yes")), method="post", action="policy"),
        BACK,
    )


def _question(key: str, given: Sequence[str]) -> Markup:
    (kind, means), there = _KEYS[key], tag("input", type="hidden", name=f"has-{key}", value="1")
    text = means[0].upper() + means[1:]
    name = tag("span", text, " ", tag("code", key))
    if isinstance(kind, inspect.VarTupleType) and _choices(kind):
        boxes = [
            tag("label", tag("input", type="checkbox", name=key, value=one, checked=one in given), f" {one}")
            for one in _choices(kind)
        ]
        return tag("div", name, there, tag("span", *boxes, class_="boxes"), class_="ask", role="group", aria_label=text)
    if choices := _choices(kind):
        options = [tag("option", WORDS.get(one, one), value=one, selected=one in given) for one in choices]
        return tag("label", name, there, tag("select", *options, name=key), class_="ask")
    numeric = not isinstance(kind, inspect.VarTupleType)
    mode = {"inputmode": "decimal"} if numeric else {}
    value = ", ".join(given)
    return tag(
        "label", name, there, tag("input", name=key, value=value, autocomplete="off", maxlength=4000, **mode),
        class_="ask short" if numeric else "ask",
    )  # fmt: skip


def _buttons(*steps: tuple[str, str, str]) -> Markup:
    made = [tag("button", text, name="step", value=step, class_=class_) for step, text, class_ in steps]
    return tag("p", *made, class_="steps")


def difference(
    change: Change, before: Policy, has_labels: bool, fields: Fields, doubts: Sequence[str], problem: str = ""
) -> Markup:
    """What would change, in sentences and in the file; two buttons."""
    if change.before == change.after:
        return tag("div", tag("p", "That is what the policy says already: there is nothing to write."), BACK)
    old, new = sentences(before, has_labels), sentences(change.config.policy, has_labels)
    gone = [tag("del", sentence) for sentence in old if sentence not in new]
    come = [tag("ins", sentence) for sentence in new if sentence not in old]
    hidden = [tag("input", type="hidden", name=key, value=value) for key in fields for value in fields[key]
              if key not in ("step", "mark", "by")]  # fmt: skip
    return tag(
        "div",
        _problem(problem),
        listed(doubts, class_="warnings"),
        listed([*gone, *come], class_="sentences"),
        tag("pre", *_diff_lines(change), tabindex="0", aria_label="The difference in party.toml", id="difference"),
        tag(
            "form",
            *hidden,
            tag("input", type="hidden", name="mark", value=change.mark),
            tag("label", "Your name ", tag("input", name="by", maxlength=200, autocomplete="name")),
            _buttons(("write", "Write it", "yes"), ("edit", "Change it further", "")),
            method="post", action="policy", class_="decide", aria_label="Write the policy",
        ),
        BACK,
    )  # fmt: skip


def _diff_lines(change: Change) -> list[Markup]:
    lines = list(unified_diff(change.before.splitlines(), change.after.splitlines(), n=1, lineterm=""))[2:]
    kinds = {"+": "ins", "-": "del"}
    return [
        tag(kinds.get(line[:1], "span"), line + "\n", class_="at" if line.startswith("@@") else None) for line in lines
    ]


STEPS = ("look", "edit", "write")
FORM, DIFFERENCE = "Change the policy", "The difference"


def policy_answer(file: Path, fields: Fields) -> tuple[str, Markup | None]:
    """A title and the body of the next page; no body: it is written. Nothing is kept between two steps: the form brings
    all that was typed, and the mark of the file as it was."""
    home = read_home(file)
    parties = home.roster().names
    if not fields:
        return FORM, form(typed(home.config.policy), parties)
    step, mark, by = ("".join(fields.get(name, ())[:1]) for name in ("step", "mark", "by"))
    if step not in STEPS:
        raise BadInput(f"expected a step: {', '.join(STEPS)}.")
    if step == "edit":
        return FORM, form(fields, parties)
    try:
        change = changed(home, wanted(fields))
    except OffbeatError as problem:
        return FORM, form(fields, parties, f"{problem} Nothing was written.")
    wrong = ""
    if step == "write":
        try:
            write_change(home, change, mark, by)
            return "", None
        except OffbeatError as problem:
            wrong = str(problem)
    old, found = home.config, doubts(change.config.policy, parties, list(METHODS))
    return DIFFERENCE, difference(change, old.policy, old.data.label is not None, fields, found, wrong)
