"""The parties of one run of a linear method."""

from collections.abc import Callable, Mapping
from typing import Any

from offbeat.errors import BadJob
from offbeat.learning.blocks import Block
from offbeat.party.contract import Party, PartyName
from offbeat.party.linear import LinearParty
from offbeat.party.linear_options import LinearOptions
from offbeat.party.problem import Problem
from offbeat.randomness import secret_bytes

Make = Callable[[LinearParty, int], Party]


def build(
    make: Make,
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


def builder(asynchronous: Make, in_rounds: Make, *, everywhere: bool) -> Callable[..., list[Party]]:
    """A paper's `build`: the parties of one run, asynchronous or, with `synchronous`, in rounds. Unless `labels_at`
    says who holds the labels, all do (`everywhere`) or the first one does. For the rest see `build`."""

    def of_run(
        blocks: Mapping[PartyName, Block],
        problem: Problem,
        options: LinearOptions,
        *,
        synchronous: bool = False,
        labels_at: tuple[PartyName, ...] | None = None,
        **rest: Any,
    ) -> list[Party]:
        holders = (tuple(blocks) if everywhere else tuple(blocks)[:1]) if labels_at is None else labels_at
        return build(in_rounds if synchronous else asynchronous, blocks, problem, options, labels_at=holders, **rest)

    return of_run
