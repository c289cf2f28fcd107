"""One party in one run, over gRPC: a host for the party, a channel to each peer, and somebody who watches the peers.

Streams put what came into the host's inbox, and the host hands each message to its receivers' channels. Who falls
silent, who comes back and when to give up is decided between two batches of events.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from offbeat.errors import BadInput, DiskFull, OffbeatError, PeerFailed
from offbeat.message.codec import Codec
from offbeat.party.contract import END, Finish, Message, Party, PartyName, Woken
from offbeat.runtime.contract import Outcome
from offbeat.runtime.drive import Written
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.dialer import Dialer
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.peer_monitor import REASON, PeerMonitor
from offbeat.runtime.grpc.server import StreamServer
from offbeat.runtime.host import NO_DELAY, HostOptions, Letter, PartyHost, Watch
from offbeat.runtime.transcript import FORMAT, Chains, Notary, Transcript, TranscriptFile, transcript_path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_TICK_S = 0.25
_ASK_AFTER_S = 2.0
"""A party that has finished asks peers of which it has heard nothing: they may have left before it was restarted."""
_HURRY_S = 2.0
_FAILED = "failed"
_GOODBYE_TEXT = 250


class Session:
    """Takes one party through one run. `server` is shared by all runs of this party; a party without one only dials."""

    def __init__(
        self,
        identity: Identity,
        roster: PinnedRoster,
        party: Party,
        message_types: Sequence[type[Message]],
        *,
        run: str,
        server: StreamServer | None,
        peers: Sequence[PartyName] | None = None,
        options: SessionOptions | None = None,
        folder: Path | None = None,
        job_digest: str = "",
        watch: Watch | None = None,
        then: str = "",
    ) -> None:
        """`then`: the run that follows. A peer that calls for it has left this one, and whoever was restarted at its
        end need not wait for that peer's goodbye."""
        self.identity, self.party, self.run_name, self.then = identity, party, run, then
        self.server = server
        self.options = options or SessionOptions()
        self.job_digest = job_digest
        names = peers if peers is not None else roster.names
        self.roster = roster.among((*names, party.name))
        self.peers = tuple(name for name in names if name != party.name)
        codec = Codec(message_types)
        self.channels = {peer: self._new_channel(peer, codec) for peer in self.peers}
        self.host = PartyHost(
            party,
            codec,
            self._host_options(folder),
            self._send,
            links=self.channels,
            turn=self._watch_peers,
            watch=watch,
        )
        self._gone: dict[PartyName, str] = {}
        self._dialers: list[Dialer] = []
        self._tick_due_s = 0.0
        self._monitor = PeerMonitor(
            self.options, self.channels, lambda: self.host.drive.lost, self._trouble, self._gone, self._has_left
        )

    def _host_options(self, folder: Path | None) -> HostOptions:
        options = self.options
        return HostOptions(
            run_name=self.run_name,
            job_digest=self.job_digest,
            folder=folder,
            resume=True,
            batch_events=options.batch_events,
            mark_events=options.mark_events,
            checkpoint_s=options.checkpoint_s,
            fsync=options.fsync,
            costs=replace(NO_DELAY, lanes=options.lanes),
        )

    def _new_channel(self, peer: PartyName, codec: Codec) -> Channel:
        options = self.options
        notary = Notary(self.identity.sign, lambda who, what, by: self.roster.member(who).signed(what, by))
        return Channel(
            peer,
            codec,
            options.bounds,
            self._receive,
            beat_s=options.beat_s,
            notify=self._wake,
            transcript=Transcript(Chains(self.run_name, self.job_digest, self.party.name, peer), notary),
            fail=lambda problem: self.host.fail(problem),
        )

    # -- from any thread -------------------------------------------------------------------------------------------

    def channel(self, peer: PartyName) -> Channel:
        try:
            return self.channels[peer]
        except KeyError:
            raise PeerFailed(f"'{peer}' has no part in run '{self.run_name}'.") from None

    def stop(self, reason: str) -> None:
        """End the run here: the party is not asked."""
        self.host.stop(reason)

    def ask_to_end(self) -> None:
        """Let the party bring the run to an end by its protocol, if it has a way."""
        self.host.tell(Woken(END))

    def lose(self, peer: PartyName, how: str) -> None:
        """The peer has died, says somebody who knows, and will not come back."""
        self._gone[peer] = how
        self._wake()

    def trust(self, roster: PinnedRoster) -> None:
        """Take further certificates of those who take part."""
        self.roster = roster.among((*self.peers, self.party.name))
        for dialer in self._dialers:
            dialer.trust(self.roster)

    def _wake(self) -> None:
        self.host.inbox.wake()

    def _receive(self, sender: PartyName, number: int, frame: bytes, body: Message) -> None:
        self.host.receive(Letter(sender, frame, number=number, body=body))

    # -- the party's thread ----------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Take part until the party finishes, or raise what ended it early."""
        failure: OffbeatError | None = None
        try:
            self.host.begin()
            if not self._was_left:
                self._connect()
                self.host.run()
        except OffbeatError as problem:
            failure = problem
        except Exception as problem:
            if isinstance(problem, OSError) and problem.errno in DISK_FULL:
                self._vanish()
                raise DiskFull(f"no room is left for the log of run '{self.run_name}'.") from problem
            failure = OffbeatError(f"'{self.party.name}' failed in run '{self.run_name}': {problem!r}")
            failure.__cause__ = problem
        self._leave(failure)
        if failure is not None:
            raise failure
        self.host.end(Finish("stopped", self.host.stopped))
        return self.host.outcome()

    def _connect(self) -> None:
        if self.server is not None:
            self.server.serve(self.run_name, self)
        me = self.roster.member(self.party.name)
        for peer in self.channels:
            if we_dial(me, self.roster.member(peer)):
                self._dial(peer)

    def _dial(self, peer: PartyName) -> None:
        dialer = Dialer(
            self.identity,
            self.roster,
            self.roster.member(peer),
            self.channels[peer],
            run=self.run_name,
            job_digest=self.job_digest,
            give_up=self.host.fail,
            before=self.server.before if self.server is not None else lambda: None,
        )
        self._dialers.append(dialer)
        dialer.start()

    def _send(self, step: Written) -> None:
        for peer in step.to:
            self.channel(peer).send(step.frame)

    def _watch_peers(self) -> float:
        """What the peers' silence or return means, now and then; when to look again."""
        now = self.host.now()
        if now >= self._tick_due_s:
            self._tick_due_s = now + _TICK_S
            for news in self._monitor.look(quiet=not self.host.inbox.ready):
                self.host.handle([news])
            verdict = self._monitor.verdict(self.host.at_rest)
            if verdict is not None:
                self.host.end(verdict)
        return self._tick_due_s

    def _trouble(self, peer: PartyName) -> str:
        return next((dialer.trouble for dialer in self._dialers if dialer.peer.name == peer), "")

    def _has_left(self, peer: PartyName) -> bool:
        return bool(self.then) and self.server is not None and self.server.called(self.then, peer)

    def _vanish(self) -> None:
        """Go without a word, as in a crash: the log is whole up to its last record, and another session goes on."""
        for dialer in self._dialers:
            dialer.stop()
        for channel in self.channels.values():
            channel.close()
        if self.server is not None:
            self.server.withdraw(self.run_name)
        with suppress(OSError):
            self.host.close()

    @property
    def _was_left(self) -> bool:
        """An earlier process of this party has left the run, peers and all: a transcript is the last that it writes."""
        folder, finish = self.host.options.folder, self.host.drive.finished
        return folder is not None and finish is not None and transcript_path(folder, self.party.name).is_file()

    def _leave(self, failure: OffbeatError | None) -> None:
        """Let the peers have what is still theirs, within bounds, and say goodbye."""
        finish = self.host.drive.finished or Finish(_FAILED, str(failure or self.host.stopped))
        goodbye = f"{finish.verdict}{REASON}{finish.reason}"[:_GOODBYE_TEXT]
        if self._was_left:
            if self.server is not None:
                self.server.forget(self.run_name, goodbye)
            self.host.close()
            return
        for channel in self.channels.values():
            channel.finish(goodbye)
        hurried = failure is not None or bool(self.host.stopped)
        finished_s = self.host.now()
        self.host.linger(
            lambda: self._may_leave(self.host.now() - finished_s),
            min(_HURRY_S, self.options.linger_s) if hurried else self.options.first_patience_s,
        )
        for dialer in self._dialers:
            dialer.stop()
        for channel in self.channels.values():
            channel.close()
        for dialer in self._dialers:
            dialer.join(_TICK_S)
        if self.server is not None:
            self.server.forget(self.run_name, goodbye)
        self.host.close()
        try:
            self._write_transcript()
        except OSError as problem:
            if problem.errno not in DISK_FULL:
                raise
            raise DiskFull(f"no room is left for the transcript of run '{self.run_name}'.") from problem

    def _may_leave(self, finished_s: float) -> bool:
        if finished_s > _ASK_AFTER_S:
            dialled = {dialer.peer.name for dialer in self._dialers}
            for peer, channel in self.channels.items():
                if peer not in dialled and not channel.met and self.roster.member(peer).address:
                    self._dial(peer)
        return self._monitor.may_leave(finished_s)

    def _write_transcript(self) -> None:
        folder, roster = self.host.options.folder, self.roster
        if folder is None or not folder.is_dir():  # its owner has removed it
            return
        links = [account for channel in self.channels.values() for account in channel.accounts()]
        TranscriptFile(
            FORMAT,
            self.run_name,
            self.job_digest,
            self.party.name,
            {member.name: b"".join(member.certificates).decode() for member in roster.members},
            tuple(pem.decode() for pem in roster.authorities_pem),
            tuple(links),
        ).write(folder)


def we_dial(me: Member, peer: Member) -> bool:
    """One stream per pair: whoever cannot be called, calls; otherwise the later name calls the earlier."""
    if not me.address and not peer.address:
        raise BadInput(
            f"neither '{me.name}' nor '{peer.name}' has an address in the roster, so neither can call the other; give "
            "one of them an address that the other can reach."
        )
    if not peer.address:
        return False
    return not me.address or me.name > peer.name
