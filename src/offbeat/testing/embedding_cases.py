"""Small VAFL runs drawn from a seed: problem, options, noise, caps, costs and faults; and what must hold of each.

While a run goes on: every message survives the codec, a release number stands for the same bytes for ever, also across
restarts, and no row is released more often than its ledger says. At its end: it ended for a good reason, and learned.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.algorithms.vafl.messages import MESSAGES, PredictGiven, Refreshed, Upload
from offbeat.learning.embeddings import (
    Adam,
    AdditiveHead,
    ClientPenalty,
    Embedding,
    Head,
    LinearEmbedding,
    Optimiser,
    Sgd,
)
from offbeat.message.codec import Codec
from offbeat.party.contract import Effect, Event, Party, PartyName, Send
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.randomness import stream
from offbeat.runtime.contract import Outcome
from offbeat.runtime.simulator import CostModel, Jitter, Link
from offbeat.runtime.simulator.checkers import Checker, Violation
from offbeat.testing.algorithm_checks import Trial, run_trial

HEALED_AFTER_S = 0.5
DETECT_S = 0.02
LEARNED = 0.9  # of the first objective, at most


class ReleasedOnce(Checker):
    """A release number stands for one value, and a row leaves as often as its ledger says, at most."""

    def __init__(self) -> None:
        self.codec = Codec(MESSAGES)
        self.sent: dict[tuple[PartyName, int], bytes] = {}
        self.rows: dict[PartyName, Counter[int]] = {}

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, Upload | Refreshed | PredictGiven):
                self._released(now_s, party.name, effect.body)

    def _released(self, now_s: float, name: PartyName, body: Upload | Refreshed | PredictGiven) -> None:
        frame = bytes(self.codec.encode(body))
        known = self.sent.setdefault((name, body.release), frame)
        if known != frame:
            raise Violation(f"at {now_s:g} s {name} sent release {body.release} a second time with other bytes")
        if known is frame and not isinstance(body, PredictGiven):
            self.rows.setdefault(name, Counter()).update(body.rows.tolist())

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        for party in parties:
            ledger = getattr(party, "ledger", None)
            if ledger is None:
                continue
            for row, times in self.rows.get(party.name, Counter()).items():
                if times > min(ledger.released[row], ledger.mechanism.uploads_max):
                    raise Violation(f"{party.name} released row {row} {times} times; counted {ledger.released[row]}")


def draw_embedding_parties(seed: int, variant: str) -> list[Server | Client]:
    """The same call gives the same parties."""
    rng = stream(seed, "small embedding problem")
    clients, rows, classes = int(rng.integers(2, 5)), int(rng.integers(40, 90)), int(rng.integers(2, 4))
    widths = [int(rng.integers(2, 5)) for _ in range(clients)]
    x = rng.standard_normal((rows + 10, sum(widths)))
    labels = np.argmax(x @ rng.standard_normal((sum(widths), classes)), axis=1)
    cuts = np.split(x, np.cumsum(widths)[:-1], axis=1)
    names = [f"client{i}" for i in range(clients)]
    binary = classes == 2 and rng.random() < 0.5
    head: Head = AdditiveHead(1, "logistic") if binary else AdditiveHead(classes)
    targets = labels[:, None].astype(float) if binary else vafl.one_hot(labels, classes)
    embeddings: dict[PartyName, Embedding] = {
        name: LinearEmbedding(width, head.outputs, bias=bool(rng.random() < 0.3))
        for name, width in zip(names, widths, strict=True)
    }
    server, made = vafl.build(
        {name: cut[:rows] for name, cut in zip(names, cuts, strict=True)},
        targets[:rows],
        embeddings,
        head,
        draw_embedding_options(rng, variant, names),
        seed=seed,
        test_features={name: cut[rows:] for name, cut in zip(names, cuts, strict=True)},
        test_targets=targets[rows:],
    )
    return [server, *made]


def draw_embedding_options(rng: np.random.Generator, variant: str, names: Sequence[PartyName]) -> Vafl:
    """Options as varied as users' are; a fifth of the runs are private."""
    rule: Optimiser = Sgd(0.3) if rng.random() < 0.7 else Adam(0.05)
    options = Vafl(
        variant=variant,
        batch=int(rng.choice([5, 10, 20])),
        passes=8.0,
        t=int(rng.integers(1, len(names) + 1)),
        delay_bound=[None, 0.5, 1.0, 5.0][int(rng.integers(4))],
        in_flight=int(rng.integers(1, 4)),
        sampling=str(rng.choice(["shuffled", "uniform"])),
        initial_upload=bool(rng.random() < 0.8),
        optimiser=rule,
        head_optimiser=rule,
        penalty=ClientPenalty("l2", 1e-3) if rng.random() < 0.5 else ClientPenalty(),
        noise=float(rng.choice([0.0, 0.0, 0.1])),
        label_dp_epsilon=None if rng.random() < 0.8 else 8.0,
        chunk=int(rng.choice([16, 4096])),
        retry_s=0.05,
    )
    if rng.random() < 0.2:
        mechanism = PrivateEmbedding(noise=0.5, gradient_noise=1.0, uploads_max=int(rng.integers(2, 6)))
        return replace(options, private=mechanism, noise=0.0, passes=60.0)
    if rng.random() < 0.2 and variant != "vafl-sync":
        return replace(options, rates={names[0]: 200.0})
    return options


def run_embedding_case(seed: int, fault: str, variant: str) -> tuple[Outcome, str, tuple[int, int, int]]:
    """(outcome, what is wrong or nothing, how often was retried, abandoned, refused)."""
    first: Sequence[Any] = draw_embedding_parties(seed, variant)
    before = vafl.objective(first[0], first[1:])
    trial = Trial(
        build=lambda: draw_embedding_parties(seed, variant),
        messages=MESSAGES,
        checkers=lambda: [ReleasedOnce()],
        converged=lambda outcome, parties: _judge(outcome, parties, before)[0],
        costs=_draw_costs(seed, [party.name for party in first[1:]]),
        healed_after_s=HEALED_AFTER_S,
        detect_s=DETECT_S,
    )
    outcome, parties = run_trial(trial, fault, seed)
    return outcome, *_judge(outcome, parties, before)


def _draw_costs(seed: int, clients: Sequence[PartyName]) -> CostModel:
    rng = stream(seed, "costs")
    slow = {str(rng.choice(clients)): float(rng.uniform(1.0, 5.0))}
    return CostModel(
        slow=slow, jitter=Jitter(str(rng.choice(["none", "exponential", "poisson"])), 1.5), link=Link(2e-4)
    )


def _judge(outcome: Outcome, parties: Sequence[Any], before: float) -> tuple[str, tuple[int, int, int]]:
    server, clients = parties[0], parties[1:]
    retried = sum(client.releases.retried for client in clients)
    counts = (retried, server.refreshes.abandoned, server.refreshes.refused_rows)
    expected = "passes" if server.options.private is None else "budget"
    verdicts = {finish.verdict for finish in outcome.finished.values()}
    if server.verdict != expected or not verdicts <= {expected, "peer-lost"}:
        return f"ended with {sorted(verdicts)}, the server with {server.verdict!r}: {server.reason}", counts
    after = vafl.objective(server, clients)
    if server.options.private is None and not after < LEARNED * before:
        return f"the objective went from {before:.3f} to {after:.3f} only", counts
    return "", counts
