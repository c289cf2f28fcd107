"""What both ends of a link sign: exact small chains, and every change of a folder after the run is found."""

import hashlib
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_run import (
    JOB,
    NAMES,
    RUN,
    delivery,
    log_of,
    notary,
    record,
    rewrite,
    roster,
    sealed,
    signed_run,
    transcript,
    with_link,
    write_log,
)
from typer.testing import CliRunner

from offbeat.audit.transcripts import CHANGED, HOLDS, NOT_SIGNED, verified_text, verify_runs
from offbeat.cli.root import app
from offbeat.errors import BadFrame, BadInput, PeerFailed
from offbeat.metrics.record import RunRecord
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.eventlog import LogReceived
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_roster
from offbeat.runtime.transcript import (
    ANSWER_EVERY,
    ANSWERS_FREE,
    LAST_ANSWERS,
    RECEIPT_EVERY,
    WRONG_MOST,
    Chain,
    Chains,
    Direction,
    Notary,
    Receipt,
    Seal,
    Signed,
    Transcript,
    next_head,
    reach,
    read_transcript,
    unsigned_peers,
)

ORIGIN = b'["offbeat chain",1,"run/train","digest","bank","shop"]'
SENT = {
    ("bank", "shop"): [b"one", b"two", b"three"],
    ("shop", "bank"): [b"yes"],
    ("shop", "telecom"): [b"a", b"b"],
    ("telecom", "bank"): [b"x", b"y"],
}


# -- chains -----------------------------------------------------------------------------------------------------------


def test_a_chain_is_this_hash_of_hashes() -> None:
    head = hashlib.sha256(ORIGIN).digest()
    assert Direction(RUN, JOB, "bank", "shop").origin == head
    chain = Chain(head)
    for number, frame in ((1, b"one"), (2, b"two")):
        chain.add(number, frame)
        head = hashlib.sha256(head + number.to_bytes(8, "little") + frame).digest()
        assert chain.at(number) == head
    assert (chain.number, chain.head, chain.gaps(2)) == (2, head, (0, b""))
    assert chain.went(2, b"two") and not chain.went(2, b"TWO") and chain.went(7, b"not known")
    chain.keep_from(2)
    chain.keep_from(1)
    assert chain.at(1) is None and chain.at(2) == head and chain.went(2, b"not known any more")


def test_a_jump_takes_the_senders_head_and_keeps_the_one_before() -> None:
    """Otherwise a message before a gap could be exchanged later."""
    true, false = Chain(b"0" * 32), Chain(b"0" * 32)
    true.add(1, b"one")
    false.add(1, b"ONE")
    for chain in (true, false):
        chain.jump(5, b"5" * 32)
        chain.add(6, b"six")
    assert true.head == false.head == next_head(b"5" * 32, 6, b"six")
    assert true.gaps(1) == false.gaps(1) == (0, b"")
    assert true.gaps(6)[0] == false.gaps(6)[0] == 4
    assert true.gaps(6)[1] != false.gaps(6)[1]
    true.jump(2**62, b"far away".ljust(32))
    true.keep_from(2**62 - 1024)
    assert list(true.heads()) == [2**62], "a peer that names a far number costs no time"


def test_both_ends_hold_both_signatures() -> None:
    bank, shop = delivery("bank", "shop"), delivery("shop", "bank")
    for frame in (b"one", b"two"):
        bank.offer(frame)
    taken = bank.take()
    assert taken is not None
    shop.arrived(*taken)
    shop.logged(2)
    sealed(bank, shop)
    assert bank.transcript is not None and shop.transcript is not None
    held, same = bank.transcript.chains.signed_out, shop.transcript.chains.signed_into
    assert held == same and held is not None
    receipt, out = held.receipt, bank.transcript.chains.out
    assert (receipt.number, receipt.missed, receipt.last, receipt.head) == (
        2,
        0,
        True,
        bank.transcript.chains.sent.head,
    )
    members = {member.name: member for member in roster().members}
    assert members["shop"].signed(receipt.content(out), receipt.signature)
    assert members["bank"].signed(receipt.content(out), held.by_sender)
    other = msgspec.structs.replace(receipt, number=3)
    assert not members["shop"].signed(other.content(out), receipt.signature)
    assert bank.transcript.settled and shop.transcript.settled


def test_receipts_come_when_much_has_come_or_when_it_is_time() -> None:
    shop = transcript("shop", "bank")
    for number in range(1, RECEIPT_EVERY + 1):
        shop.chains.received.add(number, b"")
    assert shop.seal(RECEIPT_EVERY - 1, now=False, last=False) is None
    seal = shop.seal(RECEIPT_EVERY, now=False, last=False)
    assert seal is not None and seal.receipt is not None and seal.receipt.number == RECEIPT_EVERY
    assert shop.seal(RECEIPT_EVERY, now=True, last=False) is None, "there is nothing new"
    ended = shop.seal(RECEIPT_EVERY, now=False, last=True)
    assert ended is not None and ended.receipt is not None and ended.receipt.last
    shop.again()
    repeated = shop.seal(RECEIPT_EVERY, now=False, last=True)
    assert repeated is not None and repeated.receipt is not None, "nobody has confirmed: it may be lost"


def sending(*frames: bytes) -> Transcript:
    bank = transcript("bank", "shop")
    for number, frame in enumerate(frames, 1):
        bank.chains.sent.add(number, frame)
    return bank


def receipt_of(frames: list[bytes], by: str = "shop", **claims: object) -> Receipt:
    chains = Chains(RUN, JOB, "shop", "bank")
    for number, frame in enumerate(frames, 1):
        chains.received.add(number, frame)
    claim = Receipt(len(frames), 0, b"", False, chains.received.head, b"")
    claim = msgspec.structs.replace(claim, **claims)
    return msgspec.structs.replace(claim, signature=notary(by).sign(claim.content(chains.into)))


def test_a_receipt_of_other_messages_ends_the_run() -> None:
    with pytest.raises(PeerFailed, match="'shop' acknowledges other messages than 'bank' sent, somewhere up to"):
        sending(b"one", b"two").heard(Seal(receipt_of([b"one", b"TWO"])), done=False)


@pytest.mark.parametrize(
    "receipt",
    [
        receipt_of([b"one"], by="telecom"),
        receipt_of([b"one"], missed=1),
        receipt_of([b"one"], last=True),
        msgspec.structs.replace(receipt_of([b"one"]), signature=b"no signature"),
    ],
)
def test_a_receipt_that_claims_what_is_not_so_is_not_confirmed(receipt: Receipt) -> None:
    """Signed by another, missing what was not forgotten, the last while more may come, not signed at all."""
    bank = sending(b"one")
    bank.heard(Seal(receipt), done=False)
    assert bank.refused == 1 and bank.chains.signed_out is None
    assert bank.seal(0, now=True, last=False) is None


def test_what_nobody_asked_to_confirm_is_not_taken() -> None:
    shop = transcript("shop", "bank")
    shop.chains.received.add(1, b"one")
    shop.seal(1, now=True, last=False)
    for wrong in (
        receipt_of([b"ONE"], by="bank"),
        receipt_of([b"one"], by="shop"),
        receipt_of([b"one", b"2"], by="bank"),
    ):
        shop.heard(Seal(None, wrong), done=False)
        assert shop.chains.signed_into is None
    shop.heard(Seal(None, receipt_of([b"one"], by="bank")), done=False)
    assert shop.chains.signed_into is not None and shop.refused == 3


def test_a_second_time_with_other_bytes_names_the_sender() -> None:
    shop = delivery("shop", "bank")
    assert len(shop.arrived(1, [b"one", b"two"])) == 2
    assert shop.arrived(1, [b"one", b"two"]) == []
    with pytest.raises(PeerFailed, match="'bank' sent message 2 a second time with other bytes"):
        shop.arrived(2, [b"TWO"])


def test_messages_are_left_out_only_with_the_head_behind_them() -> None:
    bounds = Bounds(window_frames=2)
    bank, shop = delivery("bank", "shop", bounds), delivery("shop", "bank", bounds)
    bank.offer(b"one")
    taken = bank.take()
    assert taken is not None and not bank.jump
    shop.arrived(*taken)
    shop.logged(1)
    bank.peer_lost()
    for frame in (b"two", b"three", b"four", b"five"):
        bank.offer(frame)
    bank.peer_back()
    bank.rewind(shop.accepted)
    again = bank.take()
    assert again == (4, [b"four", b"five"]) and bank.jump
    with pytest.raises(BadFrame, match="'bank' leaves out messages before 4"):
        shop.arrived(*again, bank.first_kept)
    assert len(shop.arrived(*again, bank.first_kept, bank.jump)) == 2
    assert shop.jumped(4) == bank.transcript.chains.sent.at(3)  # type: ignore[union-attr]
    shop.logged(5)
    sealed(bank, shop)
    assert bank.transcript is not None and bank.transcript.chains.signed_out is not None
    receipt = bank.transcript.chains.signed_out.receipt
    assert (receipt.number, receipt.missed, receipt.last) == (5, 2, True)


def test_a_peer_that_leaves_out_messages_again_and_again_costs_no_memory() -> None:
    chain = Chain(b"0" * 32)
    for number in range(2, 2000, 2):
        chain.jump(number - 1, b"j" * 32)
        chain.add(number, b"frame")
        chain.keep_from(number - 10)
    assert len(chain._gaps) <= 7 and chain.gaps(1998)[0] == 999
    assert chain.gaps(1990)[0] == 995


def test_messages_are_left_out_once_before_a_message() -> None:
    """A log has one head before a message: two jumps in a row could not be told from one later."""
    shop = delivery("shop", "bank")
    assert shop.arrived(1, [], 4, b"4" * 32) == []
    with pytest.raises(BadFrame, match="leaves out messages before 9, and sent none since it last did so"):
        shop.arrived(9, [b"nine"], 9, b"9" * 32)
    assert shop.arrived(4, [b"four"], 4) == [(4, b"four")] and shop.jumped(4) == b"4" * 32
    assert shop.arrived(9, [b"nine"], 9, b"9" * 32) == [(9, b"nine")]


def test_more_receipts_than_a_run_needs_cost_no_more_signatures() -> None:
    """A receipt costs its reader a check and a signature. One that comes again is answered by what was signed before;
    of very many, some are passed over; the last one is answered all the same."""
    frames, costs = [b"%d" % i for i in range(2000)], Counter[str]()
    bank = sending(*frames)
    usual = bank._notary
    bank._notary = Notary(
        lambda content: (costs.update(["signed"]), usual.sign(content))[1],
        lambda who, content, by: (costs.update(["checked"]), usual.signed(who, content, by))[1],
    )
    shop = transcript("shop", "bank")
    for number, frame in enumerate(frames[:-1], 1):
        shop.chains.received.add(number, frame)
        receipt = shop.seal(number, now=True, last=False)
        bank.heard(Seal(receipt.receipt), done=False)
        bank.heard(Seal(receipt.receipt), done=False)  # twice
    most = ANSWERS_FREE + len(frames) // ANSWER_EVERY
    assert costs["signed"] == costs["checked"] <= most and bank.chains.signed_out is not None
    shop.chains.received.add(len(frames), frames[-1])
    last = shop.seal(len(frames), now=True, last=True)
    for _ in range(100):
        bank.heard(last, done=True)
        shop.heard(Seal(None, bank.seal(0, now=False, last=False).confirmed), done=False)
    assert costs["signed"] <= most + 1 and reach(bank.chains.signed_out) == (len(frames), True)
    assert reach(shop.chains.signed_into) == (len(frames), True)


def test_forged_receipts_are_not_checked_for_ever() -> None:
    checked = Counter[str]()
    bank, shop = sending(b"one"), transcript("shop", "bank")
    shop.chains.received.add(1, b"one")
    shop.seal(1, now=True, last=False)
    for one in (bank, shop):
        one._notary = Notary(notary("bank").sign, lambda who, content, by: checked.update([who]) is not None)
    forged = receipt_of([b"one"], last=True)
    for _ in range(100):
        bank.heard(Seal(forged), done=True)
        shop.heard(Seal(None, receipt_of([b"one"], by="bank")), done=False)
    assert dict(checked) == {"shop": LAST_ANSWERS, "bank": WRONG_MOST}


def test_nothing_of_a_packet_that_was_refused_is_left() -> None:
    """Else the log would hold the first bytes of a message, and the party would have had the second."""
    shop = delivery("shop", "bank", Bounds(frame_bytes=8))
    with pytest.raises(BadFrame, match="larger than 8 bytes"):
        shop.arrived(1, [b"one", b"much too long"])
    shop.opened(0)
    assert shop.arrived(1, [b"ONE"]) == [(1, b"ONE")]


def test_a_party_that_was_killed_goes_on_with_its_chains() -> None:
    bank, shop = delivery("bank", "shop"), delivery("shop", "bank")
    for frame in (b"one", b"two", b"three"):
        bank.offer(frame)
    taken = bank.take()
    assert taken is not None
    shop.arrived(*taken)
    shop.logged(2)
    bank.acknowledge(1)
    again = delivery("bank", "shop"), delivery("shop", "bank")
    for link, before in zip(again, (bank, shop), strict=True):
        chains = Chains(RUN, JOB, "bank" if link.peer == "shop" else "shop", link.peer)
        sent, accepted, kept, past = before.state()
        chains.resume(past)
        link.restore(sent=sent, kept=kept, accepted=accepted, chains=chains)
    bank, shop = again
    bank.opened(shop.accepted)
    rest = bank.take()
    assert rest == (3, [b"three"])
    shop.arrived(*rest, bank.first_kept, bank.jump)
    shop.logged(3)
    sealed(bank, shop)
    assert bank.transcript is not None and bank.transcript.settled
    expected = Chain(Direction(RUN, JOB, "bank", "shop").origin)
    for number, frame in enumerate((b"one", b"two", b"three"), 1):
        expected.add(number, frame)
    assert bank.transcript.chains.sent.head == expected.head


# -- folders ----------------------------------------------------------------------------------------------------------


def state_of(folders: list[Path], roster: Path | None = None) -> tuple[str, list[str]]:
    told = verify_runs(folders, roster)
    return told["state"], told["parties"]


def test_an_honest_run_holds_from_any_of_its_folders(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    told = verify_runs(list(folders.values()))
    assert (told["state"], told["parties"], len(told["links"])) == (HOLDS, [], 6)
    assert sum(link["messages"] for link in told["links"]) == 8
    assert "run/train: bank -> shop: both signed 3 messages; the log of 'shop' has them" in verified_text(told)
    for folder in folders.values():
        assert state_of([folder]) == (HOLDS, [])


def test_a_removed_log_is_said(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    (folders["shop"] / "events" / "shop.log").unlink()
    text = verified_text(verify_runs(list(folders.values())))
    assert "bank -> shop: both signed 3 messages; the log of 'shop' is not here" in text
    nothing_read = "No party's log is here: the signatures were checked, and not the messages."
    assert nothing_read not in text and nothing_read in verified_text(verify_runs([folders["shop"]]))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("honest")
    signed_run(place, SENT)
    return place


def changed_log(folder: Path, act: str, at: int, salt: bytes, with_jump: bool) -> bool:
    """Do one thing to the messages in a log; False where it would do nothing."""
    records = log_of(folder)
    places = [i for i, found in enumerate(records) if isinstance(found, LogReceived)]
    i = places[at % len(places)]
    one = records[i]
    assert isinstance(one, LogReceived)
    jump = b"j" * 32 if with_jump else b""
    if act == "change":
        if one.frame == salt:
            return False
        records[i] = msgspec.structs.replace(one, frame=salt)
    elif act == "drop":
        del records[i]
    elif act == "insert":
        records.insert(i, LogReceived(one.sender, one.number, salt, 0.0, jump))
    elif act == "append":
        records.append(LogReceived(one.sender, 1 + sum(_from(found, one.sender) for found in records), salt, 0.0, jump))
    elif act == "swap":
        later = [j for j in places if j > i and _from(records[j], one.sender)]
        if not later:
            return False
        records[i], records[later[0]] = records[later[0]], records[i]
    write_log(folder, folder.name, records)
    return True


def _from(found: object, sender: str) -> bool:
    return isinstance(found, LogReceived) and found.sender == sender


@given(
    who=st.sampled_from(NAMES),
    act=st.sampled_from(["change", "drop", "insert", "append", "swap"]),
    at=st.integers(0, 10),
    salt=st.binary(max_size=4),
    with_jump=st.booleans(),
    others=st.sets(st.sampled_from(NAMES)),
)
@settings(max_examples=60, deadline=None)
def test_any_change_of_a_log_is_found_and_its_owner_named(
    honest: Path, who: str, act: str, at: int, salt: bytes, with_jump: bool, others: set[str]
) -> None:
    with TemporaryDirectory() as place:
        shutil.copytree(honest, place, dirs_exist_ok=True)
        folders = {name: Path(place) / name for name in NAMES}
        if changed_log(folders[who], act, at, salt, with_jump):
            assert state_of([folders[name] for name in sorted({who, *others})]) == (CHANGED, [who])


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_gap_that_was_not_signed_hides_nothing(tmp_path: Path, at: int, hidden: bool) -> None:
    """The shop knows every head. It changes or hides a message, and claims to have been given the head behind it."""
    shop = signed_run(tmp_path, SENT)["shop"]
    chain, records = Chain(Direction(RUN, JOB, "bank", "shop").origin), []
    for found in log_of(shop):
        if isinstance(found, LogReceived) and found.sender == "bank":
            if found.number == at + 1:
                found = msgspec.structs.replace(found, jump=chain.head)
            chain.add(found.number, found.frame)
            if found.number == at:
                found = msgspec.structs.replace(found, frame=b"another")
                if hidden:
                    continue
        records.append(found)
    write_log(shop, "shop", records)
    assert state_of([shop]) == (CHANGED, ["shop"])


def test_a_party_that_rewrites_its_transcript_too_is_found_by_the_others_copy(tmp_path: Path) -> None:
    """The shop drops the last message of the bank, and everything that tells of it."""
    folders = signed_run(tmp_path, SENT)
    shop, pair = folders["shop"], ("bank", "shop")
    records = [found for found in log_of(shop) if not (_from(found, "bank") and found.number == 3)]  # type: ignore[union-attr]
    write_log(shop, "shop", records)
    chain = Chain(Direction(RUN, JOB, *pair).origin)
    chain.add(1, b"one")
    chain.add(2, b"two")
    rewrite(shop, lambda file: with_link(file, pair, number=2, head=chain.head, signed=None))
    assert state_of([shop]) == (NOT_SIGNED, [])
    assert state_of([shop, folders["telecom"]]) == (NOT_SIGNED, [])
    assert state_of([shop, folders["bank"]]) == (CHANGED, ["shop"])


def test_a_party_that_signs_anew_cannot_sign_for_the_other(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    shop, pair = folders["shop"], ("bank", "shop")
    forged = receipt_of([b"one", b"two", b"THREE"], last=True)
    records = [
        msgspec.structs.replace(found, frame=b"THREE") if _from(found, "bank") and found.number == 3 else found  # type: ignore[union-attr,type-var]
        for found in log_of(shop)
    ]
    write_log(shop, "shop", records)
    signed = Signed(forged, notary("shop").sign(b"of no use"))
    rewrite(shop, lambda file: with_link(file, pair, head=forged.head, signed=signed))
    told = verify_runs([shop])
    assert (told["state"], told["parties"]) == (CHANGED, ["shop"])
    assert "the folder of 'shop' holds a signature of 'bank' over messages from 'bank' to 'shop'" in verified_text(told)


def test_two_that_conspire_rewrite_their_own_link_and_no_other(tmp_path: Path) -> None:
    """What a transcript does not prove: the bank and the shop sign another history of their link."""
    folders = signed_run(tmp_path / "true", SENT)
    false = signed_run(tmp_path / "false", {**SENT, ("bank", "shop"): [b"one", b"two", b"THREE"]})
    assert state_of([false["bank"], false["shop"], folders["telecom"]]) == (HOLDS, [])
    assert state_of([folders["bank"], false["shop"]]) == (CHANGED, ["bank", "shop"]), "both have signed two histories"


def test_a_sender_that_tells_of_another_history_is_named(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    rewrite(folders["bank"], lambda file: with_link(file, ("bank", "shop"), number=4, head=b"4" * 32))
    assert state_of([folders["bank"]]) == (CHANGED, ["bank"])
    rewrite(folders["bank"], lambda file: msgspec.structs.replace(file, links=file.links[2:]))
    assert state_of([folders["bank"], folders["shop"]]) == (CHANGED, ["bank"])


def test_a_run_that_broke_off_is_not_proven_to_its_end(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT, last=False)
    told = verify_runs(list(folders.values()))
    assert (told["state"], told["parties"]) == (NOT_SIGNED, [])
    assert "messages from 'bank' to 'shop': that none followed is not signed" in verified_text(told)
    assert unsigned_peers(folders["bank"], "bank") == ["shop", "telecom"]
    assert unsigned_peers(signed_run(tmp_path / "whole", SENT)["bank"], "bank") == []


def test_a_record_of_other_transcripts_is_found(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    file = folders["bank"] / "transcripts" / "bank.json"
    file.write_bytes(file.read_bytes() + b"\n")
    assert state_of([folders["bank"]]) == (CHANGED, ["bank"])
    assert RunRecord.read(folders["shop"]).transcripts.keys() == {"transcripts/shop.json"}


def test_certificates_are_those_of_the_roster_that_a_reader_has(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    write_roster(tmp_path / "roster.toml", roster())
    assert state_of(list(folders.values()), tmp_path / "roster.toml") == (HOLDS, [])
    members = [member for member in roster().members if member.name != "shop"]
    impostor = Member("shop", new_identity("shop").certificate_pem)
    write_roster(tmp_path / "other.toml", PinnedRoster((*members, impostor)))
    assert state_of([folders["bank"]], tmp_path / "other.toml") == (CHANGED, ["bank"])
    write_roster(tmp_path / "fewer.toml", PinnedRoster(tuple(members)))
    with pytest.raises(BadInput, match="does not list 'shop'"):  # the wrong file accuses nobody
        verify_runs([folders["bank"]], tmp_path / "fewer.toml")
    rewrite(
        folders["bank"],
        lambda file: msgspec.structs.replace(
            file, certificates=file.certificates | {"shop": impostor.certificate_pem.decode()}
        ),
    )
    state, parties = state_of(list(folders.values()), tmp_path / "roster.toml")
    assert state == CHANGED and "bank" in parties and "telecom" not in parties


def test_folders_without_a_transcript_are_told_apart(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    (folders["shop"] / "transcripts" / "shop.json").unlink()
    assert state_of(list(folders.values())) == (CHANGED, ["shop"])
    msgspec.structs.replace(record("bank"), runtime="simulator").write(tmp_path / "simulated")
    with pytest.raises(BadInput, match="ran under 'simulator', where parties have no keys and nothing is signed"):
        verify_runs([tmp_path / "simulated"])
    damaged = folders["bank"] / "transcripts" / "bank.json"
    damaged.write_text("{}")
    with pytest.raises(BadInput, match="is not a transcript"):
        read_transcript(damaged)


def test_one_party_is_told_of_once(tmp_path: Path) -> None:
    one, other = signed_run(tmp_path / "a", SENT), signed_run(tmp_path / "b", SENT)
    with pytest.raises(BadInput, match="both tell of 'bank' in run/train"):
        verify_runs([one["bank"], other["bank"]])


def test_folders_of_two_runs_are_told_apart(tmp_path: Path) -> None:
    folders = signed_run(tmp_path, SENT)
    rewrite(folders["shop"], lambda file: msgspec.structs.replace(file, run="other/train"))
    with pytest.raises(BadInput, match="expected folders of one run; these are of other, run"):
        verify_runs(list(folders.values()))
    rewrite(folders["shop"], lambda file: msgspec.structs.replace(file, run="run/test"))
    told = verify_runs(list(folders.values()))
    assert told["state"] == CHANGED and told["parties"] == ["shop"], "its signatures are of another session"
    assert "the folder of 'shop' has no transcript of run/train, which others tell of" in verified_text(told)


def test_the_command_ends_with_a_code_for_each_verdict(tmp_path: Path) -> None:
    def code(*folders: Path) -> int:
        return CliRunner().invoke(app, ["audit", "--verify", *map(str, folders)]).exit_code

    folders = signed_run(tmp_path / "a", SENT)
    assert code(*folders.values()) == 0
    assert code(signed_run(tmp_path / "b", SENT, last=False)["bank"]) == 3
    changed_log(folders["bank"], "drop", 0, b"", with_jump=False)
    assert code(*folders.values()) == 4


def test_a_log_that_nobody_writes_is_no_reason_to_fail(tmp_path: Path) -> None:
    shop = signed_run(tmp_path, SENT)["shop"]
    records = log_of(shop)
    for strange in (LogReceived("bank", -1, b""), LogReceived("bank", 2**63 + 2**62, b""), ["LogReceived", "bank"]):
        write_log(shop, "shop", [*records, strange])  # type: ignore[list-item]
        assert state_of([shop]) == (CHANGED, ["shop"])


def test_signatures_of_an_earlier_life_are_kept(tmp_path: Path) -> None:
    shop = signed_run(tmp_path, SENT)["shop"]
    file = read_transcript(shop / "transcripts" / "shop.json")
    without = msgspec.structs.replace(
        file, links=tuple(msgspec.structs.replace(link, signed=None) for link in file.links)
    )
    without.write(shop)
    assert read_transcript(shop / "transcripts" / "shop.json") == file
    other = msgspec.structs.replace(without, run="another/train")
    other.write(shop)
    assert read_transcript(shop / "transcripts" / "shop.json") == other
