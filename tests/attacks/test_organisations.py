"""Attacks of members on an organisation's daemon: alignment, control calls, names of runs, predictions, ledgers.

Each is run as the attacker would run it, with everything but the others' secrets. It must get no more than chance, or a
refusal that names the party and the reason.
"""

import dataclasses
import io
import logging
import os
import re
import shutil
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from offbeat.errors import BadData, BadInput, BadJob, OffbeatError, PeerFailed, Refused
from offbeat.jobs import elsewhere
from offbeat.jobs.organisations import job_from_text
from offbeat.orgs import control, daemon_log, run_queue, runs
from offbeat.orgs.align_psi import Aligner, Answered, Blinded, Joined, ReadyToAlign, Seen, marks_of
from offbeat.orgs.blinding import multiplied, points_of
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.control import Propose
from offbeat.orgs.daemon import Daemon
from offbeat.orgs.lines import PeerCalls
from offbeat.orgs.party_config import check_members, example, read_home
from offbeat.orgs.post import Post
from offbeat.orgs.predict import Declined, Predictor, Wanted
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.rows import OwnModel, own_rows, read_model, write_model
from offbeat.orgs.standing import Answering
from offbeat.orgs.tokens import id_column, tokens_of
from offbeat.orgs.x25519 import POINT_BYTES
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Received, Send, Started
from offbeat.party.masked_sum import SURVEY, ShareAsked, ShareGiven, SumOptions
from offbeat.runtime.certificates import named, new_key, private_pem, public_pem, unsigned
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.identity import (
    Identity,
    Member,
    PinnedRoster,
    new_authority,
    new_identity,
    new_request,
    sign_request,
    tls_name,
    write_private,
    write_roster,
)
from offbeat.runtime.grpc.server import StreamServer

SALT = b"known to every party of the job."
NAMES = ("bank", "shop", "telecom")


# -- alignment --------------------------------------------------------------------------------------------------------


def column(ids: Sequence[object]):  # type: ignore[no-untyped-def]
    return id_column(np.array(ids, dtype=object), SALT)


def members(tables: dict[str, list[str]], said: int) -> dict[str, Aligner]:
    """Honest members of an alignment that 'evil' leads, having said that it brings so many ids."""
    names = ("evil", *tables)
    sizes = {"evil": said, **{name: len(set(ids)) for name, ids in tables.items()}}
    return {
        name: Aligner(name, names, "evil", column(ids), sizes=sizes, secret=os.urandom(32))
        for name, ids in tables.items()
    }


def asked(member: Aligner, bucket: int, points: bytes) -> Answered:
    (work,) = member.handle(Received("evil", Blinded(bucket, points)))
    assert isinstance(work, Compute) and work.job is not None
    (answer,) = member.handle(Computed(work.ticket, work.job()))
    assert isinstance(answer, Send) and isinstance(answer.body, Answered)
    return answer.body


def found(key: bytes, guesses: list[str], answer: Answered) -> list[str]:
    marks = set(marks_of(multiplied(key, answer.own, "m"), "m"))
    return [guess for i, guess in enumerate(guesses) if answer.marks[16 * i : 16 * i + 16] in marks]


def test_a_leader_tries_out_a_whole_list_of_people() -> None:
    """Before: 429 of 429 ids in three requests, whatever the leader had said of itself."""
    key, space = os.urandom(32), [f"07{i:06d}" for i in range(3000)]
    table = [f"07{i:06d}" for i in range(0, 5000, 7)]
    (victim,) = members({"m": table}, said=3).values()
    victim.handle(Started())
    with pytest.raises(
        PeerFailed, match="'m' refuses the alignment: 'evil' asks for 1000 ids, more than the 3 it said"
    ):
        asked(victim, 0, multiplied(key, points_of(tokens_of(space[:1000], SALT)), "evil"))
    # What it said is what it gets, once: the attack itself works.
    (victim,) = members({"m": table}, said=70).values()
    answer = asked(victim, 0, multiplied(key, points_of(tokens_of(space[:70], SALT)), "evil"))
    assert found(key, space[:70], answer) == [guess for guess in space[:70] if guess in table]
    with pytest.raises(PeerFailed, match="'evil' asks for bucket 0 of 1 again"):
        asked(victim, 0, multiplied(key, points_of(tokens_of(space[70:140], SALT)), "evil"))


def test_blinded_ids_are_not_found_by_guessing() -> None:
    """The salt is known; the key is not. Every guess at a blinded id is compared in every way without the key."""
    table = [f"07{i:06d}" for i in range(200)]
    (victim,) = members({"m": table}, said=1).values()
    answer = asked(victim, 0, multiplied(b"k" * 32, points_of(tokens_of(["x"], SALT)), "evil"))
    shown = {answer.own[at : at + POINT_BYTES] for at in range(0, len(answer.own), POINT_BYTES)}
    plain = points_of(tokens_of(table, SALT))
    guesses = {plain[at : at + POINT_BYTES] for at in range(0, len(plain), POINT_BYTES)}
    blinded = multiplied(b"k" * 32, plain, "evil")
    guesses |= {blinded[at : at + POINT_BYTES] for at in range(0, len(blinded), POINT_BYTES)}
    assert len(shown) == 200 and not shown & guesses


def joined(places: Sequence[int]) -> Joined:
    """These points of those that a member has shown of its only bucket."""
    return Joined(0, 1, np.array(places, "<u8").tobytes())


def test_a_leader_dictates_rows_that_one_party_lacks() -> None:
    """Before: members took any list of their own ids as the intersection, on the leader's word alone. Now it can name
    no row but by a point that the member has shown."""
    (victim,) = members({"m": ["a", "b", "c"]}, said=4).values()
    asked(victim, 0, multiplied(b"k" * 32, points_of(tokens_of(["a", "b", "c", "d"], SALT)), "evil"))
    with pytest.raises(PeerFailed, match="'m' refuses the alignment: 'evil' joins ids that 'm' has not shown"):
        victim.handle(Received("evil", joined([0, 3])))
    with pytest.raises(PeerFailed, match="'evil' joins an id twice"):
        victim.handle(Received("evil", joined([1, 1])))


def test_a_leader_gives_two_members_two_lists() -> None:
    parties = members({"m": ["a", "b", "c"], "o": ["b", "c", "d"]}, said=4)
    lists, key, ids = {"m": ["a", "b"], "o": ["b", "d"]}, b"k" * 32, ["a", "b", "c", "d"]
    seen: dict[str, Seen] = {}
    for name, party in parties.items():
        answer = asked(party, 0, multiplied(key, points_of(tokens_of(ids, SALT)), "evil"))
        of_mark = {mark: place for place, mark in enumerate(marks_of(multiplied(key, answer.own, name), name))}
        marks = {guess: answer.marks[16 * i : 16 * i + 16] for i, guess in enumerate(ids)}
        (told,) = party.handle(Received("evil", joined([of_mark[marks[guess]] for guess in lists[name]])))
        assert isinstance(told, Broadcast) and isinstance(told.body, Seen)
        assert party.joined == sorted(tokens_of(lists[name], SALT))  # what the leader wanted it to take
        seen[name] = told.body
    for name, other in (("m", "o"), ("o", "m")):
        parties[name].handle(Received("evil", seen[name]))  # the leader tells each what it wants to hear
        (end,) = parties[name].handle(Received(other, seen[other]))
        assert isinstance(end, Finish) and end.verdict == "misaligned" and f"'{other}' has 2 rows" in end.reason
        assert not parties[name].agreed


def test_a_member_plays_the_leader() -> None:
    (victim, _) = members({"m": ["a"], "o": ["a"]}, said=1).values()
    for body in (Blinded(0, b"x" * 32), Joined(0, 1, b"")):
        with pytest.raises(PeerFailed, match="'o'"):
            victim.handle(Received("o", body))


# -- control calls ----------------------------------------------------------------------------------------------------


def listening(
    identity: Identity, roster: PinnedRoster, answer: Callable[[Member, bytes], bytes]
) -> tuple[StreamServer, int]:
    server = StreamServer(identity, roster, "127.0.0.1:0", control={control.METHOD: answer})
    return server, server.start()


def signing_member(name: str) -> tuple[Identity, Any, x509.Certificate]:
    key = new_key()
    builder = unsigned(named(name), named(name), key.public_key(), authority=True)
    names = x509.SubjectAlternativeName([x509.DNSName(tls_name(name))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return Identity(name, public_pem(certificate), private_pem(key)), key, certificate


def signed_by(authority: Identity, name: str) -> Identity:
    key, request = new_request(name)
    return Identity(name, sign_request(request, authority), key)


def called(caller: Identity, roster: PinnedRoster, impostor: Identity) -> list[object]:
    """What an impostor of 'shop' hears of a proposal to 'shop'."""
    heard: list[object] = []

    def answer(member: Member, raw: bytes) -> bytes:
        heard.append(control.decode_request(raw))
        return control.encode(control.Done())

    server, port = listening(impostor, roster, answer)
    try:
        there = roster.with_member(replace(roster.member("shop"), address=f"127.0.0.1:{port}"))
        PeerCalls(caller, there).call("shop", Propose("j-1", "name='j'", b"S" * 32), timeout_s=5)
    except PeerFailed as problem:
        assert "'shop'" in str(problem)
    finally:
        server.stop(0)
    return heard


def test_an_impostor_signed_by_the_same_authority_hears_no_proposal() -> None:
    """Before: it received the proposal with the salt."""
    authority = new_authority()
    bank, shop, impostor = (signed_by(authority, name) for name in ("bank", "shop", "shop"))
    pinned = (Member("bank", bank.certificate_pem), Member("shop", shop.certificate_pem, "127.0.0.1:1"))
    roster = PinnedRoster(pinned, (authority.certificate_pem,))
    assert called(bank, roster, impostor) == []
    assert len(called(bank, roster, shop)) == 1, "the pinned one is reached"


def test_a_member_that_signs_certificates_speaks_for_nobody_else(tmp_path: Path) -> None:
    """Before: a member with CA:TRUE made itself a certificate for any name, and received what was meant for it."""
    bank, shop = new_identity("bank"), new_identity("shop")
    evil, key, certificate = signing_member("evil")
    fake_key = new_key()
    fake = unsigned(named("shop"), certificate.subject, fake_key.public_key())
    fake = fake.add_extension(x509.SubjectAlternativeName([x509.DNSName(tls_name("shop"))]), critical=False)
    impostor = Identity("shop", public_pem(fake.sign(key, hashes.SHA256())), private_pem(fake_key))
    everybody = [Member(i.name, i.certificate_pem, "127.0.0.1:1") for i in (bank, shop, evil)]
    roster = PinnedRoster(tuple(everybody))
    assert called(bank, roster, impostor) == []
    with pytest.raises(BadInput, match=r"certificate of 'evil' may sign others \(CA:TRUE\)"):
        check_members(roster, tmp_path / "roster.toml")


def test_names_that_are_one_in_certificates_and_certificates_of_two_names_are_refused(tmp_path: Path) -> None:
    one, two = new_identity("a-b"), new_identity("a_b")
    pair = PinnedRoster((Member("a-b", one.certificate_pem), Member("a_b", two.certificate_pem)))
    with pytest.raises(BadInput, match="'a-b' and 'a_b' are the same name in certificates"):
        check_members(pair, tmp_path)
    twice = PinnedRoster((Member("a-b", one.certificate_pem), Member("c", one.certificate_pem)))
    with pytest.raises(BadInput, match="'a-b' and 'c' have the same certificate"):
        check_members(twice, tmp_path)


# -- a daemon ---------------------------------------------------------------------------------------------------------

JOB = 'name = "j"\nparties = ["bank", "shop", "telecom"]\nlabels_at = ["bank"]\n'
ROOM_OF_ONE = 18  # three quarters of the runs that work and wait by default


class Victim:
    """The shop's daemon, asked as a peer's call would ask it; it listens nowhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        identities = {name: new_identity(name) for name in NAMES}
        allowed = {"jobs": ("j",), "initiators": ("any",), "leaders": ("bank",)}
        (folder / "party.toml").write_text(example("shop", data="t.csv", listen="127.0.0.1:0", **allowed))
        write_private(folder / "keys" / "shop.key", identities["shop"].key_pem)
        (folder / "keys" / "shop.crt").write_bytes(identities["shop"].certificate_pem)
        entries = (Member(name, i.certificate_pem, "127.0.0.1:1") for name, i in identities.items())
        write_roster(folder / "roster.toml", PinnedRoster(tuple(entries)))
        (folder / "t.csv").write_text("id,x\n" + "\n".join(f"{i},{i % 7}" for i in range(300)) + "\n")
        self.daemon = Daemon(read_home(folder))

    def restarted(self) -> None:
        self.daemon = Daemon(read_home(self.folder))

    def asks(self, peer: str, request: control.Request | bytes) -> control.Answer:
        raw = request if isinstance(request, bytes) else control.encode(request)
        return control.decode_answer(self.daemon._answer(self.daemon.roster.member(peer), raw))


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


def test_proposals_with_impossible_names_block_nothing(victim: Victim) -> None:
    """Before: eight of them, each with a NUL, kept every honest proposal out; escape sequences reached logs."""
    for i in range(8):
        with pytest.raises(OffbeatError, match="'bank' named a run"):
            victim.asks("bank", Propose(f"j-{i}\0", JOB, b"s" * 32))
    for name in ("j-\x1b[2J\x1b[31mPWNED", "j-<img src=x>", "j-..", "j-\n[policy]", "j-\u202e"):
        with pytest.raises(OffbeatError, match="'bank' named a run") as refused:
            victim.asks("bank", Propose(name, JOB, b"s" * 32))
        assert not any(ord(sign) < 32 or ord(sign) > 0x2000 for sign in str(refused.value))
    assert victim.asks("telecom", Propose("j-honest", JOB, b"s" * 32)) == control.Done()
    assert list(victim.daemon.runs) == ["j-honest"]
    places = [victim.folder / "runs", victim.folder / "runs" / "j-honest", victim.folder / "private" / "j-honest"]
    assert [place.stat().st_mode & 0o77 for place in places] == [0, 0, 0], "its owner alone reads what a run leaves"


@pytest.mark.parametrize("more", ["x = " + "[" * 3000, "[method]\nseed = " + "9" * 5000])
def test_a_job_that_no_reader_gets_through_is_a_wrong_job(
    victim: Victim, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Tried: 3,000 brackets, or 5,000 digits. The answer was an error nobody foresaw, with 1,000 lines in the log."""
    with pytest.raises(BadJob, match="not valid TOML"):
        victim.asks("bank", Propose("j-deep", f"{JOB}\n{more}", b"s" * 32))
    assert not any(record.exc_info for record in caplog.records) and not victim.daemon.runs


def test_a_proposal_never_has_code_imported_that_the_owner_did_not_name(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`any` means the package's methods. The trap would leave a file when it is imported."""
    trap, sprung = victim.folder / "trap.py", victim.folder / "sprung"
    trap.write_text(f"import pathlib\npathlib.Path({str(sprung)!r}).touch()\nMETHOD = None\n")
    monkeypatch.chdir(victim.folder)
    monkeypatch.syspath_prepend(str(victim.folder))
    imported: list[str] = []
    monkeypatch.setattr(elsewhere, "import_module", imported.append)
    home = victim.folder / "party.toml"
    usual = home.read_text()
    for methods in ('["vfb2-svrg"]', '["any"]', '["any", "trap:OTHER", "trap", "trap.METHOD"]'):
        home.write_text(re.sub(r"(?m)^methods = .*$", f"methods = {methods}", usual))
        victim.restarted()
        for code in ("os:system", "trap:METHOD"):
            proposed = JOB + f'[method]\nalgorithm = "{code}"\n'
            with pytest.raises(Refused, match=f"'{code}' is no method of offbeat, and its policy does not name"):
                victim.asks("bank", Propose("j-1", proposed, b"s" * 32))
            with pytest.raises(Refused, match="what only its owner may ask"):
                victim.asks("bank", control.Submit(proposed))
            with pytest.raises(OffbeatError):
                victim.asks("bank", control.OpenScoring("j-1", "score-1"))
    assert (imported, sprung.exists(), "trap" in sys.modules) == ([], False, False)
    monkeypatch.undo()
    monkeypatch.chdir(victim.folder)
    home.write_text(re.sub(r"(?m)^methods = .*$", 'methods = ["trap:METHOD"]', usual))
    victim.restarted()
    with pytest.raises(OffbeatError, match="expected a LinearMethod or a HorizontalMethod, found NoneType"):
        victim.asks("bank", Propose("j-1", JOB + '[method]\nalgorithm = "trap:METHOD"\n', b"s" * 32))
    assert sprung.exists(), "the owner named it, so it was looked at"
    del sys.modules["trap"]


def test_proposals_that_never_begin_leave_room_and_expire(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(ROOM_OF_ONE):
        victim.asks("bank", Propose(f"j-{i}", JOB, b"s" * 32))
    with pytest.raises(Refused, match="'bank' has 18 runs under way or waiting at 'shop', the most of one"):
        victim.asks("bank", Propose("j-more", JOB, b"s" * 32))
    assert victim.asks("telecom", Propose("j-honest", JOB, b"s" * 32)) == control.Done()
    monkeypatch.setattr(run_queue, "PROPOSAL_KEPT_S", -1.0)
    assert victim.asks("bank", Propose("j-later", JOB, b"s" * 32)) == control.Done()
    assert "'bank' did not begin it within" in victim.daemon.runs["j-0"].status.reason


def test_a_run_that_was_deleted_does_not_come_back_with_its_masks(victim: Victim) -> None:
    """Before: the same name gave the same mask secret, and the budget was charged nothing."""
    victim.asks("bank", Propose("j-1", JOB, b"s" * 32))
    secret = victim.daemon.runs["j-1"].own.secret("masks")
    shutil.rmtree(victim.folder / "runs")  # the owner tidies up
    victim.restarted()
    with pytest.raises(Refused, match="'shop' has had a run 'j-1' before"):
        victim.asks("bank", Propose("j-1", JOB + "[method]\nseed = 7\n", b"t" * 32))
    shutil.rmtree(victim.folder / "private" / "j-1")  # and more than that
    victim.restarted()
    with pytest.raises(Refused, match="'shop' has had a run 'j-1' before"):
        victim.asks("bank", Propose("j-1", JOB, b"s" * 32))
    victim.asks("bank", Propose("j-2", JOB, b"s" * 32))
    assert victim.daemon.runs["j-2"].own.secret("masks") != secret


def test_a_known_name_with_another_job_is_no_repetition(victim: Victim) -> None:
    victim.asks("bank", Propose("j-1", JOB, b"s" * 32))
    assert victim.asks("bank", Propose("j-1", JOB, b"s" * 32)) == control.Done()  # the first answer was lost
    for proposal, peer in (
        (Propose("j-1", JOB + "[method]\nseed = 7\n", b"s" * 32), "bank"),
        (Propose("j-1", JOB, b"t" * 32), "bank"),
        (Propose("j-1", JOB, b"s" * 32), "telecom"),
    ):
        with pytest.raises(Refused, match="'shop' has had a run 'j-1' before"):
            victim.asks(peer, proposal)


def test_a_report_cannot_wedge_the_state_of_a_run(victim: Victim) -> None:
    """Before: bytes in a report's facts made every later write of the state fail."""
    run = victim.daemon._accept("j-1", job_from_text(JOB), "shop", b"s" * 32)
    good = msgspec.msgpack.decode(control.encode(control.Report("j-1", "v", "r")))
    for facts in ({"x": b"\0"}, {"metrics": {"auc": b"\0"}}, {"seconds": "long"}, {"rows": -1}, {"rows": 2**60}, 7):
        with pytest.raises(PeerFailed, match="not one of ours"):
            victim.asks("telecom", msgspec.msgpack.encode({**good, "facts": facts}))
    reason = "\x1b[2J" + "r" * 1900
    facts = control.Facts(metrics={"auc": float("nan"), "other": 1.0})
    for peer in ("telecom", "bank"):
        victim.asks(peer, control.Report("j-1", "v\n", reason, facts=facts))
    assert run.status.metrics == {"other": 1.0}, "of the label holder, and finite"
    run.update(phase="done")
    kept = (victim.folder / "runs" / "j-1" / "state.json").read_text()
    assert '"done"' in kept and "\\u001b" not in kept and "\x1b" not in kept
    victim.restarted()
    assert victim.daemon._left(victim.folder / "runs" / "j-1") is not None


def test_polls_of_one_member_keep_nobody_out(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: 80 polls held every thread of the daemon for ten seconds, again and again."""
    released, waiting = threading.Event(), threading.Event()

    def collect(self: Post, peer: str, timeout_s: float) -> list[tuple[int, bytes]]:
        waiting.set()
        assert released.wait(30)
        return []

    monkeypatch.setattr(Post, "collect", collect)
    outcomes: list[str] = []

    def poll() -> None:
        try:
            victim.asks("telecom", control.Poll())
            outcomes.append("answered")
        except Refused as problem:
            outcomes.append(str(problem))

    with ThreadPoolExecutor(8) as eve:  # with any number of threads: only one poll can hold one
        first = eve.submit(poll)
        assert waiting.wait(30)
        for other in [eve.submit(poll) for _ in range(79)]:
            other.result(30)
        assert isinstance(victim.asks("bank", control.Ping()), control.Pong)
        released.set()
        first.result(30)
    assert outcomes.count("answered") == 1 and len(outcomes) == 80
    assert outcomes[0] == "'telecom' has 1 calls (Poll) open at 'shop', the most at once."


def test_runs_of_one_member_leave_room_for_others(victim: Victim) -> None:
    """Before: eight runs that were begun and never joined shut everybody else out for as long as their initiator
    liked."""
    for i in range(ROOM_OF_ONE):
        victim.asks("bank", Propose(f"j-{i}", JOB, b"s" * 32))
        victim.daemon.runs[f"j-{i}"].update(phase="aligning")  # begun; it waits for the others
    with pytest.raises(Refused, match="'bank' has 18 runs under way or waiting at 'shop', the most of one"):
        victim.asks("bank", Propose("j-more", JOB, b"s" * 32))
    assert victim.asks("telecom", Propose("j-honest", JOB, b"s" * 32)) == control.Done()


def test_a_peers_words_move_no_cursor_and_begin_no_line(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: only reports were looked at. A refusal, a word to halt or a goodbye could clear the owner's screen, or
    put a line of its own into the log."""
    evil = "\x1b[2J\n2026-11-16 00:00:00 INFO offbeat.party accepted run x"
    failure = control.encode(control.Failure("Refused", evil))
    with pytest.raises(Refused) as refused:
        control.decode_answer(failure)
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(daemon_log.PlainLines("%(message)s"))
    handler.emit(logging.LogRecord("offbeat.party", logging.INFO, "", 0, "could not tell %s", (evil,), None))
    ended = runs._quotable(Outcome("wall", 0.0, "", {"shop": Finish(evil, evil)}, [], {}, [], 0)).finished["shop"]
    run = victim.daemon._accept("j-1", job_from_text(JOB), "bank", b"s" * 32)
    monkeypatch.setattr(run, "_steps_with_room", lambda: ("failed", evil, control.Facts()))
    run.take_part(lambda report: None)
    for told in (str(refused.value), log.getvalue()[:-1], ended.verdict, ended.reason, run.status.reason):
        assert "accepted run x" in told and not {"\n", "\x1b"} & set(told)


@pytest.mark.parametrize(
    ("prepare", "shown"),
    [
        ('{ columns = { x = "scaled" } }', "holds text such as '40 rue Secrete'"),
        ('{ columns = { income = "scaled" } }', "prepare names column 'income', which is not there"),
        ('"none"', "'x' holds text"),
    ],
)
def test_a_mistake_in_an_owners_settings_shows_peers_no_cell(victim: Victim, prepare: str, shown: str) -> None:
    """Before: it counted as a mistake in the job, and the sentence with the cell went to the initiator."""
    (victim.folder / "t.csv").write_text("id,x\n" + "\n".join(f"{i},40 rue Secrete" for i in range(300)) + "\n")
    settings = (victim.folder / "party.toml").read_text()
    (victim.folder / "party.toml").write_text(re.sub(r"(?m)^prepare = .*$", f"prepare = {prepare}", settings))
    victim.restarted()
    run = victim.daemon._accept("j-1", job_from_text(JOB), "bank", b"s" * 32)
    aligned = {"rows": np.arange(300), "tokens": tokens_of(range(300), SALT), "sent": {}}
    write_checkpoint(run.private, "alignment", aligned)
    run.count()
    reports: list[control.Report] = []
    run.take_part(reports.append)
    assert shown in run.status.reason and reports[0].kind == "BadData"
    assert re.fullmatch(r"'shop' failed while aligning .*under [0-9a-f]{8}", reports[0].reason)


def kept_run(victim: Victim, name: str, job: str, told: bytes) -> Any:
    """A run that has ended at the shop, with its part of the model; and its table as a run would train on it."""
    run = victim.daemon._accept(name, job_from_text(job), "bank", b"s" * 32)
    table = victim.daemon.tables.current().table
    own = own_rows(victim.daemon.home, table, run.job, np.arange(300), tokens_of(range(300), SALT))
    write_model(run.private, "model", OwnModel(np.ones(own.train.shape[1] + 1), own.fitted, None, told=told))
    run.update(phase="done")
    return own


def test_a_job_begins_with_no_model_of_others_and_with_no_lie(victim: Victim) -> None:
    """Before: `start` named any run that each party had a part in. A model of others, or a sum without one of its
    parties, was there for the asking; and lies of the first run were forgotten by the masks of the second."""
    others = JOB.replace('"telecom"]', '"other"]')
    fewer = JOB.replace('"telecom"]', '"telecom", "zoo"]')
    started = JOB + '[method]\nstart = "{}"\n'
    for name, job in (("j-others", others), ("j-fewer", fewer), ("j-none", "")):
        if job:
            kept_run(victim, name, job, b"t" * 32)
        with pytest.raises(Refused, match=f"of run '{name}', of which 'shop' has kept no part"):
            victim.asks("bank", Propose(f"j-after-{name}", started.format(name), b"s" * 32))
    kept_run(victim, "j-lost", JOB, b"")
    with pytest.raises(Refused, match="without a model that all parties have kept"):
        victim.asks("bank", Propose("j-after-lost", started.format("j-lost"), b"s" * 32))
    own = kept_run(victim, "j-kept", JOB, b"t" * 32)
    with pytest.raises(Refused, match="has learned from the labels themselves"):
        private = started.format("j-kept") + "label_dp_epsilon = 1.0\n"
        victim.asks("bank", Propose("j-private", private, b"s" * 32))
    victim.asks("bank", Propose("j-next", started.format("j-kept"), b"s" * 32))
    sessions = victim.daemon.runs["j-next"].own
    bound = []
    for told in (b"t" * 32, b"l" * 32):
        model = read_model(victim.folder / "private" / "j-kept", "model")
        write_model(victim.folder / "private" / "j-kept", "model", dataclasses.replace(model, told=told))
        bound.append(sessions.training(own, lambda needed: needed).inner.party.sums.run)  # type: ignore[attr-defined]
    assert bound[0] != bound[1] and all(run.startswith("j-next/") for run in bound)


def test_a_peer_answers_no_letters_but_its_own() -> None:
    """Not in the list of known attacks: any member could answer a letter that was left for another."""
    post, answers = Post(), []
    writer = threading.Thread(target=lambda: answers.append(post.send("telecom", b"question", 30.0)))
    writer.start()
    ((number, _),) = post.collect("telecom", 30.0)
    post.answer("eve", number, b"forged")
    post.answer("telecom", number, b"true")
    writer.join(30)
    assert answers == [b"true"]


def test_a_peer_learns_of_no_run_in_which_it_has_no_part(victim: Victim) -> None:
    job = 'name = "j"\nparties = ["bank", "shop", "other"]\nlabels_at = ["bank"]\n'
    victim.asks("bank", Propose("j-secret", job, b"s" * 32))
    requests: tuple[control.Request, ...] = (
        control.BeginRun("j-secret", {}),
        control.Count("j-secret"),
        control.HaltRun("j-secret", "failed", ""),
        control.HasBegun("j-secret"),
        control.OpenScoring("j-secret", "score-1"),
        control.Report("j-secret", "v", "r"),
    )
    for request in requests:
        with pytest.raises(Refused) as here:
            victim.asks("telecom", request)
        with pytest.raises(Refused) as nowhere:
            victim.asks("telecom", msgspec.structs.replace(request, run="j-nothing"))
        assert str(here.value).replace("j-secret", "j-nothing") == str(nowhere.value)


def test_an_initiator_changes_the_sizes_that_were_committed(victim: Victim) -> None:
    victim.asks("bank", Propose("j-1", JOB, b"s" * 32))
    assert victim.asks("bank", control.Count("j-1")) == control.Counted(300)
    for sizes in ({"bank": 10, "shop": 299, "telecom": 10}, {"bank": 10, "shop": 300}, {}):
        with pytest.raises(Refused, match="other numbers of ids than 'shop' gave"):
            victim.asks("bank", control.BeginRun("j-1", sizes))
    with pytest.raises(Refused, match="'bank' brings 3001; its policy allows 10 times its own"):
        victim.asks("bank", control.BeginRun("j-1", {"bank": 3001, "shop": 300, "telecom": 10}))


# -- predictions ------------------------------------------------------------------------------------------------------


class Scores:
    def __init__(self, ids: Sequence[str]) -> None:
        self.known = set(tokens_of(ids, SALT))

    def scores(self, tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(tokens), 0.25), np.array([token in self.known for token in tokens])


def predictors(rows: int) -> Iterator[Predictor]:
    parties = {
        name: Predictor(
            name, ("a", "b", "e"), "e", Scores(["1", "2"]), run="r/p", secret=os.urandom(32), sums=SumOptions(),
            tokens=tokens_of(["1"], SALT) if name == "e" else (), rows=rows,
        )
        for name in ("a", "b", "e")
    }  # fmt: skip
    offers = {name: party.handle(Started()) for name, party in parties.items()}
    for name, effects in offers.items():
        for effect in effects:
            if isinstance(effect, Broadcast) and type(effect.body).__name__ == "KeyOffered":
                for other in effect.to:
                    parties[other].handle(Received(name, effect.body))
    yield from parties.values()


def reply(effects: list[Any]) -> object:
    (send,) = effects
    assert isinstance(send, Send) and send.to == "e"
    return send.body


def test_a_prediction_asks_for_what_its_policy_was_asked_about() -> None:
    """Before: 200,000 ids in one message that had announced one row, and other rows again and again in one question."""
    a, _, _ = predictors(rows=1)
    many = b"".join(tokens_of(map(str, range(200_000)), SALT))
    told = reply(a.handle(Received("e", Wanted(many))))
    assert isinstance(told, Declined) and told.reason == "'e' announced 1 rows and asks for 200000"
    assert isinstance(reply(a.handle(Received("e", Wanted(tokens_of(["1"], SALT)[0])))), ShareGiven)
    told = reply(a.handle(Received("e", Wanted(tokens_of(["2"], SALT)[0]))))
    assert isinstance(told, Declined) and "'e' asks for other rows in the same prediction" in told.reason
    with pytest.raises(PeerFailed, match="'b' wants scores in a prediction of 'e'"):
        a.handle(Received("b", Wanted(tokens_of(["1"], SALT)[0])))


def test_a_small_question_takes_little_memory() -> None:
    """Before, in training: 512 MiB for one message of 40 bytes. A prediction has no question that names a range."""
    a, _, _ = predictors(rows=1)
    a.handle(Received("e", Wanted(tokens_of(["1"], SALT)[0])))
    tracemalloc.start()
    for first, count in ((0, 2**25), (-1, 1), (0, 0), (1, 2)):
        with pytest.raises(PeerFailed, match="'a' got a ShareAsked from 'e'"):
            a.handle(Received("e", ShareAsked(0, SURVEY, 1, first, count, 0)))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_an_id_that_somebody_lacks_tells_nothing_of_the_others() -> None:
    """Before: for an id that only one other party has, the sum was that party's own score, and bits told who has it."""
    seen = []
    for lacking in ("a", "b", "both", "none"):
        parties = dict(zip("abe", predictors(rows=1), strict=True))
        for name in ("a", "b"):
            parties[name].scorer = Scores([] if lacking in (name, "both") else ["1"])
        token = tokens_of(["1"], SALT)[0]
        given = [reply(parties[name].handle(Received("e", Wanted(token)))) for name in ("a", "b")]
        seen.append(np.sum([body.words for body in given], axis=0, dtype=np.uint64))  # type: ignore[attr-defined]
    scale = 2.0**40
    assert (seen[3][0], seen[3][1] / scale) == (0, 0.5)
    for words in seen[:3]:  # uniform words: one in a million is as small as a score
        assert words[0] != 0 and np.all(np.abs(words.view(np.int64) / scale) > 1.0)
    assert len({tuple(words) for words in seen}) == 4


def test_parties_that_are_asked_for_different_rows_give_words_that_do_not_cancel() -> None:
    """Before: masks belonged to a number, so lists of rows that differ gave differences of scores away."""
    parties = dict(zip("abe", predictors(rows=1), strict=True))
    given = [
        reply(parties[name].handle(Received("e", Wanted(tokens_of([which], SALT)[0]))))
        for name, which in (("a", "1"), ("b", "2"))
    ]
    words = np.sum([body.words for body in given], axis=0, dtype=np.uint64)  # type: ignore[attr-defined]
    assert words[0] != 0 and np.all(np.abs(words.view(np.int64) / 2.0**40) > 1.0)


def test_a_roster_that_hides_nobody_is_refused(victim: Victim) -> None:
    """Before: ("a", "a", "e") counted as three, and 'a' answered without a mask."""
    home, run = victim.daemon.home, SimpleNamespace(run="j-1", job=job_from_text(JOB))
    kept = SimpleNamespace(refuse_untrained=lambda run: None, model=lambda run: SimpleNamespace(told=b""))

    last: list[Answering] = []

    def opens(without: list[str], **policy: object) -> object:
        asked = msgspec.structs.replace(home.config.policy, predictions_for=("any",), **policy)
        home.config = msgspec.structs.replace(home.config, policy=asked)
        last[:] = [Answering(home, victim.daemon.identity, victim.daemon.roster, kept)]  # type: ignore[arg-type]
        return last[0].open(run, "bank", control.OpenScoring("j-1", "score-1", without))  # type: ignore[arg-type]

    with pytest.raises(Refused, match="does not predict without a party"):
        opens(["telecom"])
    for without in (["bank"], ["shop"], ["nobody"], ["telecom", "telecom", "nobody"]):
        with pytest.raises(Refused, match="'bank' leaves out"):
            opens(without, predict_without=True)
    with pytest.raises(BadJob, match="hide a share"):
        opens(["telecom"], predict_without=True)
    assert isinstance(opens([]), control.ScoringKey)
    run.job = job_from_text(JOB.replace('"telecom"]', '"telecom", "utility"]'))
    assert isinstance(opens(["utility"], parties_least=3), control.ScoringKey)
    home.config = msgspec.structs.replace(
        home.config, policy=msgspec.structs.replace(home.config.policy, predict_without=False)
    )
    with pytest.raises(Refused, match="does not predict without a party"):  # the policy of this moment counts
        last[0].answer(run, "bank", control.ScoreAsked("j-1", "score-1", 0, b"t" * 16))  # type: ignore[arg-type]


# -- ledgers and secrets ----------------------------------------------------------------------------------------------


def test_an_empty_secret_of_the_labels_answers_nothing(tmp_path: Path) -> None:
    """Before: a power cut that left the file empty undid every random answer."""
    ledger = PrivacyLedger(tmp_path)
    first = ledger.secret()
    assert len(first) == 32 and PrivacyLedger(tmp_path).secret() == first
    (tmp_path / "labels.secret").write_bytes(b"")
    with pytest.raises(BadData, match="has 0 bytes instead of 32"):
        ledger.secret()


@pytest.mark.parametrize("lost", ["rows.json", "uses.jsonl"])
def test_a_ledger_that_was_set_back_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Before: deleting rows.json, or putting an old copy back, gave every row its sums again without a word."""
    ledger = RowLedger(tmp_path)
    ledger.use(["a", "b"], np.array([3, 1]), what="run-1", asker="bank", who="shop")
    if lost == "rows.json":
        monkeypatch.setattr("offbeat.orgs.row_ledger.FOLD_BYTES", 0)
        ledger.fold()
    (tmp_path / lost).unlink()
    with pytest.raises(BadData, match=r"has lost 4 uses of rows and 0 trainings under way that history\.jsonl lists"):
        RowLedger(tmp_path).counts(["a"])


def test_nothing_but_ready_is_said_before_everybody_is_there() -> None:
    parties = members({"m": ["a", "b"], "o": ["b", "c"]}, said=2)
    for party in parties.values():
        (effect,) = party.handle(Started())
        assert isinstance(effect, Send) and effect.to == "evil" and isinstance(effect.body, ReadyToAlign)
