"""Every algorithm's `PROTOCOL` against what is really sent in simulated runs: no kind of message that the table does
not name, no line that never happens, and nobody but the role that it names."""

from dataclasses import replace

import numpy as np
import pytest

from offbeat.algorithms import afsgd_vp, mapa, vafl, vfb2
from offbeat.algorithms.mapa import GradientStep
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.errors import Refused
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.learning.losses import LOGISTIC
from offbeat.orgs import align_psi, predict
from offbeat.orgs.align_psi import Aligner
from offbeat.orgs.predict import Predictor
from offbeat.orgs.tokens import id_column
from offbeat.party.contract import END, Broadcast, Send, Started, Woken
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.party.protocol import Line, messages_of
from offbeat.privacy.mechanism import NoNoise
from offbeat.randomness import stream
from offbeat.runtime.simulator import CostModel, Gone, Simulator, profile
from offbeat.testing.embedding_cases import draw_embedding_parties
from offbeat.testing.small_problem import MODELS, draw_problem, method_named

NARROW_FIRST = ("chair", "label holder", "asker", "leader", "member", "cloud", "edge", "server", "client", "party")


class Heard:
    """Notes who sent which kind of message to whom. `roles`: what a party is to the others, from a party and a name."""

    def __init__(self, roles):
        self.roles, self.sent = roles, set()

    def handled(self, now_s, party, event, effects):
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                for to in [effect.to] if isinstance(effect, Send) else effect.to:
                    both = (frozenset(self.roles(party, name)) for name in (party.name, to))
                    self.sent.add((type(effect.body), *both))

    def ended(self, outcome, parties):
        pass


def mistakes(protocol, sent):
    """What the table says otherwise than what was sent."""
    fits = {line: [row for row in sent if _fits(line, row)] for line in protocol}
    named = {row for rows in fits.values() for row in rows}
    found = [f"{kind.__name__} from {sorted(a)} to {sorted(b)} is in no line" for kind, a, b in sent - named]
    for line, rows in fits.items():
        if not rows:
            found.append(f"{line.body.__name__} from {line.sender} to {line.to} never happened")
            continue
        for role, side in ((line.sender, 1), (line.to, 2)):
            common = frozenset.intersection(*(row[side] for row in rows))
            narrowest = next(name for name in NARROW_FIRST if name in common)
            if narrowest != role:
                found.append(f"{line.body.__name__}: the table says {role}, always {narrowest} was seen")
    return found


def _fits(line, row):
    kind, sender, to = row
    return kind is line.body and line.sender in sender and line.to in to


class Disturbed:
    """A party to which something happens beside its events, by their number."""

    def __init__(self, inner, happens):
        self.inner, self.name, self.happens, self.handled = inner, inner.name, happens, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def handle(self, event):
        effects = self.inner.handle(event)
        self.handled += 1
        return [*effects, *self.happens.get(self.handled, lambda party: [])(self.inner)]


def stopped(party):
    return party.handle(Woken(END))


def kept(party):
    party.kept = party.snapshot()
    return []


def restored(party):
    """Back to what was kept, as after a crash."""
    party.restore(party.kept)
    return party.handle(Started(resumed=True))


# -- linear methods --------------------------------------------------------------------------------------------------


def linear_roles(party, name):
    roster = party.party.roster
    labels = {"label holder"} if name in roster.active else set()
    return {"party", *labels, *({"chair"} if name == roster.chair else ())}


PROBLEM = draw_problem(3, parties=4, rows=200, sparse=False, loss=LOGISTIC)
WEIGHTED = MODELS["weighted"](PROBLEM, stream(1, "weights"))
FIRST, *_, LAST = PROBLEM.names
SLOW = {"costs": CostModel(slow={LAST: 20.0})}
LOST = {"faults": (Gone(LAST, at_s=0.01),), "detect_s": 0.01}
TREES = {"sums": SumOptions(scheme="two-tree")}


def linear_run(heard, method, problem=PROBLEM, ends=None, world=None, **changes):
    """Two of four parties hold labels, the first does not: so the roles differ."""
    kind = method_named(method)
    terms = {"passes": 20.0, "target": 1e-5, "batch": 16, "asynchronous": not kind.synchronous}
    options = replace(LinearOptions(method=kind.direction), **terms, **changes)
    parties = kind.build(
        problem.blocks(kind.direction),
        problem.problem(),
        options,
        synchronous=kind.synchronous,
        labels_at=problem.names[1:3],
        seed=1,
        secrets_seed=1,
    )
    parties = [Disturbed(party, {30: stopped}) if party.name == ends else party for party in parties]
    outcome = Simulator(seed=1, checkers=(heard,), **(world or {})).run(parties)
    assert not outcome.stalled


@pytest.mark.parametrize(
    ("module", "method", "rounds"), [(vfb2, "vfb2-svrg", "vfb-saga"), (afsgd_vp, "afsvrg-vp", "fsaga-vp")]
)
def test_the_linear_methods(module, method, rounds):
    heard = Heard(linear_roles)
    linear_run(heard, rounds)
    linear_run(heard, method, **TREES)
    linear_run(heard, method, world=SLOW)
    linear_run(heard, method, problem=WEIGHTED)
    linear_run(heard, method, world=LOST, on_loss="continue")
    linear_run(heard, method, ends=FIRST)
    assert mistakes(module.PROTOCOL, heard.sent) == []


# -- the others ------------------------------------------------------------------------------------------------------


def test_vafl():
    heard = Heard(lambda party, name: {"server" if name == "server" else "client"})
    for variant, fault, seed, disturbed in (
        ("vafl", "crash", 1, {}),
        ("vafl", "swarm", 2, {}),
        ("vafl-sync", "swarm", 2, {}),
        ("vafl", "calm", 2, {"client0": {40: kept, 60: restored, 90: stopped}}),
        ("vafl", "calm", 2, {"server": {40: kept, 60: restored}}),
    ):
        parties = draw_embedding_parties(seed, variant)
        names = [party.name for party in parties]
        faults = profile(fault, names, stream(seed, fault, "faults"), 0.3)
        parties = [Disturbed(party, disturbed.get(party.name, {})) for party in parties]
        outcome = Simulator(seed=seed, faults=faults, checkers=(heard,), detect_s=0.02, until_s=60.0).run(parties)
        assert not outcome.stalled
    assert mistakes(vafl.PROTOCOL, heard.sent) == []


def test_mapa_and_its_relatives():
    rng = np.random.default_rng(0)
    rows = {f"edge{i}": rng.standard_normal((20, 2)) for i in range(3)}
    data = {name: edge_data(x, (x.sum(axis=1) > 0).astype(int)) for name, x in rows.items()}
    recipes = dict.fromkeys(rows, EdgePrivacy(NoNoise(5)))
    rule = GradientStep(SteadyRate(0.2, clip=1.0), 1e-4)
    model, terms = LinearModel("logistic", 2), {"updates": 30, "lag_max": 50, "seed": 1, "retry_s": 0.05}
    parties = mapa.parties(model, data, rule, recipes, **terms)
    parties = [Disturbed(party, {5: stopped} if party.name == "edge1" else {}) for party in parties]
    heard = Heard(lambda party, name: {"cloud" if name == "cloud" else "edge"})
    outcome = Simulator(seed=0, checkers=(heard,)).run(parties)
    assert outcome.finished["cloud"].verdict == "passes"
    assert mistakes(mapa.PROTOCOL, heard.sent) == []


def test_alignment():
    ids = {"bank": [1, 2, 3], "shop": [2, 3, 4], "telecom": [3, 2, 9]}
    heard = Heard(lambda party, name: {"party", "leader" if name == party.leader else "member"})
    for least in (0, 3):
        columns = {name: id_column(np.array(own, dtype=object), b"salt" * 8) for name, own in ids.items()}
        sizes = {name: len(column.tokens) for name, column in columns.items()}
        parties = [
            Aligner(name, tuple(ids), "bank", column, sizes=sizes, secret=name.encode().ljust(32, b"."), least=least)
            for name, column in columns.items()
        ]
        Simulator(seed=0, checkers=(heard,)).run(parties)
    assert mistakes(align_psi.PROTOCOL, heard.sent) == []


class Ones:
    """A scorer that knows every row, or refuses."""

    def __init__(self, refuse=""):
        self.refuse = refuse

    def scores(self, tokens):
        if self.refuse:
            raise Refused(self.refuse)
        return np.ones(len(tokens)), np.ones(len(tokens), dtype=bool)


NAMES = ("bank", "shop", "telecom", "insurer")


@pytest.mark.parametrize("asker", ["bank", "telecom"])
def test_prediction(asker):
    heard = Heard(lambda party, name: {"party", *({"asker"} if name == party.asker else ())})
    gone = {"faults": (Gone("shop", at_s=0.0),), "detect_s": 0.5}
    for scheme, refuses, world in (("pairwise", "", gone), ("two-tree", "", {}), ("pairwise", "insurer", {})):
        parties = [
            Predictor(
                name,
                NAMES,
                asker,
                Ones("no" if name == refuses else ""),
                run="run/predict/1",
                secret=name.encode().ljust(32, b"."),
                sums=SumOptions(scheme=scheme),
                tokens=[b"t" * 16] if name == asker else (),
                rows=1,
            )
            for name in NAMES
        ]
        Simulator(seed=0, checkers=(heard,), **world).run(parties)
    assert mistakes(predict.PROTOCOL, heard.sent) == []


# -- the check itself ------------------------------------------------------------------------------------------------


def test_a_wrong_table_is_found_out():
    heard = Heard(linear_roles)
    linear_run(heard, "vfb2-svrg")
    sent = {line.body for line in vfb2.PROTOCOL if any(row[0] is line.body for row in heard.sent)}
    right = [line for line in vfb2.PROTOCOL if line.body in sent]
    assert mistakes(right, heard.sent) == []
    wider = [line._replace(sender="party") if line.body is vfb2.Backward else line for line in right]
    assert mistakes(wider, heard.sent) == ["Backward: the table says party, always label holder was seen"]
    wrong = [line._replace(sender="chair") if line.body is vfb2.Backward else line for line in right]
    assert all("is in no line" in found for found in mistakes(wrong, heard.sent)) and mistakes(wrong, heard.sent)
    less = [line for line in right if line.body is not vfb2.Backward]
    assert mistakes(less, heard.sent)[0].startswith("Backward from")
    more = [*right, Line(vfb2.Stepped, "party", "label holder", "")]
    assert mistakes(more, heard.sent) == ["Stepped from party to label holder never happened"]


@pytest.mark.parametrize("module", [afsgd_vp, vfb2, vafl, mapa, align_psi, predict])
def test_a_table_names_every_message(module):
    assert messages_of(module.PROTOCOL) == module.MESSAGES
