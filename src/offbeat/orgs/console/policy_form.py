"""The policy as a form: a question for each key, the difference before it is written, and what is wrong in words.

The form is made of the policy's own types. Nothing of it is checked here: what was typed goes into the file's values,
and the reader of the file says what it does not take.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import Any

import msgspec
from msgspec import inspect

from offbeat.orgs.console.policy_words import sentences
from offbeat.orgs.policy import Policy
from offbeat.orgs.policy_file import Change
from offbeat.report.html import Markup, tag

Fields = Mapping[str, Sequence[str]]
"""By name: what a form brought."""

QUESTIONS: dict[str, dict[str, str]] = {
    "Jobs": {
        "jobs": "Jobs to take part in, by name",
        "initiators": "Who else may propose one",
        "approve": "Who decides about what this policy allows",
        "runs_at_once": "Most runs at a time; further ones wait",
        "runs_waiting": "Most runs that wait",
        "peers": "With whom to work",
        "parties_least": "Fewest parties in a job",
        "leaders": "Who else may lead the matching of ids (it learns which of its ids you have)",
        "methods": "Methods",
        "secure_sum": "How sums may be hidden",
        "passes_most": "Most passes of a job",
        "on_loss": "What a job may do when a party is lost",
    },
    "What may be learned": {
        "labels_for": "Who may learn your labels",
        "derivatives": "Take derivatives, which tell you others' labels",
        "columns_never": "Columns that are never used",
        "rows_least": "Fewest common training rows",
        "test_rows_least": "Fewest test rows, if there are any",
        "ids_ratio_most": "Nobody may bring more than so many times your ids",
    },
    "Predictions and budgets": {
        "predictions_for": "Who else may ask for joint predictions",
        "prediction_rows_most": "Most rows in one question",
        "predict_without": "Predict without a party that does not answer",
        "row_cap": "Most sums that one row may ever enter (0: no cap)",
        "epsilon": "Privacy budget over all jobs, as epsilon (empty: none is kept)",
        "delta": "Delta of that budget",
        "product_epsilon_most": "Products must be private, of at most this epsilon in a job (empty: they may be exact)",
        "colluders_least": "Noise must suffice if so many others help whoever asks",
    },
}
LISTS = "Names with commas between. Nothing means nobody; “any” means everyone on the roster."
WORDS = {"true": "yes", "false": "no"}

_TYPES: dict[str, Any] = {field.name: field.type for field in inspect.type_info(Policy).fields}  # type: ignore[attr-defined]


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
    return {key: _value(_TYPES[key], list(fields.get(key, ()))) for key in _TYPES if f"has-{key}" in fields}


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
    groups = [
        tag(
            "fieldset",
            tag("legend", title),
            *(_question(key, text, fields.get(key, ())) for key, text in asked.items()),
        )
        for title, asked in QUESTIONS.items()
    ]
    return tag(
        "div",
        _problem(problem),
        tag("p", f"{LISTS} On the roster: {', '.join(parties)}.", class_="quiet"),
        tag("form", *groups, _buttons(("look", "See the difference", "yes")), method="post", action="policy"),
        BACK,
    )


def _question(key: str, text: str, given: Sequence[str]) -> Markup:
    kind, there = _TYPES[key], tag("input", type="hidden", name=f"has-{key}", value="1")
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
    gone = [tag("li", tag("del", sentence)) for sentence in old if sentence not in new]
    come = [tag("li", tag("ins", sentence)) for sentence in new if sentence not in old]
    hidden = [tag("input", type="hidden", name=key, value=value) for key in fields for value in fields[key]
              if key not in ("step", "mark", "by")]  # fmt: skip
    return tag(
        "div",
        _problem(problem),
        tag("ul", *(tag("li", doubt) for doubt in doubts), class_="warnings") if doubts else "",
        tag("ul", *gone, *come, class_="sentences") if gone or come else "",
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
