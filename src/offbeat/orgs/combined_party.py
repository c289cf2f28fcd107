"""Two parties under one roof: a label holder that also has columns is VAFL's server and one of its clients.

To everybody else they are one party with one name. What they tell each other never leaves the house: it is handled at
once, in the order in which it was said.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from offbeat.party import contract


class CombinedParty:
    """The first of `members` has the house's name: it hears what comes from outside, and its end is the house's."""

    def __init__(self, members: Sequence[contract.Party]) -> None:
        self.members = tuple(members)
        self.name: contract.PartyName = self.members[0].name
        self._place = {member.name: place for place, member in enumerate(self.members)}

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        waiting = deque(self._for_whom(event))
        outside: list[contract.Effect] = []
        while waiting:
            place, news = waiting.popleft()
            for effect in self.members[place].handle(news):
                if isinstance(effect, (contract.Send, contract.Broadcast)):
                    self._post(self.members[place].name, effect, waiting, outside)
                elif not isinstance(effect, contract.Finish) or place == 0:
                    outside.append(self._marked(effect, place))
        return outside

    def _for_whom(self, event: contract.Event) -> list[tuple[int, contract.Event]]:
        count = len(self.members)
        if isinstance(event, contract.Received):
            return [(0, event)]
        if isinstance(event, contract.Computed):
            ticket, place = divmod(event.ticket, count)
            return [(place, contract.Computed(ticket, event.result))]
        if isinstance(event, contract.Woken):
            token, place = divmod(event.token, count)
            return [(place, contract.Woken(token))]
        return [(place, event) for place in range(count)]

    def _post(
        self,
        sender: contract.PartyName,
        effect: contract.Send | contract.Broadcast,
        waiting: deque[tuple[int, contract.Event]],
        outside: list[contract.Effect],
    ) -> None:
        to = (effect.to,) if isinstance(effect, contract.Send) else effect.to
        waiting.extend(
            (self._place[name], contract.Received(sender, effect.body)) for name in to if name in self._place
        )
        away = tuple(name for name in to if name not in self._place)
        if away:
            outside.append(effect if isinstance(effect, contract.Send) else contract.Broadcast(away, effect.body))

    def _marked(self, effect: contract.Effect, place: int) -> contract.Effect:
        """Tickets and tokens say whose they are."""
        if isinstance(effect, contract.Compute):
            return msgspec.structs.replace(effect, ticket=effect.ticket * len(self.members) + place)
        if isinstance(effect, contract.Wake):
            return msgspec.structs.replace(effect, token=effect.token * len(self.members) + place)
        return effect

    def snapshot(self) -> contract.State:
        return {"members": [member.snapshot() for member in self.members]}

    def restore(self, state: Mapping[str, object]) -> None:
        kept = state["members"]
        assert isinstance(kept, list)
        for member, one in zip(self.members, kept, strict=True):
            member.restore(one)
