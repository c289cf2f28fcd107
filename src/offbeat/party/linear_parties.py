"""The parties of one run of a linear method."""

from collections.abc import Callable, Mapping

from offbeat.errors import BadJob
from offbeat.learning.blocks import Block
from offbeat.party.contract import Party, PartyName
from offbeat.party.linear import LinearParty
from offbeat.party.linear_options import LinearOptions
from offbeat.party.problem import Problem
from offbeat.randomness import secret_bytes


def build(
    make: Callable[[LinearParty, int], Party],
    blocks: Mapping[PartyName, Block],
    problem: Problem,
    options: LinearOptions,
    *,
    labels_at: tuple[PartyName, ...],
    lanes: int = 1,
    seed: int = 0,
    run: str = "run",
    secrets_seed: int | None = None,
    only: PartyName | None = None,
) -> list[Party]:
    """The parties of one run, in roster order; `make` gives each its role, and those in `labels_at` hold the labels.
    Keys come from the operating system unless `secrets_seed` is given. `only`: build that one alone."""
    names = tuple(blocks)
    active = tuple(name for name in names if name in labels_at)
    if len(names) < 2:
        raise BadJob(f"Vertical learning needs two parties or more; got {len(names)}.")
    options.check_loss(problem)
    if not active:
        raise BadJob(f"Somebody must hold the labels: labels_at is {labels_at}, the parties are {', '.join(names)}.")
    built = []
    for name in names if only is None else (only,):
        party = LinearParty(
            name=name,
            names=names,
            active=active,
            block=blocks[name],
            problem=problem.for_party(name in active),
            options=options,
            run=run,
            secret=secret_bytes(32, secrets_seed, run, name),
            seed=seed,
        )
        built.append(make(party, lanes))
    return built
