"""Changing the policy in a party.toml: the values that change, and nothing else.

The owner's comments, order and spelling stay: tomlkit sees to that. The new text is read by the daemon's own reader,
and must hold exactly what was wanted and, outside the policy, exactly what it held before; else nothing is written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from msgspec import to_builtins

from offbeat.errors import BadInput
from offbeat.names import did_you_mean
from offbeat.orgs.durable import locked, read_lines, write_durably
from offbeat.orgs.history import add_signed
from offbeat.orgs.party_config import Home, PartyConfig, config_from
from offbeat.orgs.policy import Policy
from offbeat.orgs.rows import load_table
from offbeat.settings import parse, toml_value

CHANGES = "policy.jsonl"
NAMING_PARTIES = ("initiators", "leaders", "peers", "labels_for", "predictions_for")


@dataclass(frozen=True, slots=True)
class Change:
    """A party.toml as it is, and as it would be."""

    before: str
    after: str
    config: PartyConfig  # as it would be

    @property
    def mark(self) -> str:
        """Names the text that was changed: another one must not be overwritten."""
        return mark_of(self.before)


def _same(new: Any, old: Any) -> bool:
    """The order of names says nothing."""
    lists = isinstance(new, list) and isinstance(old, list | tuple)
    return bool(sorted(new) == sorted(old) if lists else new == old)


def mark_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def changed(home: Home, wanted: Mapping[str, Any]) -> Change:
    """The file with these values of its policy; None takes a key out. Raises `BadInput` by what the reader refuses."""
    before = _text(home.file)
    tree = parse(before, home.file)
    old, holds = tree.get("policy", {}), to_builtins(home.config.policy)
    changes = {key: value for key, value in wanted.items() if not _same(value, old.get(key, holds[key]))}
    new = {key: value for key, value in {**old, **changes}.items() if value is not None}
    config = config_from({**tree, "policy": new}, home.file)
    if "columns_never" in changes:
        load_table(Home(config, home.folder, home.file))  # a misspelt column would keep nothing out
    after = edited(before, changes)
    if parse(after, home.file) != ({**tree, "policy": new} if changes else tree):
        raise BadInput(
            f"{home.file} writes its policy in a way that this page cannot change: expected a section [policy] with "
            "one key a line, as `offbeat party init` writes it. Nothing was written; change the file in an editor."
        )
    return Change(before, after, config)


def write_change(home: Home, change: Change, mark: str, by: str) -> None:
    """Put the new text in place, if the file is still the one that was looked at; note who changed what."""
    if not by.strip():
        raise BadInput("a change of the policy has a name under it; say who changes it.")
    with locked(home.private / "party.lock"):
        if not mark == change.mark == mark_of(_text(home.file)):
            raise BadInput(
                f"{home.file} has changed since this difference was shown, so nothing was written. Look at the new "
                "difference, and write it if it is still what you want."
            )
        mode = home.file.stat().st_mode & 0o777
        new = differences(home.config.policy, change.config.policy)
        add_signed(home.ledger / CHANGES, home.identity(), by=by.strip(), changed=new)
        write_durably(home.file, change.after.encode())
        home.file.chmod(mode)


def policy_history(home: Home) -> list[dict[str, Any]]:
    """Who changed what of the policy, through the console."""
    return read_lines(home.ledger / CHANGES)[0]


def differences(old: Policy, new: Policy) -> dict[str, str]:
    """By key: the value before and after, as they stand in the file."""
    pairs = {key: (getattr(old, key), getattr(new, key)) for key in Policy.__struct_fields__}
    return {key: f"{_shown(was)} → {_shown(now)}" for key, (was, now) in pairs.items() if was != now}


def _shown(value: Any) -> str:
    return "none" if value is None else toml_value(value)


def doubts(policy: Policy, roster: Sequence[str], methods: Sequence[str]) -> list[str]:
    """Names that the reader takes and nobody has: most often a slip of the keyboard."""
    found = [
        f"{key} names '{name}', and no party of the roster is called so. {did_you_mean(name, roster)}"
        for key in NAMING_PARTIES
        for name in getattr(policy, key)
        if name != "any" and name not in roster
    ]
    strange = [name for name in policy.methods if name != "any" and ":" not in name and name not in methods]
    return found + [f"methods names '{name}', which is no method. {did_you_mean(name, methods)}" for name in strange]


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """The text with other values of these keys of [policy]; None takes a key out. What is new comes last."""
    if not changes:
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    document = tomlkit.parse(text.replace("\r\n", "\n"))
    policy: Any = document.setdefault("policy", tomlkit.table())
    written, behind = policy.value.body, []
    while written and written[-1][0] is None:  # empty lines, and comments on the section that follows
        behind.append(written.pop()[1])
    for key, value in changes.items():
        if value is None:
            policy.pop(key, None)
        else:
            policy[key] = value
    for line in reversed(behind):
        policy.add(line)
    return tomlkit.dumps(document).replace("\n", newline)


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8-sig")
