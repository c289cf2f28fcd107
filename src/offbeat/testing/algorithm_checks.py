"""What every algorithm must do before it is called one. Use it for yours:

    check_algorithm(Trial(build=..., messages=MESSAGES, checkers=..., converged=..., distance=...))

`check_algorithm` asks: same seed, same run, byte for byte; every message sent has a handler and survives the codec;
nothing that the checkers forbid happens; without delay the result agrees with the reference; under each fault profile
the run ends or says why, and converges once the faults have stopped; a party restored from a snapshot goes on as if
nothing had been.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offbeat.party.contract import Message, Party
from offbeat.randomness import stream
from offbeat.runtime.contract import Outcome
from offbeat.runtime.simulator import PROFILES, CostModel, Simulator, profile
from offbeat.runtime.simulator.checkers import Checker, CodecFaithful, EndsOrSaysWhy
from offbeat.testing.party_checks import check_party


@dataclass(frozen=True)
class Trial:
    """An algorithm and what is to be expected of it.

    `build` makes equal parties each time (seed everything, keys included). `checkers` makes those that fit it.
    `converged` says in a sentence what is missing once a run has ended, or nothing. `distance` is how far the parties
    are from a slow, obvious reference after a run without delay; None where there is none to compare with.
    """

    build: Callable[[], Sequence[Party]]
    messages: tuple[type[Message], ...]
    checkers: Callable[[], Sequence[Checker]]
    converged: Callable[[Outcome, Sequence[Party]], str]
    distance: Callable[[Outcome, Sequence[Party]], float] | None = None
    distance_most: float = 1e-9
    costs: CostModel = field(default_factory=CostModel)
    healed_after_s: float = 0.2
    limit_s: float = 120.0
    detect_s: float = 0.04
    checkpoint_events: int = 0


def check_algorithm(trial: Trial, *, profiles: Sequence[str] = PROFILES, seeds: Sequence[int] = (0,)) -> list[str]:
    """Raise where something is wrong; give back what was asked, one line each."""
    asked = [_same_seed_same_run(trial), _restored_parties_go_on(trial)]
    if trial.distance is not None:
        asked.append(_agrees_with_the_reference(trial))
    return asked + [_survives(trial, name, seed) for name in profiles for seed in seeds]


def _same_seed_same_run(trial: Trial) -> str:
    first, second = (run_trial(trial, "swarm", 1)[0].digest for _ in range(2))
    assert first == second, f"the same seed gave two different runs: {first} and {second}"
    return "same seed, same run"


def _restored_parties_go_on(trial: Trial) -> str:
    check_party(trial.build, costs=trial.costs)
    return "restored parties go on bit for bit"


def _agrees_with_the_reference(trial: Trial) -> str:
    outcome, parties = run_trial(trial, "calm", 0)
    assert trial.distance is not None
    distance = trial.distance(outcome, parties)
    assert distance <= trial.distance_most, f"{distance:g} from the reference; at most {trial.distance_most:g} allowed"
    return f"within {trial.distance_most:g} of the reference"


def _survives(trial: Trial, name: str, seed: int) -> str:
    outcome, parties = run_trial(trial, name, seed)
    missing = trial.converged(outcome, parties)
    assert not missing, f"profile {name}, seed {seed}: {missing}"
    return f"profile {name}, seed {seed}: ended and converged"


def run_trial(trial: Trial, name: str, seed: int, *watching: Checker) -> tuple[Outcome, Sequence[Party]]:
    """Under the faults of this profile and seed: how it ended, and the parties as they are then."""
    last = LastParties()
    parties = trial.build()
    names = [party.name for party in parties]
    simulator = Simulator(
        seed=seed,
        costs=trial.costs,
        faults=profile(name, names, stream(seed, name, "faults"), trial.healed_after_s),
        checkers=[last, *watching, CodecFaithful(trial.messages), *trial.checkers(), EndsOrSaysWhy()],
        rebuild=lambda lost: next(party for party in trial.build() if party.name == lost),
        checkpoint_events=trial.checkpoint_events,
        until_s=trial.limit_s,
        detect_s=trial.detect_s,
    )
    return simulator.run(parties), last.parties


class LastParties(Checker):
    """The parties as they are at the end of a run: those that crashed were made anew."""

    def __init__(self) -> None:
        self.parties: Sequence[Party] = ()

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        self.parties = parties
