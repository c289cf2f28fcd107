"""How one party takes part in a run: every period and bound of a session in one place."""

from dataclasses import dataclass, field
from typing import Literal

from offbeat.errors import BadInput
from offbeat.runtime.delivery import Bounds

OnLoss = Literal["wait", "continue", "stop"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`on_loss` says what happens when a peer has not been heard for `loss_s` seconds:

    wait        go on waiting, up to `wait_s` in all; then as with 'stop'
    continue    tell the party, which goes on without that peer and takes it back when it returns
    stop        tell the party, which has `grace_s` to end by itself; then end it with the verdict 'peer-lost'
    """

    lanes: int = 1
    on_loss: OnLoss = "wait"
    beat_s: float = 1.0
    silence_s: float = 5.0  # a stream on which nothing was heard for so long is replaced
    loss_s: float = 15.0
    wait_s: float = 600.0
    greet_s: float = 120.0  # without 'wait': a peer that has not been heard yet may still be reading its data
    grace_s: float = 10.0
    linger_s: float = 30.0  # a finished party stays so long for peers that have got everything and go on
    checkpoint_s: float = 30.0
    mark_events: int = 1000
    batch_events: int = 32  # events handled before their effects leave together
    fsync: bool = False  # True: survive a power cut, not only a crash of the process
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def patience_s(self) -> float:
        """The silence after which a peer is lost; so long a finished party stays for one that lacks messages."""
        return self.wait_s if self.on_loss == "wait" else self.loss_s

    @property
    def first_patience_s(self) -> float:
        """The same for a peer that has not been heard yet."""
        return self.wait_s if self.on_loss == "wait" else max(self.greet_s, self.loss_s)

    def __post_init__(self) -> None:
        if self.on_loss not in ("wait", "continue", "stop"):
            raise BadInput(f"on_loss = '{self.on_loss}': expected 'wait', 'continue' or 'stop'.")
        if not 0 < self.beat_s < self.silence_s <= self.loss_s <= self.wait_s:
            raise BadInput(
                "expected 0 < beat_s < silence_s <= loss_s <= wait_s, got "
                f"{self.beat_s:g}, {self.silence_s:g}, {self.loss_s:g}, {self.wait_s:g}."
            )
