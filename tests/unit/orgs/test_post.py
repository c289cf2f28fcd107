"""Letters for a party without an address: whoever is new on the roster is asked for them too."""

import threading
from queue import Queue

from offbeat.orgs.control import Letters, Poll, Reply
from offbeat.orgs.post import LetterFetching
from offbeat.runtime.grpc.identity import Member, PinnedRoster

WITHIN_S = 120.0


class Calls:
    """Peers that have one letter each, and then none."""

    def __init__(self, *addressed: str, own: str = "") -> None:
        members = [Member(name, name.encode(), "there:1") for name in addressed]
        self.identity = Member("cy", b"cy")
        self.roster = PinnedRoster((*members, Member("cy", b"cy", own)))
        self.asked: Queue[tuple[str, bytes]] = Queue()
        self.ended = threading.Event()

    def call(self, peer, request, timeout_s=0.0):
        if isinstance(request, Poll):
            return Letters([(1, b"hello")])
        assert isinstance(request, Reply)
        self.asked.put((peer, request.answer))
        self.ended.wait(WITHIN_S)
        return None


def answer(member, request):
    return member.certificate_pem + b" " + request


def test_a_new_member_is_asked_for_letters_and_others_not_twice() -> None:
    ended = threading.Event()
    now = [Calls("ana")]
    fetching = LetterFetching(lambda: now[0], answer, ended)  # type: ignore[arg-type, return-value]
    try:
        fetching.begin()
        assert now[0].asked.get(timeout=WITHIN_S) == ("ana", b"ana hello")
        now.insert(0, Calls("ana", "bo"))
        fetching.begin()
        assert now[0].asked.get(timeout=WITHIN_S) == ("bo", b"bo hello")
        now[1].ended.set()  # ana's thread goes on, by the new roster
        assert now[0].asked.get(timeout=WITHIN_S) == ("ana", b"ana hello")
        assert now[0].asked.empty() and now[1].asked.empty()
    finally:
        ended.set()
        for calls in now:
            calls.ended.set()


def test_a_party_with_an_address_asks_nobody() -> None:
    calls = Calls("ana", own="here:1")
    before = threading.active_count()
    LetterFetching(lambda: calls, answer, threading.Event()).begin()  # type: ignore[arg-type, return-value]
    assert threading.active_count() == before
