"""What the methods give away although every sum is secure: the documented leaks, as attacks that must go on working.

If one of these fails, either the documentation promises too little or the attack is wrong; both deserve a look.
"""

import numpy as np
import pytest

from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED, SQUARED_HINGE
from offbeat.learning.sampling import Schedule
from offbeat.party.contract import Received
from offbeat.party.linear_options import LinearOptions
from offbeat.party.survey_messages import TablePart
from offbeat.runtime.simulator import Simulator
from offbeat.runtime.simulator.checkers import sent_bodies
from offbeat.testing.small_problem import SmallProblem, build_parties, draw_problem


class Overheard:
    """What one party receives, as its runtime sees it."""

    def __init__(self, name):
        self.name, self.bodies = name, []

    def handled(self, now_s, party, event, effects):
        if party.name == self.name and isinstance(event, Received):
            self.bodies.append(event.body)

    def ended(self, outcome, parties):
        pass


def heard(method, problem, name, **options):
    overheard = Overheard(name)
    chosen = LinearOptions(method=method.split("-")[-1], **options)
    Simulator(seed=1, checkers=[overheard]).run(build_parties(method, problem, chosen, 1))
    return overheard.bodies


# -- the derivative is the label -------------------------------------------------------------------------------------


def test_label_from_theta():
    """One derivative of the logistic loss gives its row's label and its product with the whole model."""
    rng = np.random.default_rng(0)
    y, z = np.where(rng.random(20_000) < 0.3, 1.0, -1.0), 4.0 * rng.standard_normal(20_000)
    theta = LOGISTIC.derivative(z, y)
    label = -np.sign(theta)
    product = -label * np.log(np.abs(theta) / (1 - np.abs(theta)))
    assert np.array_equal(label, y)
    near = np.abs(z) < 8
    assert np.abs(product - z)[near].max() < 1e-12


def test_a_collaborator_of_vfb2_reads_every_label_off_the_derivatives():
    problem = draw_problem(2, parties=3, rows=120, loss=LOGISTIC, intercept=False)
    problem = SmallProblem(problem.X, problem.y, LOGISTIC, problem.strength, problem.columns, labels_at=("party0",))
    labels, schedule = np.zeros(120), Schedule(120, 16, 1)  # which rows a number is about, everybody knows
    for body in heard("vfb2-svrg", problem, "party2", passes=6.0, batch=16, survey_passes=1.0):
        if type(body).__name__ == "Backward":
            labels[slice(*schedule.block(body.number))] = -np.sign(body.derivatives)
    assert np.array_equal(labels, problem.y)


def test_the_first_table_of_the_squared_loss_is_the_labels_themselves():
    problem = draw_problem(2, parties=3, rows=120, loss=SQUARED, intercept=False)
    problem = SmallProblem(problem.X, problem.y, SQUARED, problem.strength, problem.columns, labels_at=("party0",))
    bodies = heard("vfb2-svrg", problem, "party2", passes=1.0, batch=16)
    labels = np.zeros(120)
    for table in bodies:
        if isinstance(table, TablePart) and table.survey == 1:
            labels[table.start : table.start + len(table.derivatives)] = -table.derivatives / 2
    assert np.abs(labels - problem.y).max() < 1e-12


def test_the_sign_of_the_hinges_derivative_is_the_label_wherever_it_is_not_zero():
    rng = np.random.default_rng(1)
    y, z = np.where(rng.random(1000) < 0.5, 1.0, -1.0), 2.0 * rng.standard_normal(1000)
    theta = SQUARED_HINGE.derivative(z, y)
    telling = theta != 0
    assert telling.mean() > 0.4
    assert np.array_equal(-np.sign(theta[telling]), y[telling])


# -- the sum is the features, up to a rotation -----------------------------------------------------------------------


class Notebook:
    """What a dominator knows of each of its updates: the row, the others' total, the derivative, the step size."""

    def __init__(self, name, problem):
        self.name, self.problem, self.lines = name, problem, []
        self.schedule = Schedule(len(problem.y), 1, 1)

    def handled(self, now_s, party, event, effects):
        for body in sent_bodies(effects) if party.name == self.name else ():
            if type(body).__name__ == "Backward":
                row, theta = self.schedule.block(body.number)[0], float(body.derivatives[0])
                label = self.problem.y[row]
                product = -label * np.log(abs(theta) / (1 - abs(theta)))
                own = float(party.block.share(row, row + 1)[0])  # its own step comes later
                self.lines.append((row, product - own, theta, party.stepper.eta(0, 1)))

    def ended(self, outcome, parties):
        pass


def test_gram_attack():
    """q = 3, n = 40, masks on: from its own notes the dominator solves for the others' Gram matrix.

    Each step moves the others' part s of every product by s_j <- (1 - eta lambda) s_j - eta theta_t K[j, i_t]: linear
    equations in K = X' X'^T, the Gram matrix of the two other parties' stacked columns.
    """
    rng = np.random.default_rng(7)
    rows, hidden, strength = 40, 7, 1e-3
    X = rng.standard_normal((rows, 3 + hidden)) / np.sqrt(3 + hidden)
    y = np.where(rng.random(rows) < 0.5, 1.0, -1.0)
    columns = {"party0": np.arange(3), "party1": np.arange(3, 6), "party2": np.arange(6, 10)}
    problem = SmallProblem(X, y, LOGISTIC, strength, columns, labels_at=("party0",))
    notebook = Notebook("party0", problem)
    options = LinearOptions(method="sgd", passes=60.0, batch=1, step=0.8, survey_passes=100.0)
    Simulator(seed=1, checkers=[notebook]).run(build_parties("vfb-sgd", problem, options, 1))
    gram = recovered_gram(notebook.lines, rows, strength)
    others = X[:, 3:]
    assert np.abs(gram - others @ others.T).max() < 1e-6
    values = np.linalg.eigvalsh(gram)[::-1]
    assert values[hidden - 1] > 1e4 * abs(values[hidden])  # the number of hidden columns shows, too


def recovered_gram(notes, rows, strength):
    """Least squares for the upper triangle of K: every observed product is one equation; all blocks began at zero."""
    pairs = [(a, b) for a in range(rows) for b in range(a, rows)]
    column = {pair: at for at, pair in enumerate(pairs)}
    weight = np.zeros(rows)  # of K[., i] in every s_j so far
    equations = np.zeros((len(notes), len(pairs)))
    for t, (i, _, theta, eta) in enumerate(notes):
        for other in np.flatnonzero(weight):
            equations[t, column[min(i, other), max(i, other)]] += weight[other]
        weight *= 1 - eta * strength
        weight[i] -= eta * theta
    solution = np.linalg.lstsq(equations, np.array([product for _, product, _, _ in notes]), rcond=None)[0]
    gram = np.zeros((rows, rows))
    for (a, b), at in column.items():
        gram[a, b] = gram[b, a] = solution[at]
    return gram


def test_surveys_span_the_hidden_columns_and_a_few_known_rows_give_away_the_rest():
    """A survey adds a column of X' W' to what the asker knows; soon that is the span of X' itself."""
    rng = np.random.default_rng(3)
    rows, hidden, known = 200, 10, 10
    features = rng.standard_normal((rows, hidden))
    sums = features @ rng.standard_normal((hidden, 15))  # fifteen surveys' secure sums over all rows
    left, values, _ = np.linalg.svd(sums, full_matrices=False)
    assert values[hidden - 1] > 1e9 * values[hidden]
    span = left[:, :hidden]
    turn = np.linalg.lstsq(span[:known], features[:known], rcond=None)[0]
    assert np.abs(span @ turn - features).max() < 1e-9


# -- losses that depend on the data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "moves"), [("sgd", True), ("svrg", False)])
def test_loss_bias(method, moves):
    """Updates lost more often for one label move SGD's intercept by ln(1 - p); variance reduction does not mind."""
    rng = np.random.default_rng(5)
    rows, dropped = 1500, 0.3
    X = np.hstack((rng.standard_normal((rows, 4)) / 2, np.ones((rows, 1))))
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-(X @ np.array([1.0, -1.0, 0.5, 0.0, 0.2])))), 1.0, -1.0)
    best, _ = central.optimum(X, y, LOGISTIC, 1e-3)
    w = with_label_dependent_losses(method, X, y, dropped, rng)
    shift = w[-1] - best[-1]
    if moves:
        assert abs(shift - np.log(1 - dropped)) < 0.08
    else:
        assert np.abs(w - best).max() < 1e-3


def with_label_dependent_losses(method, X, y, dropped, rng, passes=60):
    """Batch-1 steps in which an update of a positive row is lost with this probability."""
    rows = len(y)
    w, tail = np.zeros(X.shape[1]), []
    for number in range(passes):
        table = LOGISTIC.derivative(X @ w, y)
        mean = X.T @ table / rows
        for t, i in enumerate(rng.permutation(rows)):
            if y[i] > 0 and rng.random() < dropped:
                continue
            theta = float(LOGISTIC.derivative(X[i] @ w, y[i]))
            size = 0.5 / (1 + 0.5 * 1e-2 * (number * rows + t)) if method == "sgd" else 0.2
            direction = theta * X[i] if method == "sgd" else (theta - table[i]) * X[i] + mean
            w = w - size * (direction + 1e-3 * w)
        tail.append(w)
    return np.mean(tail[-20:], axis=0)
