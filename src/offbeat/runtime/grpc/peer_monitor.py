"""Watching over a party's peers: who fell silent, who came back, who ended otherwise than well, and when to give up.

A peer that is silent is first called again, then counted as lost; what that means is the job's `on_loss`. Whatever
happens, there is a verdict in bounded time.
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from offbeat.party.contract import Finish, PartyName, PeerBack, PeerLost
from offbeat.party.verdicts import ended_well
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.options import SessionOptions

REASON = ": "
_SETTLE_S = 0.5  # between a goodbye and its judgement: what the peer said before it must be handled first


class PeerMonitor:
    """Looks at the channels when asked; what it finds goes to the party as events, or ends the run."""

    def __init__(
        self,
        options: SessionOptions,
        channels: Mapping[PartyName, Channel],
        lost: Callable[[], AbstractSet[PartyName]],
        trouble: Callable[[PartyName], str],
        gone: Mapping[PartyName, str] | None = None,
        left: Callable[[PartyName], bool] = lambda peer: False,
    ) -> None:
        """`left`: whether a peer is known to have left this run, with all that it needs, for the one that follows."""
        self.options, self.channels, self._lost_peers = options, channels, lost
        self._gone = gone if gone is not None else {}  # peers known to have died, and how: they need not fall silent
        self._trouble, self._left = trouble, left
        self._goodbyes: dict[PartyName, float] = {}
        self._give_up_s: float | None = None
        self._alone_s: float | None = None  # since when nobody else is left in the run
        self._reason = ""

    @property
    def lost(self) -> AbstractSet[PartyName]:
        """The peers that the party was told are lost."""
        return self._lost_peers()

    def look(self, quiet: bool) -> list[PeerLost | PeerBack]:
        """News for the party. `quiet`: nothing that a peer has said is still waiting to be handled."""
        news: list[PeerLost | PeerBack] = []
        for peer, channel in self.channels.items():
            if channel.peer_verdict is not None:
                news += self._judge_goodbye(peer, channel.peer_verdict, quiet)
            elif peer in self._gone:
                news += self._judge_gone(peer)
            else:
                news += self._judge_silence(peer, channel)
        return news

    def verdict(self, idle: bool) -> Finish | None:
        """How the run must end now, if it must. `idle`: nothing is left here that could move the party."""
        if self._give_up_s is not None:
            return Finish("peer-lost", self._reason) if time.monotonic() >= self._give_up_s else None
        return self._left_behind(idle)

    def may_leave(self, finished_s: float) -> bool:
        """Whether a party that finished so many seconds ago may go."""
        return all(self._let_go(peer, channel, finished_s) for peer, channel in self.channels.items())

    def _let_go(self, peer: PartyName, channel: Channel, finished_s: float) -> bool:
        """Nobody who lacks one of our messages is left before it counts as lost."""
        if channel.over() or self._left(peer):
            return True
        if channel.peer_verdict is None and (peer in self.lost or peer in self._gone):
            return True
        return not channel.unacknowledged and (not channel.met or finished_s > self.options.linger_s)

    def _left_behind(self, idle: bool) -> Finish | None:
        """Nobody is left who could say anything more. A party that only watches the clock may still end by itself,
        and is given a moment for it."""
        well = [peer for peer, channel in self.channels.items() if _ended_well(channel)]
        if not well or any(peer not in well and peer not in self.lost for peer in self.channels):
            self._alone_s = None
            return None
        self._alone_s = self._alone_s if self._alone_s is not None else time.monotonic()
        if not idle and time.monotonic() - self._alone_s < self.options.grace_s + _SETTLE_S:
            return None
        said = self.channels[well[0]].peer_verdict
        return Finish("stalled", f"the others have ended ('{well[0]}': {said}), and this party was still waiting")

    def _judge_silence(self, peer: PartyName, channel: Channel) -> list[PeerLost | PeerBack]:
        options, silence_s = self.options, channel.silence_s()
        if channel.up and silence_s > options.silence_s:
            channel.abandon()
        if peer in self.lost:
            return self._back(peer) if channel.up and silence_s < options.silence_s else []
        if silence_s <= (options.patience_s if channel.met else options.first_patience_s):
            return []
        trouble = self._trouble(peer)
        what = f"was not heard for {silence_s:.0f} s" + (f" ({trouble})" if trouble else "")
        return self._lost(peer, what, options.grace_s)

    def _judge_gone(self, peer: PartyName) -> list[PeerLost | PeerBack]:
        """Nobody who only waits will do anything about it."""
        options = self.options
        grace_s = min(_SETTLE_S, options.grace_s) if options.on_loss == "wait" else options.grace_s
        return [] if peer in self.lost else self._lost(peer, self._gone[peer], grace_s)

    def _judge_goodbye(self, peer: PartyName, goodbye: str, quiet: bool) -> list[PeerLost | PeerBack]:
        """A peer that ended well has told our party what it needs to know; one that ended otherwise may not have."""
        verdict, _, reason = goodbye.partition(REASON)
        if ended_well(verdict) or peer in self.lost:
            return []
        seen_s = self._goodbyes.setdefault(peer, time.monotonic())
        if not quiet or time.monotonic() - seen_s < _SETTLE_S:
            return []
        return self._lost(peer, f"ended early ({verdict}): {reason}", min(_SETTLE_S, self.options.grace_s))

    def _lost(self, peer: PartyName, what: str, grace_s: float) -> list[PeerLost | PeerBack]:
        """Unless the party is to continue, it has a moment to end by itself, keeping the best it has."""
        if self.options.on_loss != "continue" and self._give_up_s is None:
            self._give_up_s = time.monotonic() + grace_s
            self._reason = f"'{peer}' {what}"
        return [PeerLost(peer)]

    def _back(self, peer: PartyName) -> list[PeerLost | PeerBack]:
        if self.lost <= {peer}:
            self._give_up_s = None
        return [PeerBack(peer)]


def _ended_well(channel: Channel) -> bool:
    return channel.peer_verdict is not None and ended_well(channel.peer_verdict.partition(REASON)[0])
