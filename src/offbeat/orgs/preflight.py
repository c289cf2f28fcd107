"""`offbeat party check`: everything that can be known to be wrong before a job, and how to mend it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from offbeat.errors import OffbeatError
from offbeat.families.statements import about_sums
from offbeat.jobs.methods import METHODS
from offbeat.names import counted
from offbeat.orgs.control import Ping, Pong
from offbeat.orgs.discreet import printable
from offbeat.orgs.history import misfits
from offbeat.orgs.kept_runs import RunNames
from offbeat.orgs.lines import PeerCalls
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy_file import CHANGES, doubts
from offbeat.orgs.rows import load_table
from offbeat.orgs.run_queue import DECISIONS
from offbeat.orgs.tokens import id_column
from offbeat.runtime.grpc.identity import PinnedRoster, out_of_time, short, validity
from offbeat.runtime.grpc.session import we_dial
from offbeat.runtime.grpc.wire import PROTOCOL_VERSION, offbeat_version

CLOCK_DIFFERENCE_S = 60.0
EXPIRES_SOON_DAYS = 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: fine, a warning, or wrong; with what to do about it."""

    what: str
    state: str  # "ok", "warning" or "wrong"
    detail: str


def check_home(home: Home, *, reach: bool = True) -> list[Finding]:
    """All findings, the settings first; a check that cannot be made because an earlier one failed is left out."""
    findings = [*_tried("keys", lambda: _keys(home)), *_tried("data", lambda: _data(home)), *_policy(home)]
    if any(f.what == "keys" and f.state == "wrong" for f in findings):
        return findings
    roster = home.roster()
    findings += _tried("roster", lambda: _roster(home, roster))
    findings += [*_named(home, roster), *_history(home, roster)]
    if reach:
        for name in roster.names:
            if name != home.name:
                findings += _tried(f"peer {name}", lambda name=name: _peer(home, roster, name))  # type: ignore[misc]
    return findings


def _tried(what: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except OffbeatError as problem:
        return [Finding(what, "wrong", str(problem))]


def _keys(home: Home) -> Iterator[Finding]:
    identity = home.identity()
    end = validity(identity.certificate_pem)[1]
    left = (end - datetime.now(UTC)).days
    if trouble := out_of_time(identity.certificate_pem):
        yield Finding("keys", "wrong", f"the certificate {trouble}")
    elif left < EXPIRES_SOON_DAYS:
        yield Finding(
            "keys", "warning", f"the certificate ends in {counted(left, 'day')} ({end:%Y-%m-%d}); rotate it in time."
        )
    else:
        yield Finding("keys", "ok", f"key and certificate of '{home.name}' belong together, valid to {end:%Y-%m-%d}")


def _roster(home: Home, roster: PinnedRoster) -> Iterator[Finding]:
    others = [name for name in roster.names if name != home.name]
    if len(others) < 2:
        yield Finding(
            "roster",
            "warning",
            f"the roster lists {counted(len(others) + 1, 'party')}; sums hide shares from three on.",
        )
    yield Finding(
        "roster", "ok", f"{counted(len(roster.members), 'party')}; compare its hash by telephone: {short(roster.hash)}"
    )
    for member in roster.members:
        if trouble := out_of_time(member.certificate_pem):
            yield Finding("roster", "wrong", f"the certificate of '{member.name}' {trouble}")
        if member.older_pem:
            detail = f"two certificates of '{member.name}' are taken; `offbeat keys trust` the new one once it is shown"
            yield Finding("roster", "warning", detail)
    me = roster.member(home.name)
    for name in others:
        we_dial(me, roster.member(name))
    if me.address and not home.config.listen:
        yield Finding("roster", "wrong", f"the others call us at {me.address}, but `listen` in party.toml is empty.")


def _history(home: Home, roster: PinnedRoster) -> list[Finding]:
    """Lines of what was decided that do not fit what this party signed."""
    paths = [path for name in (DECISIONS, CHANGES) if (path := home.ledger / name).is_file()]
    odd = {path: misfits(path, roster.member(home.name)) for path in paths}
    return [
        Finding("history", "warning", f"{path}: lines {', '.join(map(str, lines))} are not as they were signed, or by "
                "a key whose certificate is no longer in the roster.")
        for path, lines in odd.items()
        if lines
    ]  # fmt: skip


def _data(home: Home) -> Iterator[Finding]:
    table = load_table(home)
    column = id_column(table.ids, b"preflight")
    labels = "with labels" if table.labels is not None else "without labels"
    size = f"{counted(len(table), 'row')}, {counted(len(table.columns), 'column')}"
    yield Finding("data", "ok", f"{table.name}: {size}, {labels}")
    for note in column.notes(home.name):
        yield Finding("data", "warning", note)
    least = home.config.policy.rows_least
    if len(column.tokens) < least:
        yield Finding(
            "data",
            "wrong",
            f"{counted(len(column.tokens), 'distinct id')}: fewer than the policy's rows_least = {least}.",
        )


def _policy(home: Home) -> list[Finding]:
    """What nobody may do yet, because the owner has named nobody; and what is allowed that hides less than it seems."""
    policy = home.config.policy
    weak = [warning for scheme in policy.secure_sum for warning in about_sums(3, scheme)]
    return [*_shut(home), *(Finding("policy", "warning", f"secure_sum allows it: {told}") for told in weak)]


def _named(home: Home, roster: PinnedRoster) -> list[Finding]:
    return [Finding("policy", "warning", doubt) for doubt in doubts(home.config.policy, roster.names, list(METHODS))]


def _shut(home: Home) -> list[Finding]:
    policy = home.config.policy
    needed = ("jobs", "leaders") if home.config.data.label is None else ("jobs", "labels_for")
    shut = [key for key in needed if not getattr(policy, key) and (key != "labels_for" or policy.epsilon is None)]
    if not shut:
        return []
    return [Finding("policy", "warning", f"{', '.join(shut)} name nobody: jobs that need them will be refused.")]


def _peer(home: Home, roster: PinnedRoster, name: str) -> Iterator[Finding]:
    what = f"peer {name}"
    if not roster.member(name).address:
        yield Finding(what, "ok", "has no address: it will call us")
        return
    begin = time.time()
    answer = PeerCalls(home.identity(), roster).call(name, Ping(), timeout_s=5.0)
    assert isinstance(answer, Pong)
    theirs = printable(answer.offbeat)
    if answer.protocol != PROTOCOL_VERSION:
        yield Finding(what, "wrong", f"runs offbeat {theirs}, we run {offbeat_version()}: install the same version.")
    if answer.roster != roster.hash:
        both = f"{short(answer.roster)}, ours {short(roster.hash)}"
        detail = f"has another roster ({both}): jobs work between parties whose certificates are pinned alike."
        yield Finding(what, "warning", detail)
    if found := RunNames(home.ledger).set_back(name, answer.last):
        yield Finding(what, "wrong", found)
    skew_s = answer.time_s - (begin + time.time()) / 2
    if abs(skew_s) > CLOCK_DIFFERENCE_S:
        yield Finding(
            what, "warning", f"its clock differs from ours by {skew_s:+.0f} s; certificates may seem invalid."
        )
    took_ms = (time.time() - begin) * 1e3
    yield Finding(what, "ok", f"answers as '{printable(answer.name)}', offbeat {theirs}, in {took_ms:.0f} ms")
