"""The runtime ray: one actor per party, the same parties, and logs that replay bit for bit.

What needs a cluster is slow; `make ray` runs it."""

import json
import signal
import sys
from importlib.util import find_spec

import msgspec
import pytest
from ray_parties import Alone
from toys import MESSAGES, counters, expected_folds
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.errors import BadInput, NotInstalled, PeerFailed
from offbeat.message.codec import Codec
from offbeat.party.contract import PeerLost, Started
from offbeat.runtime import ray as runtime
from offbeat.runtime.delivery import Packet
from offbeat.runtime.drive import Written
from offbeat.runtime.host import HostOptions
from offbeat.runtime.processes import free_ports
from offbeat.runtime.ray import Ray, cluster
from offbeat.runtime.ray_actor import ActorRun
from offbeat.runtime.recovery import recover
from offbeat.runtime.simulator import CostModel, Link
from offbeat.testing.runtime_checks import check_runtime

NAMES = ("ana", "bo", "cy")


@pytest.fixture(scope="module")
def one_cluster():
    """Started once: it takes seconds. Ray is imported here and not above, by our own code, which prepares it."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with cluster() as ray:
        yield ray


def alone(folder, runtime_options=None, **what):
    """Parties by what each does and after how many events it ends; they hold what they saw."""
    parties = [Alone(name, does, until) for name, (does, until) in what.items()]
    return parties, Ray("ray_parties:alone", what, folder, **(runtime_options or {})).run(parties)


# -- toys --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_runtime_does_what_every_runtime_must(one_cluster, tmp_path):
    check_runtime(lambda: Ray("ray_parties:runner", {"count": 3}, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("link", [Link(0.0), Link(1e-3)], ids=["at once", "a slow link"])
def test_every_message_arrives_once_and_in_order(link, one_cluster, tmp_path):
    parties = counters(NAMES, 40)
    spec = {"names": NAMES, "total": 40}
    outcome = Ray("toys:build", spec, tmp_path, costs=CostModel(link=link)).run(parties)
    assert outcome.stalled == "" and outcome.clock == "wall"
    assert {name: finish.verdict for name, finish in outcome.finished.items()} == dict.fromkeys(NAMES, "target")
    expected = expected_folds(NAMES, 40)
    for party in parties:
        assert party.folds == {name: expected[name] for name in party.peers}
    assert sum(tally.sent["Count"][0] for tally in outcome.tallies.values()) == 3 * 2 * 40
    assert len(outcome.timeline) > 0 and all(sent_s <= came_s for sent_s, came_s, *_ in outcome.timeline)
    digests = [recover(party, Codec(MESSAGES), tmp_path, from_start=True).drive.digest for party in counters(NAMES, 40)]
    assert outcome.digest == " ".join(digest.hex() for digest in digests)


@pytest.mark.slow
def test_work_without_a_job_comes_back_and_so_does_a_jobs_result(one_cluster, tmp_path):
    (party,), outcome = alone(tmp_path, ana=("works", 4))
    assert outcome.finished["ana"].verdict == "passes"
    assert sorted(party.seen[1:]) == [
        "Computed(ticket=1, result=None, seconds=0.0)",
        "Computed(ticket=2, result='done', seconds=0.0)",
        "Woken(token=3)",
    ]


@pytest.mark.slow
def test_jobs_run_side_by_side_on_lanes(one_cluster, tmp_path):
    _, outcome = alone(tmp_path, {"costs": CostModel(link=Link(0.0), lanes=2)}, ana=("meets", 3))
    assert outcome.finished["ana"].verdict == "passes"


@pytest.mark.slow
@pytest.mark.parametrize("does", ["raises", "fails at work", "breaks"])
def test_an_error_in_an_actor_reaches_the_caller_with_its_partys_name(does, one_cluster, tmp_path):
    said = "a mistake of ours" if does == "breaks" else "this was wrong"
    with pytest.raises(PeerFailed, match=f"^ana: .*{said}"):
        alone(tmp_path, ana=(does, 9), bo=("waits", 9))
    assert (tmp_path / "ray" / "ana.log").is_file() == (does != "raises")


@pytest.mark.slow
def test_a_party_that_cannot_be_built_says_why(one_cluster, tmp_path):
    with pytest.raises(PeerFailed, match="no factory 'ray_parties:nobody'"):
        Ray("ray_parties:nobody", {}, tmp_path).run([Alone("ana", "waits", 1)])


@pytest.mark.slow
def test_when_nothing_is_left_to_happen_it_says_who_had_not_finished(one_cluster, tmp_path):
    _, outcome = alone(tmp_path, ana=("nothing", 2), bo=("nothing", 1))
    assert outcome.stalled == "nothing is left to happen, and ana had not finished"
    assert outcome.finished.keys() == {"bo"}


@pytest.mark.slow
def test_a_limit_of_time_ends_the_run(one_cluster, tmp_path):
    _, outcome = alone(tmp_path, {"until_s": 0.0}, ana=("waits", 2))
    assert outcome.stalled == "stopped at the limit of 0 seconds" and outcome.out_of_time


# -- jobs --------------------------------------------------------------------------------------------------------------

JOB = """
algorithm = "vfb2-svrg"
passes = 300
target = 1e-5
penalty = 1e-2

[data]
set = "known-logistic"
parties = ["bank", "shop", "telecom"]

[runtime]
kind = "ray"
slow = { shop = 2.0 }
overhead_s = 1e-5
per_sample_s = 1e-7
per_nonzero_s = 0
"""
LONG = JOB.replace("target = 1e-5\n", "").replace("passes = 300", "passes = 1e6")
VAFL = """
algorithm = "vafl"
passes = 3
step = 0.3

[data]
set = "known-logistic"
parties = ["bank", "shop"]
"""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def trained(folder, job, *more):
    (folder / "job.toml").write_text(job)
    result = call("run", folder / "job.toml", "--runtime", "ray", "--json", "--out", folder / "run", *more)
    document = result.stdout[result.stdout.find("{") :]  # Ray may be late to tell of the worker of a run before
    return result, json.loads(document) if document else {}


@pytest.mark.slow
def test_a_job_reaches_its_target_and_replays(one_cluster, tmp_path):
    result, told = trained(tmp_path, JOB)
    assert result.exit_code == 0, result.stderr
    assert (told["runtime"], told["verdict"]) == ("ray", "target")
    assert told["certificate"]["duality_gap"] <= 1e-5
    assert 0 <= told["suboptimality"] <= told["certificate"]["duality_gap"] + 1e-9
    assert told["metrics"]["test_auc"] > 0.7
    assert not any("does not know" in warning for warning in told["warnings"])
    assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True
    verified = call("replay", tmp_path / "run", "--verify")
    assert verified.exit_code == 0 and all(f"{name}: " in verified.stderr for name in ("bank", "shop", "telecom"))
    log = tmp_path / "run" / "events" / "shop.log"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    cut_short = call("replay", tmp_path / "run", "--verify")
    assert cut_short.exit_code == 3 and "shop" in cut_short.stderr


@pytest.mark.slow
def test_a_job_of_embeddings_ends_and_replays(one_cluster, tmp_path):
    result, told = trained(tmp_path, VAFL)
    assert (result.exit_code, told.get("verdict")) == (0, "passes"), result.stderr
    assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_model(one_cluster, tmp_path, monkeypatch):
    hear = runtime._ActorRun._hear

    def interrupt(self, name, call):
        hear(self, name, call)
        if self.known[name]["sent"] > 400 and not self.interrupted():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(runtime._ActorRun, "_hear", interrupt)
    result, told = trained(tmp_path, LONG)
    assert (result.exit_code, told.get("verdict")) == (1, "stopped"), result.stderr
    assert told["certificate"]["duality_gap"] < 1e-3
    assert 0 <= told["suboptimality"] <= told["certificate"]["duality_gap"] + 1e-9


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "on_loss"), [("shop", "stop"), ("bank", "wait")])
def test_a_killed_actor_ends_the_run_with_its_name(victim, on_loss, one_cluster, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("offbeat.run.runtimes.PARTY_OF_JOB", f"ray_parties:{victim}_dies")
    result, told = trained(tmp_path, LONG, "--set", f"on_loss={on_loss}")
    assert (result.exit_code, told.get("verdict")) == (3, "peer-lost"), result.stderr
    assert victim in told["reason"] and f"'{victim}' lost its actor" in caplog.text
    assert told["certificate"]["duality_gap"] < 1e-3
    assert json.loads(call("replay", tmp_path / "run", "--json").stdout)["same"] is True


@pytest.mark.slow
def test_a_killed_actor_is_left_out_of_a_run_that_is_to_continue(one_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.run.runtimes.PARTY_OF_JOB", "ray_parties:shop_dies")
    more = ("--set", "on_loss=continue", "--set", "two_party_insecure=true", "--set", "passes=40")
    result, told = trained(tmp_path, LONG, *more)
    assert (result.exit_code, told.get("verdict")) == (0, "passes"), result.stderr
    assert any("lost shop" in warning for warning in told["warnings"])


@pytest.mark.slow
def test_a_killed_server_ends_the_run_with_its_name(one_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.run.runtimes.PARTY_OF_JOB", "ray_parties:server_dies")
    result, told = trained(tmp_path, VAFL, "--set", "passes=1e4")
    assert (result.exit_code, told.get("verdict")) == (3, "peer-lost"), (result.stderr, told)
    assert "server" in told["reason"]


# -- the pieces --------------------------------------------------------------------------------------------------------


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotInstalled, match=r"pip install 'offbeat\[ray\]'"), cluster():
        pass


def test_a_cluster_that_does_not_answer_is_named():
    (port,) = free_ports(1)
    with pytest.raises(BadInput, match=f"RAY_ADDRESS = '127.0.0.1:{port}'.*refused.*Unset RAY_ADDRESS"):
        runtime._join(None, f"127.0.0.1:{port}")


@pytest.mark.slow
def test_a_cluster_that_is_in_use_is_used_and_left(one_cluster):
    with cluster() as ray:
        assert ray is one_cluster
    assert one_cluster.is_initialized()


@pytest.mark.slow
def test_a_cluster_of_our_own_listens_on_loopback_alone(one_cluster):
    assert one_cluster.util.get_node_ip_address() == "127.0.0.1"
    assert {node["NodeManagerAddress"] for node in one_cluster.nodes()} == {"127.0.0.1"}


class Handle:
    """What stands for a peer's actor: keeps its calls."""

    def __init__(self):
        self.receive, self.calls = self, []

    def remote(self, sender, sent_s, packet):
        self.calls.append((sender, msgspec.msgpack.decode(packet, type=Packet[bytes])))
        return object()


DONE = Codec(MESSAGES).encode(MESSAGES[2]())


def packet(first, count):
    return msgspec.msgpack.encode(Packet(1, first, [DONE] * count, 1, 0, 0))


def turn(run):
    """What the party's thread does between two batches; what the party would have got."""
    items = run.host._for_the_party(run.host.inbox.take(99, 0.0))
    items += run.host._for_the_party(run.host.inbox.take(99, 0.0))
    run._leave()
    return items


@pytest.fixture
def ana():
    made = ActorRun(HostOptions(), Alone("ana", "nothing", 9), Codec(MESSAGES), {"bo": Handle(), "cy": Handle()})
    assert turn(made) == [Started()]
    return made


def test_what_waits_for_a_peer_leaves_in_one_call_with_the_number_of_its_first(ana):
    bo, cy = ana._peers["bo"], ana._peers["cy"]
    ana.carrier.send(Written(("bo", "cy"), DONE, "Done", 0))
    ana.carrier.send(Written(("bo",), DONE, "Done", 0))
    turn(ana)
    ana.carrier.send(Written(("bo",), DONE, "Done", 0))
    turn(ana)
    assert [(sender, told.first, told.frames) for sender, told in bo.calls] == [
        ("ana", 1, [DONE, DONE]),
        ("ana", 3, [DONE]),
    ]
    assert len(cy.calls) == 1 and ana.news()["sent"] == 4


def test_what_is_for_a_lost_peer_is_dropped_and_what_it_says_is_not_heard(ana):
    bo = ana._peers["bo"]
    ana.lose("bo")
    ana.lose("bo")
    assert turn(ana) == [PeerLost("bo")]
    ana.carrier.send(Written(("bo",), DONE, "Done", 0))
    ana.arrive("bo", 0.0, packet(1, 1))
    assert turn(ana) == [] and bo.calls == []
    assert (ana.news()["sent"], ana.news()["taken"]) == (0, 0)


def test_what_comes_twice_is_taken_once_and_what_comes_early_waits_for_the_call_that_failed(ana):
    for first, count in ((1, 2), (2, 2), (5, 1)):
        ana.arrive("bo", 0.0, packet(first, count))
    assert [letter.number for letter in turn(ana)] == [1, 2, 3]
    assert ana.news()["taken"] == 3
    ana.arrive("bo", 0.0, packet(4, 1))
    assert [letter.number for letter in turn(ana)] == [4, 5]
