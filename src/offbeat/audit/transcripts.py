"""Whether a run was as its folders say: every link's messages against what both of its ends signed.

Needed are run folders of one or more parties, nobody's data and nobody's key. What is found has a party's name where
signatures show whose folder was changed.

    holds        both ends signed the same, and what is in the folders is what they signed
    not signed   messages that the two ends have not both signed: nothing shows who is right about them
    CHANGED      a folder contradicts what its own party signed, or holds a signature that nobody made
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offbeat.errors import BadInput, OffbeatError
from offbeat.jobs.organisations import job_from_text
from offbeat.metrics.record import JOB_FILE, RECORD_FILE, RunRecord
from offbeat.names import counted
from offbeat.orgs.discreet import OWNER_TEXT_MOST, printable
from offbeat.party.verdicts import ended_well
from offbeat.runtime.eventlog import Header, LogReceived, read_log
from offbeat.runtime.grpc.identity import NAME_PATTERN, Member, PinnedRoster, blocks, read_roster, short
from offbeat.runtime.recovery import log_path
from offbeat.runtime.transcript import (
    Chain,
    Direction,
    LinkAccount,
    Receipt,
    Signed,
    TranscriptFile,
    digests_of,
    reach,
    read_transcript,
    transcript_paths,
)

HOLDS, NOT_SIGNED, CHANGED = "holds", "not signed", "CHANGED"
Pair = tuple[str, str]
"""Sender and receiver."""


class Mismatch(NamedTuple):
    """Something that does not fit. `party`: who must answer for it, where that is known."""

    state: str
    party: str
    what: str


class CheckedLink(NamedTuple):
    """One direction of one session: what was found, and one line on it."""

    session: str
    sender: str
    receiver: str
    messages: int
    state: str
    line: str
    findings: tuple[Mismatch, ...]


@dataclass
class LoggedChain:
    """One sender's messages in a receiver's log."""

    chain: Chain
    claims: dict[int, tuple[int, str, str]] = field(default_factory=dict)  # as in a receipt, at numbers of interest
    trouble: str = ""  # the first message that is not where its number says


@dataclass
class Telling:
    """One party's side of one session."""

    folder: Path
    file: TranscriptFile
    roster: PinnedRoster
    log: dict[str, LoggedChain] | None = None  # by sender; None: there is no whole log

    @property
    def party(self) -> str:
        return self.file.party

    def account(self, pair: Pair) -> LinkAccount | None:
        return next((link for link in self.file.links if (link.sender, link.receiver) == pair), None)

    def direction(self, pair: Pair) -> Direction:
        return Direction(self.file.run, self.file.job, *pair)


# -- the whole --------------------------------------------------------------------------------------------------------


def verify_runs(folders: Sequence[Path], roster: Path | None = None) -> dict[str, Any]:
    """What the folders of one run show, as plain values: `links`, `findings`, `state` and `sentence` of the whole."""
    known = read_roster(roster) if roster is not None else None
    tellings, findings = _told(folders)
    _refuse_mixtures(tellings)
    findings += _same_rosters(tellings)
    findings += [finding for folder in folders for finding in _records(folder, tellings)]
    for told in tellings:
        findings += _without_links(told)
        findings += _other_certificates(told, known)
        findings += _read_log(told, _numbers_told(tellings, told))
    findings = list(dict.fromkeys(findings))  # each once, for all sessions
    findings += _left_out(tellings)
    links = [link for session in _sessions(tellings) for link in _links(session)]
    every = [*findings, *(finding for link in links for finding in link.findings)]
    state = _worst(every)
    changed_at = sorted({finding.party for finding in every if finding.state == CHANGED and finding.party})
    return {
        "runs": [str(folder) for folder in folders],
        "state": state,
        "sentence": _sentence(state, changed_at, tellings, links),
        "roster": sorted({told.roster.hash for told in tellings}),
        "links": [{**link._asdict(), "findings": [f._asdict() for f in link.findings]} for link in links],
        "findings": [finding._asdict() for finding in findings],
        "parties": changed_at,
        "limits": _limits(tellings, known),
    }


def verified_text(told: Mapping[str, Any]) -> str:
    """The same as lines: one for each direction of each link, then what else was found, then the verdict."""
    lines = [f"{link['state']:10}  {link['line']}" for link in told["links"]]
    found = [*told["findings"], *(finding for link in told["links"] for finding in link["findings"])]
    lines += [f"{finding['state']:10}  {finding['what']}" for finding in found]
    shown = (printable(line, OWNER_TEXT_MOST) for line in (*lines, "", told["sentence"], *told["limits"], ""))
    return "\n".join(shown)  # whoever made the folders chose some of the words


def _worst(findings: Iterable[Mismatch]) -> str:
    found = {finding.state for finding in findings}
    return CHANGED if CHANGED in found else NOT_SIGNED if NOT_SIGNED in found else HOLDS


def _changed(party: str, what: str) -> Mismatch:
    return Mismatch(CHANGED, party, what)


def _sentence(state: str, changed_at: Sequence[str], tellings: Sequence[Telling], links: Sequence[CheckedLink]) -> str:
    if state == CHANGED:
        who = f" Changed at: {', '.join(changed_at)}." if changed_at else ""
        return f"The run was not as these folders say.{who}"
    if state == NOT_SIGNED:
        return "Nothing was found to be changed, but not everything is signed by both of its ends."
    of = ", ".join(sorted({told.party for told in tellings}))
    messages = counted(sum(link.messages for link in links), "message")
    return f"The run was as these folders say ({of}): {messages} in {len(links)} directions, signed by both ends."


def _limits(tellings: Sequence[Telling], known: PinnedRoster | None) -> list[str]:
    """What a reader must do or know to be convinced."""
    hashes = sorted({told.roster.hash for told in tellings})
    own = f"roster {', '.join(map(short, hashes))}. Compare this with the parties, or give --roster FILE."
    said = [f"Certificates: {own if known is None else f'compared with those of roster {short(known.hash)}.'}"]
    if all(told.log is None for told in tellings):
        said.append("No party's log is here: the signatures were checked, and not the messages.")
    if len({told.folder for told in tellings}) < len({(told.folder, told.party) for told in tellings}):
        said.append("One folder holds several parties: whoever made it had all keys. It shows what was not damaged.")
    return said


# -- reading ----------------------------------------------------------------------------------------------------------


def _told(folders: Sequence[Path]) -> tuple[list[Telling], list[Mismatch]]:
    tellings, findings = [], []
    for folder in folders:
        paths = transcript_paths(folder)
        if not paths:
            findings.append(_without_transcript(folder))
        for path in paths:
            file = read_transcript(path)
            _refuse_names(file, path)
            tellings.append(Telling(path.parent.parent, file, _roster_of(file, path)))
    if not tellings:
        raise BadInput(f"{', '.join(map(str, folders))}: no transcript was found, so there is nothing to compare with.")
    return tellings, findings


def _refuse_names(file: TranscriptFile, path: Path) -> None:
    """A name is part of a path, and of what a reader sees: nobody makes a verdict of one."""
    links = {name for link in file.links for name in (link.sender, link.receiver)}
    odd = [name for name in (file.party, *file.certificates, *links) if not NAME_PATTERN.fullmatch(name)]
    odd += [text for text in (file.run, file.job) if not text.isprintable()]
    if odd:
        raise BadInput(f"{path} holds the name {odd[0][:64]!r}, which no party or run has. The file was edited.")


def _without_links(told: Telling) -> list[Mismatch]:
    """Every party writes down both directions with each other one, also where nothing went over them."""
    others = [name for name in told.file.certificates if name != told.party]
    pairs = [pair for name in others for pair in ((name, told.party), (told.party, name))]
    return [
        _changed(told.party, f"the transcript of '{told.party}' in {told.file.run} says nothing of {_arrow(pair)}")
        for pair in pairs
        if told.account(pair) is None
    ]


def _without_transcript(folder: Path) -> Mismatch:
    record = RunRecord.read(folder)
    if record.runtime not in ("grpc", "processes"):
        raise BadInput(
            f"expected runs between organisations or processes; {folder} ran under {record.runtime!r}, where parties "
            "have no keys and nothing is signed. `offbeat replay --verify` does such a run again."
        )
    owner = str(record.options.get("party", ""))
    return _changed(owner, f"{folder} has no transcript any more, which every such run writes")


def _roster_of(file: TranscriptFile, path: Path) -> PinnedRoster:
    pems = {name: blocks(pem.encode()) for name, pem in sorted(file.certificates.items())}
    members = tuple(Member(name, newest, older_pem=tuple(older)) for name, (newest, *older) in pems.items())
    roster = PinnedRoster(members, tuple(pem.encode() for pem in file.authorities))
    try:
        _ = [member.signed(b"", b"") for member in members], roster.hash
    except (ValueError, AssertionError) as problem:
        raise BadInput(f"{path} holds a certificate that cannot be read: {problem}.") from problem
    return roster


def _refuse_mixtures(tellings: Sequence[Telling]) -> None:
    """Folders of one run, one of each party."""
    runs = sorted({told.file.run.partition("/")[0] for told in tellings})
    if len(runs) > 1:
        raise BadInput(f"expected folders of one run; these are of {', '.join(runs)}. Verify them one after the other.")
    seen: dict[tuple[str, str], Path] = {}
    for told in tellings:
        before = seen.setdefault((told.file.run, told.party), told.folder)
        if before.resolve() != told.folder.resolve():
            raise BadInput(
                f"expected one folder of each party; {before} and {told.folder} both tell of '{told.party}' in "
                f"{told.file.run}. Verify them one after the other."
            )


def _numbers_told(tellings: Sequence[Telling], receiver: Telling) -> dict[str, set[int]]:
    """By sender: the numbers at which the heads of this receiver's log are of interest."""
    wanted: dict[str, set[int]] = {}
    for told in tellings:
        for link in told.file.links:
            if told.file.run == receiver.file.run and link.receiver == receiver.party:
                signed = [link.signed.receipt.number] if link.signed is not None else []
                wanted.setdefault(link.sender, set()).update([link.number, *signed])
    return wanted


def _read_log(told: Telling, wanted: Mapping[str, set[int]]) -> list[Mismatch]:
    """Every sender's chain, made again from the messages in the log, goes into `told.log`."""
    path = log_path(told.folder, told.party)
    if not path.is_file():
        return []
    told.log, whose = {}, f"the log of '{told.party}' in {told.file.run}"
    try:
        for _, record in read_log(path):
            if isinstance(record, LogReceived) and record.sender not in told.file.certificates:
                return [_changed(told.party, f"{whose} has messages of somebody who is not in its transcript")]
            if isinstance(record, Header):
                if (record.party, record.run, record.job) != (told.party, told.file.run, told.file.job):
                    return [_changed(told.party, f"{whose} is the log of another run or party")]
            elif isinstance(record, LogReceived):
                origin = told.direction((record.sender, told.party)).origin
                logged = told.log.setdefault(record.sender, LoggedChain(Chain(origin)))
                _take(logged, record, wanted.get(record.sender, set()))
    except (msgspec.MsgspecError, OverflowError, StopIteration):  # no log of ours has such records
        return [_changed(told.party, f"{whose} holds what no party writes")]
    return []


def _take(received: LoggedChain, record: LogReceived, wanted: set[int]) -> None:
    chain, number = received.chain, record.number
    if record.jump:
        chain.jump(number - 1, record.jump)
    elif number != chain.number + 1 and not received.trouble:
        received.trouble = f"message {number} stands where {chain.number + 1} was next"
    chain.add(number, record.frame)
    chain.keep_from(number)
    if number in wanted:
        missed, gaps = chain.gaps(number)
        received.claims.setdefault(number, (missed, gaps.hex(), chain.head.hex()))


# -- folders ----------------------------------------------------------------------------------------------------------


def _other_certificates(told: Telling, known: PinnedRoster | None) -> list[Mismatch]:
    if known is None:
        return []
    pinned = {member.name: set(member.fingerprints) for member in known.members}
    shown = {member.name: set(member.fingerprints) for member in told.roster.members}
    for name in shown.keys() - pinned.keys():
        raise BadInput(
            f"the roster given here does not list '{name}', a party of {told.file.run}. Give the roster whose hash the "
            "parties compared when the run was made."
        )
    return [
        _changed(
            told.party, f"the folder of '{told.party}' has another certificate of '{name}' than the roster given here"
        )
        for name, marks in shown.items()
        if not marks & pinned[name]
    ]


def _same_rosters(tellings: Sequence[Telling]) -> list[Mismatch]:
    if all(told.roster.agrees(other.roster.pins, other.roster.hash) for told, other in pairwise(tellings)):
        return []
    which = ", ".join(f"{told.party}: {short(told.roster.hash)}" for told in tellings)
    return [_changed("", f"the folders name different certificates ({which}); --roster FILE tells which are true")]


def _records(folder: Path, tellings: Sequence[Telling]) -> list[Mismatch]:
    """Whether the record names these transcripts, and whether the job is the one that was signed."""
    mine = [told for told in tellings if folder in (told.folder, told.folder.parent)]
    owner, found = ", ".join(sorted({told.party for told in mine})), []
    if (folder / RECORD_FILE).is_file():
        kept = RunRecord.read(folder).transcripts
        if kept != digests_of(transcript_paths(folder), folder):
            found.append(_changed(owner, f"record.json of '{owner}' names other transcripts than the folder holds"))
    else:
        found.append(Mismatch(NOT_SIGNED, owner, f"the folder of '{owner}' has no record: the run did not end there"))
    if any(" " in told.file.job for told in mine):
        found += _of_job(folder, owner, mine)
    return found


def _of_job(folder: Path, owner: str, mine: Sequence[Telling]) -> list[Mismatch]:
    """Sessions between organisations are bound to a digest of their own and to that of the job. Its parties take part
    in each of them, and a run that has a record has had them all."""
    try:
        job = job_from_text((folder / JOB_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, OffbeatError):
        job = None
    if job is None or any(told.file.job.rpartition(" ")[2] != job.digest for told in mine):
        return [_changed(owner, f"job.toml of '{owner}' is not the job that the messages belong to")]
    found = [
        _changed(owner, f"the transcript of '{owner}' in {told.file.run} names other parties than the job")
        for told in mine
        if set(told.file.certificates) != set(job.parties)
    ]
    if (folder / RECORD_FILE).is_file():
        there = {told.file.run.rpartition("/")[2] for told in mine}
        lacks = "the folder of '{}' has no transcript of its {}"
        found += [_changed(owner, lacks.format(owner, what)) for what in ("align", "train") if what not in there]
        if job.rows.test_fraction and ended_well(RunRecord.read(folder).verdict) and "test" not in there:
            found.append(Mismatch(NOT_SIGNED, owner, lacks.format(owner, "test")))
    return found


def _left_out(tellings: Sequence[Telling]) -> list[Mismatch]:
    """Sessions that others tell of, of a party whose folder is here and says nothing of them."""
    here, found = {told.party for told in tellings}, []
    for session in _sessions(tellings):
        files = [told.file for told in session.values()]
        named = {name for file in files for link in file.links for name in (link.sender, link.receiver)}
        for name in sorted(named & here - session.keys()):
            what = f"the folder of '{name}' has no transcript of {files[0].run}, which others tell of"
            found.append(Mismatch(NOT_SIGNED, name, what))
    return found


def _sessions(tellings: Sequence[Telling]) -> list[dict[str, Telling]]:
    runs: dict[str, dict[str, Telling]] = {}
    for told in tellings:
        runs.setdefault(told.file.run, {})[told.party] = told
    return list(runs.values())


# -- links ------------------------------------------------------------------------------------------------------------


def _links(session: Mapping[str, Telling]) -> list[CheckedLink]:
    pairs = {(link.sender, link.receiver) for told in session.values() for link in told.file.links}
    return [_link(session, pair) for pair in sorted(pairs)]


def _link(session: Mapping[str, Telling], pair: Pair) -> CheckedLink:
    ends = {name: session[name] for name in pair if name in session}
    findings: list[Mismatch] = []
    claims: list[Signed] = []
    for name, told in ends.items():
        account = told.account(pair)
        if account is None:
            findings.append(_changed(name, f"the transcript of '{name}' says nothing of {_arrow(pair)}"))
        elif account.signed is not None:
            forged = _forged(account.signed, told, pair)
            findings += [_changed(name, what) for what in forged]
            claims += [] if forged else [account.signed]
    claims.sort(key=reach)
    findings += _conflicts(claims, pair)
    findings += _contradictions(claims, ends, pair)
    log = ends[pair[1]].log if pair[1] in ends else None
    if log is not None:
        findings += _against_log(claims, log.get(pair[0]), ends[pair[1]].account(pair), pair)
    findings += [] if _worst(findings) == CHANGED else _unsigned(claims, ends, pair)
    state = _worst(findings)
    number = claims[-1].receipt.number if claims else 0
    run = next(iter(session.values())).file.run
    return CheckedLink(run, *pair, number, state, _line(run, pair, claims, state, log), tuple(findings))


def _arrow(pair: Pair) -> str:
    return f"messages from '{pair[0]}' to '{pair[1]}'"


def _line(run: str, pair: Pair, claims: Sequence[Signed], state: str, log: object) -> str:
    head = f"{run}: {pair[0]} -> {pair[1]}: "
    if not claims:
        return f"{head}no signatures of both ends"
    receipt = claims[-1].receipt
    left_out = f", {receipt.missed:,} of them left out while '{pair[1]}' was lost" if receipt.missed else ""
    kept = "has them" if log is not None else "is not here"
    kept = "" if state == CHANGED else f"; the log of '{pair[1]}' {kept}"
    return f"{head}both signed {counted(receipt.number, 'message')}{left_out}{kept}"


def _forged(signed: Signed, told: Telling, pair: Pair) -> list[str]:
    """Signatures in this folder that nobody made."""
    content = signed.receipt.content(told.direction(pair))
    by = ((pair[0], signed.by_sender), (pair[1], signed.receipt.signature))
    return [
        f"the folder of '{told.party}' holds a signature of '{name}' over {_arrow(pair)} that '{name}' did not make"
        for name, signature in by
        if name not in told.roster.names or not told.roster.member(name).signed(content, signature)
    ]


def _conflicts(claims: Sequence[Signed], pair: Pair) -> list[Mismatch]:
    """Both ends signed two claims that cannot both be true: each of them lied once."""
    for one, other in pairwise(claims):
        a, b = one.receipt, other.receipt
        if (a.number == b.number and a.claim != b.claim) or (a.last and b.number > a.number):
            return [_changed(name, f"'{name}' signed two different accounts of {_arrow(pair)}") for name in pair]
    return []


def _contradictions(claims: Sequence[Signed], ends: Mapping[str, Telling], pair: Pair) -> list[Mismatch]:
    """A party's own account against what it signed."""

    def fits(account: LinkAccount, receipt: Receipt) -> bool:
        if account.number == receipt.number:
            return account.head == receipt.head
        return account.number > receipt.number and not receipt.last

    accounts = {name: told.account(pair) for name, told in ends.items()}
    return [
        _changed(name, f"the transcript of '{name}' tells of other {_arrow(pair)} than '{name}' signed")
        for name, account in accounts.items()
        if account is not None and not all(fits(account, signed.receipt) for signed in claims)
    ]


def _against_log(
    claims: Sequence[Signed], log: LoggedChain | None, account: LinkAccount | None, pair: Pair
) -> list[Mismatch]:
    """The receiver's log against what it signed, and against what its transcript says."""
    receiver, log = pair[1], log or LoggedChain(Chain(b""))  # None: nothing of this sender is in it
    end, good = log.chain.number, 0
    for receipt in (signed.receipt for signed in claims):
        same = not receipt.number or log.claims.get(receipt.number) == receipt.claim
        if same and (end == receipt.number or not receipt.last):
            good = receipt.number
            continue
        where = f"somewhere from {good + 1:,} to {receipt.number:,}"
        if same or end < receipt.number:
            where = f"it signed {receipt.number:,}, and its log ends with number {end:,}"
        what = f"the log of '{receiver}' has other messages than it signed ({_arrow(pair)}: {log.trouble or where})"
        return [_changed(receiver, what)]
    if account is None or end == account.number == 0:
        return []
    told = f"the transcript of '{receiver}' tells of {account.number:,} {_arrow(pair)}, its log holds {end:,}"
    if account.number and log.claims.get(account.number, (0, "", ""))[2] != account.head.hex():
        return [_changed(receiver, told + (f": {log.trouble}" if log.trouble else ""))]
    return [Mismatch(NOT_SIGNED, receiver, told)] if end > account.number else []


def _unsigned(claims: Sequence[Signed], ends: Mapping[str, Telling], pair: Pair) -> list[Mismatch]:
    """What one end tells of, and both have not signed."""
    number = claims[-1].receipt.number if claims else 0
    accounts = {name: account for name, told in ends.items() if (account := told.account(pair)) is not None}
    if claims and all(account.number <= number for account in accounts.values()):
        ended = claims[-1].receipt.last
        return [] if ended else [Mismatch(NOT_SIGNED, "", f"{_arrow(pair)}: that none followed is not signed")]
    if not claims and not any(account.number for account in accounts.values()):
        return [Mismatch(NOT_SIGNED, "", f"{_arrow(pair)}: none, and both have not signed so")]
    said = " and ".join(f"'{name}' tells of {account.number:,}" for name, account in accounts.items())
    return [Mismatch(NOT_SIGNED, "", f"{_arrow(pair)}: {said}, both signed {number:,}")]
