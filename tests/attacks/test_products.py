"""A label holder that solves for the features behind the products it was given.

Eve follows the protocol. She sees the sum of the others' shares of every row, round by round, and knows some rows of
theirs. Without noise those rows give her the others' weights of each round, and the weights give her all other rows.
"""

from math import sqrt

import numpy as np
from scipy.stats import norm

from offbeat.algorithms import private_rounds, vfb2
from offbeat.algorithms.vfb2 import Backward
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LS_SVM
from offbeat.learning.penalties import L2
from offbeat.party.contract import Computed, Received
from offbeat.party.lifecycle import Begin
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.party.problem import Problem
from offbeat.party.scalars import decode
from offbeat.privacy.noise import SeededNoise
from offbeat.privacy.products import NoisyShares, ProductPlan
from offbeat.runtime.simulator import Simulator

NAMES, WIDTH, STEP = ("eve", "ana", "bo"), 2, 0.25
STRENGTH = 1e-4


def rows_of(count, seed=0):
    rng = np.random.default_rng(seed)
    found = {name: rng.normal(size=(count, WIDTH)) for name in NAMES}
    labels = np.where(sum(found.values()) @ rng.normal(size=WIDTH) > 0, 1.0, -1.0)
    return {name: x / np.maximum(np.linalg.norm(x, axis=1), 1.0)[:, None] for name, x in found.items()}, labels


def plan_for(epsilon, rows, steps, parties=3, colluders=0):
    terms = {"row_norm": 1.0, "constant": False, "colluders": colluders}
    return ProductPlan(epsilon, 1e-6, parties, rows, steps, STEP, 0.5, **terms)


def what_eve_sees(X, labels, steps, epsilon=None, seed=0):
    """The others' total of each round, (rounds, rows), and Eve's own bookkeeping."""
    count = len(labels)
    blocks = {name: make_block(X[name], penalty=L2, strength=STRENGTH, method="sgd") for name in NAMES}
    problem = Problem(count, LS_SVM, L2, STRENGTH, labels)
    if epsilon is None:
        options = LinearOptions(
            method="sgd", asynchronous=False, passes=steps, step=STEP, batch=count, survey_passes=99.0
        )
        parties = vfb2.build(blocks, problem, options, synchronous=True, labels_at=("eve",), secrets_seed=seed)
    else:
        plan = plan_for(epsilon, count, steps)
        sums = SumOptions(fraction_bits=plan.fraction_bits)
        options = LinearOptions(method="sgd", asynchronous=False, products=plan, sums=sums)
        parties = private_rounds.build(blocks, problem, options, labels_at=("eve",), secrets_seed=seed)
    eve, seen = parties[0], []
    handled = eve.product

    def product(done):
        seen.append(decode(done.words, eve.party.sums.scale))
        return handled(done)

    eve.product = product
    Simulator(seed=0).run(parties)
    return np.array(seen)


def solved(seen, others, known):
    """The features of all rows from the products and the features of the first `known` rows, by least squares."""
    weights = np.linalg.lstsq(others[:known], seen[:, :known].T, rcond=None)[0].T  # (rounds, width)
    return np.linalg.lstsq(weights, seen, rcond=None)[0].T


def error_of(guess, truth, known):
    """Against guessing the mean of the known rows, whose error is 1."""
    rest = truth[known:]
    return float(np.sqrt(np.mean((guess[known:] - rest) ** 2) / np.mean((rest - truth[:known].mean(axis=0)) ** 2)))


def test_exact_products_give_features_away():
    X, labels = rows_of(60)
    others, seen = np.hstack([X["ana"], X["bo"]]), what_eve_sees(X, labels, 12)
    assert error_of(solved(seen[1:], others, 20), others, 20) < 1e-3


def test_private_products_do_not_give_features_away():
    X, labels = rows_of(60)
    others = np.hstack([X["ana"], X["bo"]])
    for epsilon in (0.5, 1.0, 3.0):
        seen = what_eve_sees(X, labels, 12, epsilon)
        assert error_of(solved(seen, others, 20), others, 20) > 1.0, "worse than guessing the mean"
        true_weights = np.linalg.lstsq(others, what_eve_sees(X, labels, 12)[1:].T, rcond=None)[0].T
        best = np.linalg.lstsq(true_weights, seen, rcond=None)[0].T
        assert error_of(best, others, 20) > 1.0, "not even with weights that nobody told her"


def shares_of(table, plan, told):
    """Ana's shares of each round, before noise, where Eve tells her these derivatives."""
    blocks = {name: make_block(table, penalty=L2, strength=STRENGTH, method="sgd") for name in NAMES}
    options = LinearOptions(method="sgd", asynchronous=False, products=plan)
    problem = Problem(len(table), LS_SVM, L2, STRENGTH, np.ones(len(table)))
    ana = private_rounds.build(blocks, problem, options, labels_at=("eve",), secrets_seed=0)[1]
    ana.handle(Received("eve", Begin(0, plan.step, len(table), 0.0, 0.0, 9.0)))
    found = []
    for number, theta in enumerate(told):
        (work,) = ana.handle(Received("eve", Backward(0, number, theta, 0, -1, 0)))
        ana.handle(Computed(work.ticket, None))
        found.append(ana._share())
    return found[: plan.releases]


def test_private_products_do_not_tell_two_rows_apart():
    """Ana's first row is one of two. Eve knows both, all other rows, and the law of the noise, chooses derivatives that
    tell the two apart best, and takes the likelier. As promised she is right in at most Phi(mu / 2) of the cases."""
    for epsilon in (1.0, 3.0, 1e4):
        right, promised = guessed(plan_for(epsilon, ROWS, 3))
        assert right < promised + DOUBT
        assert right > 0.99 or epsilon < 1e4, "she is a good guesser where there is no noise to speak of"


def test_helpers_that_leave_their_noise_out_are_counted():
    """All but Ana help Eve: they tell her their noise or add none, which is the same to her. With as many `colluders`
    Ana's own noise is enough. Without, the promise is one against Eve alone, and together they are right more often
    than it says: this is why owners have a word in it (colluders_least)."""
    many = 20
    for epsilon in (1.0, 3.0):
        right, promised = guessed(plan_for(epsilon, ROWS, 3, many, colluders=many - 2), noisy=("ana",))
        assert right < promised + DOUBT
    right, promised = guessed(plan_for(3.0, ROWS, 3, many), noisy=("ana",))
    assert right > promised + DOUBT


TRIALS, ROWS = 4000, 8
DOUBT = 4 * sqrt(0.25 / TRIALS)


def guessed(plan, noisy=("ana", "bo")):
    """(how often Eve is right, how often at most by the plan's promise) with the noise of these alone."""
    X, _ = rows_of(ROWS, seed=3)
    told = [np.where(np.arange(ROWS) == 0, -1e6, 0.0)] * plan.steps
    worlds = []
    for sign in (1.0, -1.0):
        table = X["ana"].copy()
        table[0] = sign * np.array([1.0, 0.0])
        worlds.append(shares_of(table, plan, told))
    return likelier(worlds, plan, noisy), float(norm.cdf(plan.mu / 2))


def likelier(worlds, plan, noisy):
    """How often Eve is right about the first world, from totals with the noise of these; the share is Ana's."""
    score = np.zeros(TRIALS)
    for number in range(plan.releases):
        centre = [np.clip(world[number], -plan.clip, plan.clip) for world in worlds]
        given = [np.tile(worlds[0][number], TRIALS), np.zeros(TRIALS * len(centre[0]))]
        sources = [NoisyShares(plan, SeededNoise(5, name)) for name in noisy]
        words = [one.words(number, share) for one, share in zip(sources, given, strict=False)]
        total = decode(sum(words[1:], words[0]), 2.0**plan.fraction_bits).reshape(TRIALS, -1)
        score += ((total - centre[1]) ** 2 - (total - centre[0]) ** 2).sum(axis=1)
    return float(np.mean(score > 0))
