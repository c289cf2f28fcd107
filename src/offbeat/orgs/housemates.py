"""Two parties under one roof: a label holder that also has columns is VAFL's server and one of its clients.

To everybody else they are one party with one name. What they tell each other never leaves the house: it is handled at
once, in the order in which it was said.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from offbeat.party.contract import (
    Broadcast,
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Party,
    PartyName,
    Received,
    Send,
    State,
    Wake,
    Woken,
)


class Housemates:
    """The first of `members` has the house's name: it hears what comes from outside, and its end is the house's."""

    def __init__(self, members: Sequence[Party]) -> None:
        self.members = tuple(members)
        self.name: PartyName = self.members[0].name
        self._place = {member.name: place for place, member in enumerate(self.members)}

    def handle(self, event: Event) -> list[Effect]:
        waiting = deque(self._for_whom(event))
        outside: list[Effect] = []
        while waiting:
            place, news = waiting.popleft()
            for effect in self.members[place].handle(news):
                if isinstance(effect, (Send, Broadcast)):
                    self._post(self.members[place].name, effect, waiting, outside)
                elif not isinstance(effect, Finish) or place == 0:
                    outside.append(self._marked(effect, place))
        return outside

    def _for_whom(self, event: Event) -> list[tuple[int, Event]]:
        count = len(self.members)
        if isinstance(event, Received):
            return [(0, event)]
        if isinstance(event, Computed):
            ticket, place = divmod(event.ticket, count)
            return [(place, Computed(ticket, event.result))]
        if isinstance(event, Woken):
            token, place = divmod(event.token, count)
            return [(place, Woken(token))]
        return [(place, event) for place in range(count)]

    def _post(
        self, sender: PartyName, effect: Send | Broadcast, waiting: deque[tuple[int, Event]], outside: list[Effect]
    ) -> None:
        to = (effect.to,) if isinstance(effect, Send) else effect.to
        waiting.extend((self._place[name], Received(sender, effect.body)) for name in to if name in self._place)
        away = tuple(name for name in to if name not in self._place)
        if away:
            outside.append(effect if isinstance(effect, Send) else Broadcast(away, effect.body))

    def _marked(self, effect: Effect, place: int) -> Effect:
        """Tickets and tokens say whose they are."""
        if isinstance(effect, Compute):
            return msgspec.structs.replace(effect, ticket=effect.ticket * len(self.members) + place)
        if isinstance(effect, Wake):
            return msgspec.structs.replace(effect, token=effect.token * len(self.members) + place)
        return effect

    def snapshot(self) -> State:
        return {"members": [member.snapshot() for member in self.members]}

    def restore(self, state: Mapping[str, object]) -> None:
        kept = state["members"]
        assert isinstance(kept, list)
        for member, one in zip(self.members, kept, strict=True):
            member.restore(one)
