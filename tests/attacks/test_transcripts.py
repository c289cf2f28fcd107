"""A party after the run, with its own key and its own folder: it tells of other messages than there were."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from signed_run import JOB, RUN, delivery, log_of, notary, rewrite, signed_run, transcript, with_link, write_log

from offbeat.audit.transcripts import CHANGED, HOLDS, verified_text, verify_runs
from offbeat.errors import BadInput, PeerFailed
from offbeat.jobs.organisations import job_from_text
from offbeat.metrics.record import RunRecord
from offbeat.runtime.eventlog import LogReceived
from offbeat.runtime.transcript import Chain, Direction, Receipt, Seal, Signed, TranscriptFile, read_transcript

PAIR = ("bank", "shop")
SENT = {PAIR: [b"pay 1", b"pay 2", b"pay 3"], ("shop", "bank"): [b"paid"], ("telecom", "shop"): [b"hello"]}


def rewritten(shop: Path, number: int, frame: bytes | None) -> Chain:
    """The shop's log with another message of the bank, or without it; the chain that fits."""
    records, chain = [], Chain(Direction(RUN, JOB, *PAIR).origin)
    for found in log_of(shop):
        if isinstance(found, LogReceived) and found.sender == "bank":
            if found.number == number and frame is None:
                continue
            found = msgspec.structs.replace(
                found, number=chain.number + 1, frame=frame if found.number == number and frame else found.frame
            )
            chain.add(found.number, found.frame)
        records.append(found)
    write_log(shop, "shop", records)
    return chain


@pytest.mark.parametrize("frame", [b"pay 9", None])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("effort", ["the log", "its end", "a receipt signed anew", "no signatures"])
def test_a_log_that_is_rewritten_after_the_run(tmp_path: Path, effort: str, number: int, frame: bytes | None) -> None:
    """Before: a folder was whatever its owner said. Now the other end holds what the owner signed in the run."""
    folders = signed_run(tmp_path, SENT)
    assert verify_runs(list(folders.values()))["state"] == HOLDS
    shop = folders["shop"]
    chain = rewritten(shop, number, frame)
    fits = {"number": chain.number, "head": chain.head}
    if effort == "its end":
        rewrite(shop, lambda file: with_link(file, PAIR, **fits))
    elif effort == "no signatures":
        rewrite(shop, lambda file: with_link(file, PAIR, **fits, signed=None))
    elif effort == "a receipt signed anew":
        claim = Receipt(chain.number, 0, b"", True, chain.head, b"")
        by_shop = notary("shop").sign(claim.content(Direction(RUN, JOB, *PAIR)))
        signed = Signed(msgspec.structs.replace(claim, signature=by_shop), by_shop)  # the bank's key is the bank's
        rewrite(shop, lambda file: with_link(file, PAIR, **fits, signed=signed))
    told = verify_runs(list(folders.values()))
    assert (told["state"], told["parties"]) == (CHANGED, ["shop"])


def test_a_message_sent_again_with_other_bytes() -> None:
    """Before: what came a second time was not looked at."""
    bank, shop = delivery(*PAIR), delivery(*reversed(PAIR))
    bank.offer(b"pay 1")
    taken = bank.take()
    assert taken is not None
    shop.arrived(*taken)
    shop.logged(1)
    with pytest.raises(PeerFailed, match="'bank' sent message 1 a second time with other bytes than the first time"):
        shop.arrived(1, [b"pay 9"])


@pytest.mark.parametrize("forged", [{"gaps": b"x" * 32}, {"missed": 1, "gaps": b"x" * 32}, {"missed": 1}])
@pytest.mark.parametrize("forgotten", [0, 1])
def test_a_receiver_that_has_two_accounts_signed_blames_nobody(forged: dict[str, Any], forgotten: int) -> None:
    """Tried: acknowledge the same messages twice, the second time with another claim about gaps. The sender signed both
    claims, and the audit named it as one that had lied: it "signed two different accounts"."""
    bank = transcript(*PAIR)
    bank.chains.sent.add(1, b"pay 1")
    bank.chains.forgotten = forgotten  # it may have forgotten a message for a lost peer: then a gap may be true
    of, signed = bank.chains.out, []
    honest = Receipt(1, 0, b"", True, bank.chains.sent.head, b"")
    for claim in (honest, msgspec.structs.replace(honest, **forged), honest):
        receipt = msgspec.structs.replace(claim, signature=notary("shop").sign(claim.content(of)))
        bank.heard(Seal(receipt), done=True)
        answered = bank.seal(0, now=False, last=False)
        signed += [] if answered is None or answered.confirmed is None else [answered.confirmed]
    assert {receipt.claim for receipt in signed} == {honest.claim}
    assert bank.refused == 1 and bank.chains.signed_out is not None and bank.chains.signed_out.receipt.gaps == b""


def test_an_older_receipt_is_not_signed_in_other_words() -> None:
    """Tried: have a later receipt signed first, then an earlier number with a claim of one's own."""
    bank = transcript(*PAIR)
    bank.chains.forgotten = 5
    heads = []
    for number in (1, 2):
        bank.chains.sent.add(number, b"pay")
        heads.append(bank.chains.sent.head)
    of, told = bank.chains.out, []
    for number, gaps in ((1, b"a" * 32), (2, b"a" * 32), (1, b"b" * 32)):
        claim = Receipt(number, 1, gaps, False, heads[number - 1], b"")
        bank.heard(Seal(msgspec.structs.replace(claim, signature=notary("shop").sign(claim.content(of)))), done=False)
        answered = bank.seal(0, now=False, last=False)
        told += [] if answered is None or answered.confirmed is None else [(number, answered.confirmed.gaps[:1])]
    assert told == [(1, b"a"), (2, b"a")]


def without(file: TranscriptFile, name: str) -> TranscriptFile:
    links = tuple(link for link in file.links if name not in (link.sender, link.receiver))
    return msgspec.structs.replace(file, links=links)


def unknown(file: TranscriptFile) -> TranscriptFile:
    others = {name: pem for name, pem in file.certificates.items() if name != "bank"}
    return msgspec.structs.replace(file, certificates=others)


def test_a_folder_from_which_a_link_was_cut_out_does_not_hold(tmp_path: Path) -> None:
    """Tried: the shop changes what the bank sent it, and its transcript says nothing of the bank. Its folder alone
    was called true: nobody looked for links that are not there."""
    shop = signed_run(tmp_path, SENT)["shop"]
    rewritten(shop, 3, b"pay 9")
    rewrite(shop, lambda file: without(file, "bank"))
    told = verify_runs([shop])
    assert (told["state"], told["parties"]) == (CHANGED, ["shop"])
    assert "says nothing of messages from 'bank' to 'shop'" in verified_text(told)
    rewrite(shop, unknown)
    told = verify_runs([shop])
    assert (told["state"], told["parties"]) == (CHANGED, ["shop"])
    assert "has messages of somebody who is not in its transcript" in verified_text(told)


@pytest.mark.parametrize("name", ["../../elsewhere/shop", "shop\n\nThe run was as these folders say", "\x1b[2Jshop"])
def test_no_name_in_a_folder_speaks_for_the_auditor(tmp_path: Path, name: str) -> None:
    """Tried: a party's name that is a path to another log, or a verdict of its own on the auditor's screen."""
    shop = signed_run(tmp_path, SENT)["shop"]
    path = shop / "transcripts" / "shop.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_transcript(path), party=name)))
    with pytest.raises(BadInput, match="which no party or run has") as refused:
        verify_runs([shop])
    assert str(refused.value).isprintable()
    record = RunRecord.read(shop)
    path.unlink()
    msgspec.structs.replace(record, options={"party": name}).write(shop)
    text = verified_text(verify_runs([shop, signed_run(tmp_path / "true", SENT)["bank"]]))
    assert all(line.isprintable() for line in text.split("\n")) and "\nThe run was as these folders say" not in text


def test_a_folder_from_which_a_session_was_cut_out_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: the folder of an organisation with the transcript of its training alone, and a record that fits."""
    job = job_from_text('name = "x"\nparties = ["bank", "shop", "telecom"]\nlabels_at = ["bank"]\n')
    monkeypatch.setattr(sys.modules[signed_run.__module__], "JOB", f"rows {job.digest}")
    shop = signed_run(tmp_path, SENT)["shop"]
    (shop / "job.toml").write_text(job.text)
    told = verify_runs([shop])
    assert (told["state"], told["parties"]) == (CHANGED, ["shop"])
    text = verified_text(told)
    assert "has no transcript of its align" in text and "has no transcript of its test" in text
    (shop / "job.toml").write_text(job.text.replace('"telecom"', '"telekom"'))
    assert "is not the job that the messages belong to" in verified_text(verify_runs([shop]))
