"""How a run ends: the server tells everyone why until all have said goodbye or nobody answers."""

from collections.abc import Sequence
from typing import Any

from offbeat.algorithms.vafl_messages import Halt
from offbeat.party.contract import Broadcast, Effect, Finish, PartyName, Wake

TRIES_MAX = 5


class Farewell:
    def __init__(self, clients: Sequence[PartyName], retry_s: float, token: int) -> None:
        self.clients, self.retry_s, self.token = tuple(clients), retry_s, token
        self.verdict = self.reason = ""
        self.iteration = self.tries = 0
        self.gone: set[int] = set()

    @property
    def body(self) -> Halt:
        return Halt(self.verdict, self.reason, self.iteration)

    def say(self, iteration: int) -> list[Effect]:
        self.iteration = iteration
        return [Broadcast(self.clients, self.body), Wake(self.retry_s, self.token)]

    def say_again(self) -> list[Effect]:
        self.tries += 1
        left = tuple(name for i, name in enumerate(self.clients) if i not in self.gone)
        if not left or self.tries > TRIES_MAX:
            return [Finish(self.verdict, self.reason)]
        return [Broadcast(left, self.body), Wake(self.retry_s, self.token)]

    def goodbye(self, client: int) -> list[Effect]:
        self.gone.add(client)
        return [Finish(self.verdict, self.reason)] if len(self.gone) == len(self.clients) else []

    def snapshot(self) -> list[Any]:
        return [self.verdict, self.reason, self.iteration, self.tries, sorted(self.gone)]

    def restore(self, state: Sequence[Any]) -> None:
        self.verdict, self.reason, self.iteration, self.tries, gone = state
        self.gone = set(gone)
