"""Attacks of those who may ask for joint scores: on masks of standing sessions, on caps, and on the room for others."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

pytest.importorskip("starlette", reason="needs the extra 'serve'")

from offbeat.errors import BadData, BadInput, BadJob
from offbeat.jobs.organisations import job_from_text
from offbeat.orgs.service.app import Service
from offbeat.orgs.service.batches import Batches, State
from offbeat.orgs.service.callers import Caller, Quotas, TooMuch
from offbeat.orgs.standing import Lane, Terms
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import FRACTION_BITS, scale_of
from offbeat.runtime.grpc.identity import Member, new_identity

PARTIES = ("ana", "bo", "cy", "eve")
SCALE = scale_of(FRACTION_BITS)
TOKEN = b"t" * 16


def test_a_friend_of_the_asker_that_offers_anothers_key_as_its_own_unmasks_nobody() -> None:
    """Before: Ana, who sorts before Bo, signed Cy's key as hers. Bo subtracted for Ana what he added for Cy: his words
    went to Eve unmasked, in a session of four with two honest parties."""
    identities = {name: new_identity(name) for name in ("ana", "bo", "cy")}
    members = {name: Member(name, identity.certificate_pem) for name, identity in identities.items()}
    terms = Terms("credit-1", "score-1", "eve", PARTIES, SumOptions())
    bo, cy = (Lane(terms, name, os.urandom(32)) for name in ("bo", "cy"))
    public, signature = cy.offer(identities["cy"])
    stolen = (public, identities["ana"].sign(terms.signed_by("ana", public)))
    bo.take({"ana": stolen, "cy": (public, signature)}, members)
    bo.claim(0)
    words = bo.words(0, TOKEN, np.array([1.25]), np.array([True]))
    assert words[0] != 0 and abs(words.view(np.int64)[1] / SCALE - 1.25) > 1e-3


class Endless:
    """A request whose body never ends; `sent` is how many ids were read of it."""

    def __init__(self) -> None:
        self.sent = 0

    async def stream(self):  # type: ignore[no-untyped-def]
        while True:
            self.sent += 1000
            yield b"c1\n" * 1000


def test_an_upload_takes_no_more_of_the_disk_than_its_quota(tmp_path: Path) -> None:
    """Before: a caller with ten rows a day wrote five million ids, in as many uploads at once as it liked: a batch
    counted when its upload had ended."""
    service = Service.__new__(Service)
    service.quotas, service.batches = Quotas(tmp_path), Batches(tmp_path, "run-1", lambda ids: None)  # type: ignore[arg-type, return-value]
    service.caller = lambda request: Caller(name="web", digest="", rows_a_day=10)  # type: ignore[method-assign]
    body = Endless()
    with pytest.raises(TooMuch, match="10 left"):
        asyncio.run(service.new_batch(body))  # type: ignore[arg-type]
    assert body.sent == 1000 and not list((tmp_path / "batches").iterdir()) and not service.batches.all()
    rooms = [service.batches.room("web") for _ in range(2)]
    with pytest.raises(BadInput, match="2 batches under way, the most at once"):
        service.batches.room("web")
    service.batches.drop(rooms[0].name)
    assert service.batches.room("web").is_dir()


@pytest.mark.parametrize("entry", ["hidden = [1000000000, 1000000000]", "channels = 100000000", f"hidden = {[1] * 17}"])
def test_a_proposal_asks_for_no_network_that_fills_the_memory(entry: str) -> None:
    """Before: any width. A daemon whose owner allows VAFL asked for 8 EB, or was ended by the operating system."""
    text = 'name = "j"\nparties = ["a", "b", "c"]\nlabels_at = ["a"]\n[method]\nalgorithm = "vafl"\n[embedding]\n'
    with pytest.raises(BadJob, match=r"embedding\.(hidden|channels)"):
        job_from_text(f'{text}kind = "mlp"\n{entry}\n')


def test_batches_of_one_caller_leave_room_for_others(tmp_path: Path) -> None:
    """Tried: a hundred batches of one row each. They were kept for a day, and nobody else could order one."""
    batches = Batches(tmp_path, "run-1", lambda ids: None)  # type: ignore[arg-type, return-value]
    for _ in range(25):
        over = State(batches.room("web").name, "web", "run-1", 1, time.time(), standing="done")
        batches._note(over)
    with pytest.raises(BadInput, match="25 batches of 'web' are kept already"):
        batches.room("web")
    assert batches.room("desk").is_dir()
    batches.remove(over.name, "web")
    assert batches.room("web").is_dir()


def test_one_caller_reads_few_batches_at_a_time_and_from_a_row_that_is_a_number(tmp_path: Path) -> None:
    """Tried: open the rows of a batch under way again and again, at the pace that a caller may have. Each held a file
    until the batch was over."""
    service = Service.__new__(Service)
    service.reading, service.batches = Counter(), Batches(tmp_path, "run-1", lambda ids: None)  # type: ignore[arg-type, return-value]
    service.caller = lambda request: Caller(name="web", digest="")  # type: ignore[method-assign]
    folder = service.batches.room("web")
    (folder / "rows.csv").write_bytes(b"id,score,probability\n")
    service.batches._note(State(folder.name, "web", "run-1", 1, 0.0, size=21, standing="working"))

    def asked(first: str = "0") -> Any:
        return SimpleNamespace(path_params={"batch": folder.name}, query_params={"from": first})

    async def receive() -> Any:
        return await asyncio.Event().wait()

    async def read(heard: list[Any]) -> None:
        async def send(message: Any) -> None:
            heard.append(message.get("body"))

        answer = await service.batch_rows(asked())
        await answer({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    async def reads() -> None:
        """All at once: they were counted only when their answers began."""
        heard: list[list[Any]] = [[] for _ in range(100)]
        done, reading = await asyncio.wait([asyncio.create_task(read(mine)) for mine in heard], timeout=1.0)
        assert len(reading) == 8 and all(isinstance(one.exception(), TooMuch) for one in done)
        assert sum(b"id,score,probability\n" in mine for mine in heard) == 8
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert service.reading["web"] == 0 and await service.batch_rows(asked())

    asyncio.run(reads())
    for odd in ("²", "9" * 5000, "-1", ""):
        with pytest.raises(BadInput, match="expected how many rows you have already"):
            asyncio.run(service.batch_rows(asked(odd)))


def test_a_long_line_of_a_batch_is_no_id(tmp_path: Path) -> None:
    """Before: only the line at the end of a piece was measured. Ten rows a day were ten times as many bytes as a piece
    of the network holds, on the disk and in memory."""
    service = Service.__new__(Service)
    service.quotas, service.batches = Quotas(tmp_path), Batches(tmp_path, "run-1", lambda ids: None)  # type: ignore[arg-type, return-value]
    service.caller = lambda request: Caller(name="web", digest="", rows_a_day=10)  # type: ignore[method-assign]

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"c" * 60_000 + b"\n"

    with pytest.raises(BadInput, match="at most 5,000,000 ids of 256 bytes"):
        asyncio.run(service.new_batch(SimpleNamespace(stream=pieces)))  # type: ignore[arg-type]
    assert not list((tmp_path / "batches").iterdir())


def test_a_caller_is_told_no_cell_of_a_table(caplog: pytest.LogCaptureFixture) -> None:
    """Before: the service asks its daemon in the owner's name, and gave the owner's errors to whoever had a token."""
    cell = "column 'salary' has 'about 4,100' in row 7, which is no number"

    def broken(request: object, within_s: float) -> Any:
        raise BadData(cell)

    service = Service.__new__(Service)
    service.home, service.run, service.answers = SimpleNamespace(name="bank"), "run-1", Counter()  # type: ignore[assignment]
    service.daemon = SimpleNamespace(ask=broken)  # type: ignore[assignment]
    service.batches = SimpleNamespace(state=lambda name, caller: service._ask(["c1"], 1.0))  # type: ignore[assignment]
    service.caller = lambda request: Caller(name="web", digest="")  # type: ignore[method-assign]
    answer = asyncio.run(service._polite(service.batch)(SimpleNamespace(path_params={"batch": "b"})))  # type: ignore[arg-type]
    assert answer.status_code == 503 and b"salary" not in answer.body and b"'bank' failed while scoring" in answer.body
    assert cell in caplog.text
