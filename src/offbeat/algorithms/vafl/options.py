"""How VAFL is to train, and the sentences about privacy that follow from it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from offbeat.errors import BadJob
from offbeat.learning.embeddings import AdditiveHead, ClientPenalty, Embedding, Head, Optimiser, Sgd
from offbeat.names import did_you_mean
from offbeat.party.contract import PartyName
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.privacy.noise import SEEDED_WARNING

VARIANTS = ("vafl", "vafl-tsync", "vafl-sync")


@dataclass(frozen=True)
class Vafl:
    """How to train. One pass means that each client has uploaded N rows on average (the initial upload not counted)."""

    variant: str = "vafl"
    batch: int = 64
    passes: float = 10.0
    seconds: float | None = None  # stop after this time even if passes are left
    t: int | None = None  # vafl-tsync: clients per head update; None: half of them, rounded up
    delay_bound: float | None = 5.0  # in units of N*M/batch head updates; None: no forced refresh
    in_flight: int = 1  # uploads a client may have under way
    rates: Mapping[PartyName, float] = field(default_factory=dict)  # Poisson activations a second; absent: at once
    sampling: str = "shuffled"
    together: bool = False  # for a head whose passes take long: see `Company`
    initial_upload: bool = True
    zeros_known: bool = False  # every embedding is zero at first and the server knows: see `known_start`
    optimiser: Optimiser = Sgd(0.1)  # noqa: RUF009  (frozen)
    head_optimiser: Optimiser = Sgd(0.1)  # noqa: RUF009
    penalty: ClientPenalty = ClientPenalty()  # noqa: RUF009
    optimisers: Mapping[PartyName, Optimiser] = field(default_factory=dict)  # of single clients; absent: `optimiser`
    penalties: Mapping[PartyName, ClientPenalty] = field(default_factory=dict)  # of single clients; absent: `penalty`
    noise: float = 0.0  # perturbed embedding, no privacy claim: deviation of the last layer's noise
    inner_noise: bool = False  # perturbed embedding: whether a network's Perturb layers are active
    private: PrivateEmbedding | None = None
    label_dp_epsilon: float | None = None
    chunk: int = 4096  # rows a message of the initial upload and of prediction
    retry_s: float = 2.0
    retries_max: int = 40

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise BadJob(f"Unknown variant of VAFL {self.variant!r}. {did_you_mean(self.variant, VARIANTS)}")
        for name in ("batch", "in_flight", "chunk", "retry_s", "retries_max"):
            if not getattr(self, name) > 0:
                raise BadJob(f"{name} must be above 0; got {getattr(self, name)}.")
        if self.private is not None and (self.noise or self.inner_noise):
            raise BadJob(
                "Private mode brings its own noise on the last layer; noise in the inner layers has bounded support "
                "and buys no privacy. Leave `noise` and `inner_noise` out, or leave `private` out."
            )
        if any(not rate > 0 for rate in self.rates.values()):
            raise BadJob(f"Every activation rate must be above 0 (activations a second); got {dict(self.rates)}.")

    def optimiser_of(self, client: PartyName) -> Optimiser:
        return self.optimisers.get(client, self.optimiser)

    def penalty_of(self, client: PartyName) -> ClientPenalty:
        return self.penalties.get(client, self.penalty)

    def contributors(self, clients: int) -> int:
        """How many different clients one head update waits for."""
        if self.variant == "vafl":
            return 1
        if self.variant == "vafl-sync":
            return clients
        wanted = math.ceil(clients / 2) if self.t is None else self.t
        if not 1 <= wanted <= clients:
            raise BadJob(f"t must lie between 1 and the number of clients, {clients}; got {wanted}.")
        return wanted

    def lag_max(self, rows: int, clients: int) -> float:
        """The delay bound in head updates."""
        if self.delay_bound is None or self.variant == "vafl-sync":
            return math.inf
        return self.delay_bound * rows * clients / self.batch


def privacy_label(options: Vafl) -> str:
    """What may be said about the noise, in one line."""
    if options.private is not None:
        return "private: clipped embeddings, counted Gaussian releases, private gradient steps"
    if options.noise or options.inner_noise:
        return "perturbed, no privacy claim"
    return "none: embeddings leave as they are"


def what_clients_learn(head: Head, options: Vafl) -> str:
    """The sentence on labels that belongs into every report."""
    if options.label_dp_epsilon is not None:
        return (
            f"Labels were answered at random once, before training: {options.label_dp_epsilon:g}-label-privacy for "
            "everything the derivatives tell the clients, however often they are sent."
        )
    if head.loss_name == "squared":
        return (
            "Derivatives sent to a client give the rows' targets away: each is the prediction so far less the target, "
            "and at first nothing is predicted. Clients must be trusted with the targets; label_dp_epsilon is for "
            "classes alone."
        )
    if isinstance(head, AdditiveHead):
        return (
            "Every derivative sent to a client gives the row's label away: with an additive head it is the expected "
            "minus the true target. Clients must be trusted with the labels, or label_dp_epsilon set."
        )
    return (
        "Derivatives sent to clients leak labels by their size and direction (Li and others 2022, Fu and others "
        "2022). Clients must be trusted with the labels, or label_dp_epsilon set."
    )


def noise_warning(secret_noise: bool, options: Vafl) -> str:
    """What the record must say about where noise came from; empty if nothing."""
    noisy = options.private is not None or options.noise or options.label_dp_epsilon is not None
    return SEEDED_WARNING if noisy and not secret_noise else ""


def known_start(options: Vafl, embeddings: Iterable[Embedding]) -> Vafl:
    """In private mode nothing is spent on a first upload where every first embedding is zero whatever the rows hold:
    the server fills its table with zeros by itself. Elsewhere a first upload must leave something to train with."""
    if options.private is None:
        return options
    if all(embedding.begins_at_zero for embedding in embeddings):
        return replace(options, initial_upload=False, zeros_known=True)
    if options.initial_upload and options.variant != "vafl-sync" and options.private.uploads_max == 1:
        raise BadJob(
            "uploads_max is 1, and the initial upload of every row is that one: nothing would be trained. Set it to 2 "
            "or more, or set initial_upload to false."
        )
    return options
