"""A party changes its key while a run is under way: old and new certificate overlap, and nobody stops."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town, job, serve, wait_until
from typer.testing import CliRunner

from offbeat.cli import root
from offbeat.errors import BadInput, PeerFailed
from offbeat.orgs import control
from offbeat.orgs.client import connect
from offbeat.orgs.lines import PeerCalls
from offbeat.orgs.party_config import read_home
from offbeat.orgs.replay import replay_own
from offbeat.runtime.grpc.identity import Member, new_identity, read_roster, write_private, write_roster


def trust(town: Town, name: str, certificate: Path, *more: str) -> None:
    words = ["keys", "trust", str(certificate), "--roster", str(town.folder / name / "roster.toml"), *more]
    told = CliRunner().invoke(root.app, words)
    assert told.exit_code == 0, told.output


def new_key(town: Town, name: str) -> Path:
    """The certificate of a new key of this party, beside the old one."""
    place, new = town.folder / name / "keys-2027", new_identity(name)
    write_private(place / f"{name}.key", new.key_pem)
    (place / f"{name}.crt").write_bytes(new.certificate_pem)
    return place / f"{name}.crt"


def point_to_it(town: Town, name: str) -> None:
    settings = town.folder / name / "party.toml"
    text = settings.read_text()
    for kind in ("key", "crt"):
        text = text.replace(f'= "keys/{name}.{kind}"', f'= "keys-2027/{name}.{kind}"')
    settings.write_text(text.replace(f'# older = ["keys-before/{name}.key"]', f'older = ["keys/{name}.key"]'))


def phase(town: Town, name: str, run: str) -> str:
    status = town.ask(name, control.Status(run))
    assert isinstance(status, control.RunStatus)
    return status.phase


@pytest.mark.slow
@pytest.mark.parametrize("who", ["bank", "telecom"])  # one is called by all others, one calls all others
def test_a_key_changes_while_a_run_is_under_way(tmp_path: Path, who: str) -> None:
    town = Town(tmp_path)
    for name in NAMES:
        town.settings(name, passes_most="1e9")
    children = {name: serve(town, name) for name in NAMES}
    try:
        run = town.submit(job(target=1e-300, passes=1e6))
        wait_until(lambda: all(phase(town, name, run) == "training" for name in NAMES))
        certificate = new_key(town, who)
        for name in NAMES:  # at any time before the change, one after the other
            trust(town, name, certificate, "--keep-old")
        children[who].send_signal(signal.SIGTERM)
        children[who].wait()
        point_to_it(town, who)
        children[who] = serve(town, who)
        seen = town.ask(who, control.Status(run)).progress  # type: ignore[attr-defined]
        wait_until(lambda: _passes(town, who, run) > seen.get("passes", 0.0) + 1.0)  # all go on together
        assert {phase(town, name, run) for name in NAMES} == {"training"}
        town.ask("bank", control.Stop(run))
        wait_until(lambda: all(phase(town, name, run) == "stopped" for name in NAMES))
        for name in NAMES:
            trust(town, name, certificate)  # the old one is over
        assert connect(town.folder / "shop", run).decision_function(["c1"]).shape == (1,)
        after = town.submit(job(target=1e-2))
        for name in NAMES:
            wait_until(lambda name=name: phase(town, name, after) == "done")
        assert connect(town.folder / who, after).decision_function(["c1"]).shape == (1,)
    finally:
        for child in children.values():
            child.terminate()
            child.wait()
    home = read_home(town.folder / who)
    assert replay_own(home, run)["same"] and replay_own(home, after)["same"]


def _passes(town: Town, name: str, run: str) -> float:
    return float(town.ask(name, control.Status(run)).progress.get("passes", 0.0))  # type: ignore[attr-defined]


def test_predictions_of_ended_runs_outlive_a_change_of_keys(town: Town) -> None:
    """No other party is started again; each takes the steps at its own time."""
    town.open()
    run = town.submit(job(target=1e-2))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    certificate = new_key(town, "shop")
    trust(town, "shop", certificate, "--keep-old")
    trust(town, "bank", certificate, "--keep-old")
    assert connect(town.folder / "bank", run).decision_function(["c1"]).shape == (1,)  # telecom has not heard of it
    trust(town, "telecom", certificate, "--keep-old")
    point_to_it(town, "shop")
    town.restart("shop")
    trust(town, "bank", certificate)
    for asker in NAMES:  # telecom takes both still
        assert connect(town.folder / asker, run).decision_function(["c1"]).shape == (1,)
    old = PeerCalls(read_identity(town, "shop"), read_roster(town.folder / "bank" / "roster.toml"))
    with pytest.raises(PeerFailed):
        old.call("bank", control.Ping())
    assert isinstance(old.call("telecom", control.Ping()), control.Pong)


def read_identity(town: Town, name: str):  # type: ignore[no-untyped-def]
    from offbeat.runtime.grpc.identity import load_identity

    keys = town.folder / name / "keys"
    return load_identity(name, keys / f"{name}.key", keys / f"{name}.crt")


def test_a_run_under_an_unknown_key_is_named(town: Town) -> None:
    town.open()
    run = town.submit(job(target=1e-2))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    trust(town, "shop", new_key(town, "shop"), "--keep-old")
    point_to_it(town, "shop")
    settings = town.folder / "shop" / "party.toml"
    assert replay_own(read_home(town.folder / "shop"), run)["same"]
    settings.write_text(settings.read_text().replace('older = ["keys/shop.key"]', ""))
    with pytest.raises(BadInput, match=r"began with another private key than keys-2027/shop\.key"):
        replay_own(read_home(town.folder / "shop"), run)


def test_three_certificates_of_one_party_are_too_many(tmp_path: Path) -> None:
    first, second, third = (new_identity("ana").certificate_pem for _ in range(3))
    write_roster(
        tmp_path / "roster.toml", Town(tmp_path / "town").roster.with_member(Member("ana", first, "", (second, third)))
    )
    with pytest.raises(BadInput, match="2 older certificates of 'ana'"):
        read_roster(tmp_path / "roster.toml")
