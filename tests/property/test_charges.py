"""Nothing that reveals something leaves before its charge is on the disk.

Whole runs in virtual time, with faults and kills by seed. At every event the checker looks at what the party sends:
every kind of message is in a table that says which rows it tells of, or that it tells of none; a kind that is in
neither fails. What has left so far is counted from the messages alone, and compared with the ledger as a process would
find it that is started at this instant: read anew from its files.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms import mapa
from offbeat.algorithms.afsgd_vp import Product
from offbeat.algorithms.mapa import GradientStep, parties
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.algorithms.methods import LINEAR as LINEAR_METHODS
from offbeat.algorithms.vafl import messages as vafl
from offbeat.algorithms.vfb2 import Backward, Stepped
from offbeat.data.fitting import fit_preparation
from offbeat.data.prepare import Preparation
from offbeat.jobs.methods import labels_everywhere
from offbeat.jobs.organisations import OrgEmbedding, OrgJob, OrgMethod, OrgModel, OrgNetwork
from offbeat.jobs.private_products import ProductsEntry
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.orgs.budget import PrivacyLedger, SiteAccount, charges_of
from offbeat.orgs.guards import BatchNamed, RowsNamed, WatchedRows
from offbeat.orgs.row_ledger import Reservation, RowLedger
from offbeat.orgs.rows import OwnRows
from offbeat.orgs.train import OwnLinear
from offbeat.orgs.train_embedding import OwnEmbedding
from offbeat.party import lifecycle, survey_messages
from offbeat.party.contract import Broadcast, Send
from offbeat.party.masked_sum import (
    CERTIFICATE,
    POINTS,
    PROBES,
    PRODUCTS,
    SURVEY,
    KeyOffered,
    PartialGiven,
    ShareAsked,
    ShareGiven,
)
from offbeat.party.smoothness import PROBES as PROBE_COUNT
from offbeat.privacy.ledger import Budget
from offbeat.privacy.mechanism import Gaussian
from offbeat.runtime.simulator import CostModel, Link, Simulator, profile
from offbeat.runtime.simulator.checkers import Violation

ROWS, NAMES = 48, ("ana", "bo", "cy", "dan")
IDS = [f"c{row}" for row in range(ROWS)]
FAULTS = st.sampled_from(["calm", "delay", "crash", "reorder", "swarm", "suspicion"])
CASES = settings(max_examples=10, deadline=None)


# -- what each message tells of rows -----------------------------------------------------------------------------------


def of_share(party, effect):
    body = effect.body
    asker = body.asker if isinstance(body, PartialGiven) else effect.to
    if isinstance(body, PartialGiven) and body.tree > 0:
        return []
    if body.kind == PRODUCTS:
        return range(*party.inner.rows_asked(asker, body.first))
    if body.kind == PROBES:
        return list(range(ROWS)) * PROBE_COUNT
    assert body.kind in (SURVEY, POINTS, CERTIFICATE)
    return range(body.first, body.first + len(body.words)) if body.kind == SURVEY else []


def of_block(party, effect):
    number = effect.body.number if isinstance(effect.body, Backward) else effect.body.round
    return range(*party.inner.rows_asked(party.name, number)) if number >= 0 else []


TELLS = {
    ShareGiven: of_share,
    PartialGiven: of_share,
    Backward: of_block,
    Product: of_block,
    survey_messages.TablePart: lambda party, effect: range(
        effect.body.start, effect.body.start + len(effect.body.derivatives)
    ),
    vafl.Upload: lambda party, effect: effect.body.rows.tolist(),
    vafl.Refreshed: lambda party, effect: effect.body.rows.tolist(),
}
TELLS_NO_ROW = {
    *(RowsNamed, BatchNamed, KeyOffered, ShareAsked, Stepped),
    *(lifecycle.Ready, lifecycle.Begin, lifecycle.RosterNamed, lifecycle.Alarm, lifecycle.Halt),
    *(
        survey_messages.Mark,
        survey_messages.Leap,
        survey_messages.Taken,
        survey_messages.GoOn,
        survey_messages.Certified,
    ),
    *(vafl.Noted, vafl.AnswerWanted, vafl.UnderWay, vafl.ReleaseWanted, vafl.Refresh, vafl.Ask, vafl.Resting),
    *(vafl.Resume, vafl.Resumed, vafl.StopWanted, vafl.Halt, vafl.Goodbye),
}


# Organisations score test rows under masks, and refuse weights of rows and losses of counts.
NEVER_SENT = {vafl.PredictAsked, vafl.PredictGiven, survey_messages.Curved}


def test_every_kind_of_message_between_organisations_is_in_one_table():
    kinds = {kind for method in LINEAR_METHODS.values() for kind in method.messages}
    kinds |= {*vafl.MESSAGES, RowsNamed, BatchNamed}
    tables = (set(TELLS), TELLS_NO_ROW, NEVER_SENT, {vafl.Gradient})
    assert kinds == set().union(*tables) and len(kinds) == sum(map(len, tables))


class DurableRows:
    """A checker of the simulator: rows that have left, by the messages, against every party's ledger on the disk."""

    def __init__(self, folder):
        self.folder, self.left, self.releases = folder, {name: Counter() for name in NAMES}, set()
        self.uploads = {}  # rows of VAFL's uploads, by client and release: a derivative tells of the same

    def handled(self, now_s, party, event, effects):
        before = self.left[party.name].total()
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                self.left[party.name].update(self._told(party, effect))
        if self.left[party.name].total() > before:
            self._compare(now_s, party.name)

    def _told(self, party, effect):
        kind, body = type(effect.body), effect.body
        if kind is vafl.Gradient:
            return self.uploads.pop((effect.to, body.release), [])
        if kind not in TELLS and kind not in TELLS_NO_ROW:
            raise Violation(f"{kind.__name__} is in no table: does it tell of rows?")
        if kind in (vafl.Upload, vafl.Refreshed):
            if (party.name, body.release) in self.releases:
                return []  # the same bytes again
            self.releases.add((party.name, body.release))
            if kind is vafl.Upload and body.wanted:
                self.uploads[party.name, body.release] = body.rows.tolist()
        return TELLS[kind](party, effect) if kind in TELLS else []

    def _compare(self, now_s, name):
        durable = RowLedger(self.folder / name).counts(IDS)
        for row, times in self.left[name].items():
            if times > durable[row]:
                raise Violation(
                    f"at {now_s:g} s {name} has told row {row} {times} times; {durable[row]} are on the disk"
                )

    def ended(self, outcome, parties):
        pass


# -- parties of organisations ------------------------------------------------------------------------------------------


def own_rows(name, labels_at):
    rng = np.random.default_rng([NAMES.index(name)])
    x = rng.standard_normal((ROWS, 3))
    y = np.where(np.random.default_rng(9).random(ROWS) < 0.5, 1.0, -1.0)
    tokens = tuple(row.to_bytes(16, "big") for row in range(ROWS))
    labels = y if name in labels_at else None
    columns = tuple(f"{name}-{i}" for i in range(3))
    fitted = fit_preparation(x, columns, Preparation(how="none"))
    return OwnRows(x, x[:0], tokens, (), labels, None, None, fitted, ())


def builder(job, folder, cap):
    """Makes one party as a daemon does, with its ledger read anew: also in the place of one that was killed."""

    def build(name):
        own = own_rows(name, job.labels_at)
        reserve = Reservation(RowLedger(folder / name), IDS, what="run", asker="ana", cap=cap)
        watched = WatchedRows(name, own.tokens_train, reserve=reserve, cap=cap)
        secret = name.encode().ljust(32, b".")
        if job.embeds:
            return OwnEmbedding(job, own, watched, secret=secret).party
        return OwnLinear(job, own, watched, run="run", secret=secret).party

    return build


def run(job, folder, seed, faults, cap):
    checker, build = DurableRows(folder), builder(job, folder, cap)
    breaks = profile(faults, NAMES, np.random.default_rng(seed), 0.5)
    simulator = Simulator(
        seed=seed, costs=CostModel(link=Link(2e-4)), faults=breaks, checkers=[checker], rebuild=build,
        until_s=20.0, detect_s=0.02,
    )  # fmt: skip
    outcome = simulator.run([build(name) for name in NAMES])
    return checker, outcome


def job_of(algorithm, **changes):
    everywhere = labels_everywhere(algorithm)
    return OrgJob(
        name="toy",
        parties=NAMES,
        labels_at=NAMES if everywhere else changes.pop("labels_at", NAMES[:1]),
        method=OrgMethod(algorithm=algorithm, passes=4.0, target=None, batch=8, **changes.pop("method", {})),
        model=OrgModel(strength=1e-2),
        network=OrgNetwork(on_loss=changes.pop("on_loss", "wait")),
        **changes,
    )


LINEAR = ["vfb2-saga", "vfb2-svrg", "vfb2-sgd", "vfb-svrg", "afsvrg-vp", "fsvrg-vp"]


@pytest.mark.parametrize("algorithm", LINEAR)
@CASES
@given(seed=st.integers(0, 10**6), faults=FAULTS, scheme=st.sampled_from(["pairwise", "two-tree"]), data=st.data())
def test_no_number_about_a_row_leaves_a_linear_party_before_it_is_counted(algorithm, seed, faults, scheme, data):
    two = data.draw(st.booleans()) and algorithm.startswith("vfb2")
    loses = data.draw(st.booleans()) and algorithm not in ("vfb-svrg", "fsvrg-vp") and scheme == "pairwise"
    job = job_of(
        algorithm,
        method={"secure_sum": scheme},
        on_loss="continue" if loses else "wait",
        **({"labels_at": NAMES[:2]} if two else {}),
    )
    cap = data.draw(st.sampled_from([0, 0, 18, 25]))
    with tempfile.TemporaryDirectory() as place:
        checker, outcome = run(job, Path(place), seed, faults, cap)
        most = max(max(left.values(), default=0) for left in checker.left.values())
        assert most > 0 and (not cap or most <= cap)
        if cap and any(finish.verdict == "row-cap" for finish in outcome.finished.values()):
            assert most > cap - 18, "a cap that is reached was nearly used up"


@CASES
@given(seed=st.integers(0, 10**6), faults=st.sampled_from(["calm", "delay", "crash", "reorder"]), data=st.data())
def test_no_noisy_product_leaves_before_its_rows_and_its_budget_are_charged(seed, faults, data):
    rounds, cap = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0, 2, 9]))
    job = OrgJob(
        name="toy",
        parties=NAMES,
        labels_at=NAMES[:1],
        method=OrgMethod(algorithm="vfb-sgd", product_epsilon=5.0, product_delta=1e-3),
        model=OrgModel(loss="ls-svm", strength=1e-2),
        products=ProductsEntry(rounds=rounds, colluders=data.draw(st.integers(0, 2))),
    )
    with tempfile.TemporaryDirectory() as place:
        for name in NAMES:
            PrivacyLedger(Path(place) / name).spend(charges_of(job, name, "run"), "run", None, 1e-5, name)
        checker, _ = run(job, Path(place), seed, faults, cap)
        for name in NAMES:
            (line,) = PrivacyLedger(Path(place) / name).history()
            assert sum(count for *_, count in line["releases"]) == 1, "the whole plan is one release"
            most = max(checker.left[name].values(), default=0)
            assert most <= rounds and (not cap or most <= cap)


@pytest.mark.parametrize("variant", ["vafl", "vafl-sync"])
@CASES
@given(
    seed=st.integers(0, 10**6),
    faults=st.sampled_from(["calm", "delay", "crash", "reorder"]),
    cap=st.sampled_from([0, 6]),
)
def test_no_embedding_leaves_before_its_rows_and_its_budget_are_charged(variant, seed, faults, cap):
    job = job_of(variant, embedding=OrgEmbedding(epsilon=50.0, uploads_max=4))
    with tempfile.TemporaryDirectory() as place:
        for name in NAMES:
            PrivacyLedger(Path(place) / name).spend(charges_of(job, name, "run"), "run", None, 1e-5, name)
        checker, _ = run(job, Path(place), seed, faults, cap)
        for name in NAMES[1:]:
            (line,) = PrivacyLedger(Path(place) / name).history()
            planned = sum(count for *_, count in line["releases"])
            most = max(checker.left[name].values())
            assert 0 < most <= 4 and 2 * most + 1 <= planned == 9, "uploads, steps and one score of each record"


@pytest.mark.parametrize("variant", ["vafl", "vafl-sync"])
@CASES
@given(seed=st.integers(0, 10**6), faults=st.sampled_from(["calm", "delay", "crash", "reorder"]))
def test_a_covariance_is_in_the_plan_before_anything_leaves(variant, seed, faults):
    job = job_of(variant, embedding=OrgEmbedding(epsilon=50.0))
    with tempfile.TemporaryDirectory() as place:
        for name in NAMES:
            PrivacyLedger(Path(place) / name).spend(charges_of(job, name, "run"), "run", None, 1e-5, name)
        checker, _ = run(job, Path(place), seed, faults, 0)
        for name in NAMES[1:]:
            (line,) = PrivacyLedger(Path(place) / name).history()
            assert max(checker.left[name].values()) == 1
            assert sum(count for *_, count in line["releases"]) == 4, "an upload, a step, a score, a covariance"


# -- edges -------------------------------------------------------------------------------------------------------------

MODEL = LinearModel("logistic", 3)
NOISE = Gaussian(5.0, 1.0, 20)


class DurableReleases:
    """Uploads that have left, by their numbers, against the site's account and against what the party has counted."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, {}

    def handled(self, now_s, party, event, effects):
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.body, mapa.Upload):
                self.numbers.setdefault(party.name, set()).add(effect.body.number)
                durable = SiteAccount(self.folder / party.name).read().runs.get("run", {}).get(NOISE.cost(), 0)
                left = len(self.numbers[party.name])
                if left > durable or left > party.ledger.releases:
                    raise Violation(f"{party.name} sent {left} uploads; {durable} are reserved on the disk")

    def ended(self, outcome, parties):
        pass


@CASES
@given(
    seed=st.integers(0, 10**6), faults=st.sampled_from(["calm", "delay", "crash", "swarm"]), uploads=st.integers(1, 12)
)
def test_no_upload_leaves_an_edge_that_its_site_has_not_reserved(seed, faults, uploads):
    rng = np.random.default_rng(0)
    data = {name: edge_data(x := rng.standard_normal((20, 3)), (x.sum(axis=1) > 0).astype(int)) for name in NAMES}
    with tempfile.TemporaryDirectory() as place:
        recipes = {}
        for name in NAMES:
            held = SiteAccount(Path(place) / name).reserve("run", {NOISE.cost(): uploads}, Budget(10.0, 1e-5))
            recipes[name] = EdgePrivacy(NOISE, Budget(10.0, 1e-5), reserved=tuple(held.items()))
        checker = DurableReleases(Path(place))
        made = parties(
            MODEL, data, GradientStep(SteadyRate(0.2, clip=1.0), 1e-4), recipes, updates=30, lag_max=9, seed=1
        )
        breaks = profile(faults, NAMES, np.random.default_rng(seed), 0.5)
        Simulator(seed=seed, faults=breaks, checkers=[checker], until_s=60.0, detect_s=0.02).run(made)
        assert checker.numbers and all(len(numbers) <= uploads for numbers in checker.numbers.values())


# -- the checker itself ------------------------------------------------------------------------------------------------


def test_a_party_that_counts_in_its_memory_alone_is_caught(tmp_path):
    """Were the ledger written at the run's end, as it once was, the first share would be a violation."""
    job = job_of("vfb2-saga")

    def forgetful(name):
        own = own_rows(name, job.labels_at)
        watched = WatchedRows(name, own.tokens_train, reserve=lambda needed: needed)
        return OwnLinear(job, own, watched, run="run", secret=name.encode().ljust(32, b".")).party

    with pytest.raises(Violation, match=r"has told row 0 .* times; 0 are on the disk"):
        Simulator(checkers=[DurableRows(tmp_path)]).run([forgetful(name) for name in NAMES])
