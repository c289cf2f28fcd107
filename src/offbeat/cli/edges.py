"""Commands for edge sites: `offbeat mqtt init`, `offbeat cloud serve`, `offbeat edge serve`.

Human text goes to standard error; with --json one JSON document goes to standard output.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from zipfile import BadZipFile

import msgspec
import typer

from offbeat.cli.output import Json, group, say, show
from offbeat.errors import BadData, BadInput
from offbeat.party.verdicts import exit_code_of

if TYPE_CHECKING:
    from offbeat.algorithms.mapa import Edge
    from offbeat.jobs.horizontal import EdgeJob
    from offbeat.party.contract import Party
    from offbeat.privacy.ledger import Budget
    from offbeat.runtime.contract import Outcome
    from offbeat.runtime.mqtt import Address

mqtt_app = group("A broker of your own for edge sites.")
cloud_app = group("The cloud of a horizontal job.")
edge_app = group("One edge site of a horizontal job.")

JobFile = Annotated[Path, typer.Argument(help="The job file that the cloud and all edges hold.")]
Broker = Annotated[str, typer.Option(help="Where the broker listens: host:port.")]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Identity = Annotated[Path, typer.Option(help="This party's folder, as `offbeat mqtt init` wrote it.")]
State = Annotated[Path, typer.Option(help="Where this party keeps what must survive a crash.")]
SAY_EVERY_S = 10.0

for app in (mqtt_app, cloud_app, edge_app):
    app.callback()(lambda: None)  # a group, although there is one command in it


@mqtt_app.command("init")
def mqtt_init(
    folder: Annotated[Path, typer.Argument(help="Where to write certificates, access rules and configuration.")],
    edges: Annotated[int, typer.Option(help="How many edges: edge1, edge2, ...")] = 5,
    name: Annotated[list[str] | None, typer.Option(help="An edge's name; repeat for each. Replaces --edges.")] = None,
    host: Annotated[str, typer.Option(help="The name or address by which everybody reaches the broker.")] = "127.0.0.1",
    bind: Annotated[
        str, typer.Option(help="The address on which it listens; by default this machine's own, where --host is that.")
    ] = "",
    port: Annotated[int, typer.Option(help="The port on which it listens.")] = 8883,
    run_as: Annotated[str, typer.Option(help="The system user it runs as when root starts it.")] = "",
    own_keys: Annotated[
        bool, typer.Option("--own-keys", help="Make no party's key: each makes its own (`mqtt request`), you sign it.")
    ] = False,
    json: Json = False,
) -> None:
    """Write certificates, per-party access rules and a Mosquitto configuration."""
    from offbeat.names import edge_names
    from offbeat.runtime.broker import BrokerPlan, write_broker

    parties = tuple(name) if name else edge_names(edges)
    bind = bind or (host if host in LOOPBACK else "0.0.0.0")
    plan = BrokerPlan(parties, host=host, bind=bind, port=port, run_as=run_as, own_keys=own_keys)
    configuration = write_broker(folder, plan)
    handed = f"Hand each of {len(parties) + 1} folders under {folder / 'parties'} to its party, and nobody else."
    asked = f"Sign what each party sends you:  offbeat mqtt sign {folder} NAME.csr  (the cloud's, too)."
    start = f"Wrote {configuration}. Start the broker with:  mosquitto -c {configuration}"
    say(f"{start}\n{asked if own_keys else handed}")
    show({"configuration": str(configuration), "parties": ["cloud", *parties]}, json)


@mqtt_app.command("request")
def mqtt_request(
    name: Annotated[str, typer.Argument(help="This party's name on the broker; cloud, for the cloud.")],
    folder: Annotated[Path, typer.Option("--dir", help="This party's folder; its key stays there.")] = Path("identity"),
) -> None:
    """At a site: make a private key that stays there, and a request to send to whoever runs the broker."""
    from cryptography import x509

    from offbeat.runtime.certificates import key_mark
    from offbeat.runtime.grpc.identity import new_request, short, write_private

    key, request = new_request(name)
    write_private(folder / f"{name}.key", key)
    (folder / f"{name}.csr").write_bytes(request)
    mark = key_mark(x509.load_pem_x509_csr(request).public_key())  # type: ignore[arg-type]
    say(
        f"Wrote {folder / f'{name}.key'} (it stays here) and {folder / f'{name}.csr'}: send that to whoever runs the "
        f"broker, and compare by telephone: {short(mark)}\nPut the two files that come back into {folder}."
    )


@mqtt_app.command("sign")
def mqtt_sign(
    folder: Annotated[Path, typer.Argument(help="The folder that `offbeat mqtt init` wrote.")],
    request: Annotated[Path, typer.Argument(help="A party's request, as it sent it to you.")],
) -> None:
    """At the broker: make the certificate that a party asked for; its private key is not needed."""
    from offbeat.runtime.broker import sign_request
    from offbeat.runtime.grpc.identity import short

    if not request.is_file():
        raise BadInput(f"expected a certificate request at {request}, found nothing.")
    mine, mark = sign_request(folder, request.read_bytes())
    say(f"Compare by telephone before you hand it out: {short(mark)}\nThen send both files in {mine} to that party.")


@cloud_app.command("serve")
def cloud_serve(
    job_file: JobFile,
    identity: Identity,
    state: State,
    broker: Broker = "127.0.0.1:8883",
    edges: Annotated[str, typer.Option(help="Edges to wait for, by name, separated by commas.")] = "",
    json: Json = False,
) -> None:
    """Hold the model, serve every edge that comes, end after the job's updates; the model goes to the state folder."""
    from offbeat.families.horizontal import build_cloud
    from offbeat.runtime.mqtt import ServesOthers

    job, address = _job(job_file), _address(broker, identity)
    cloud = build_cloud(job, tuple(name for name in edges.split(",") if name))

    def progress() -> str:
        return f"{cloud.version} of {cloud.updates} updates; heard of {len(cloud.seen)} edges"

    serving = ServesOthers(cloud)
    outcome = _serve(job, serving, progress, address, state, durable=False)
    path = _write_model(state, job, cloud)
    counts = {"applied": cloud.applied, "refused": cloud.refused, "repeated": cloud.repeated}
    counts["passed_over"] = serving.passed_over
    told = {"version": cloud.version, "model": str(path), **counts, "seconds": outcome.time_s}
    _tell_end(outcome, cloud.name, f" The model is in {path}.", told, json)


@edge_app.command("serve")
def edge_serve(
    job_file: JobFile,
    name: Annotated[str, typer.Option(help="This edge's name, as in its certificate.")],
    data: Annotated[Path, typer.Option(help="This edge's rows: an .npz file with arrays x and y.")],
    identity: Identity,
    state: State,
    broker: Broker = "127.0.0.1:8883",
    epsilon: Annotated[float | None, typer.Option(help="This site's budget over all its runs; else the job's.")] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of that budget; else the job's.")] = None,
    json: Json = False,
) -> None:
    """Take part with this site's rows until the run or the privacy budget ends. Start it again after a crash."""
    from offbeat.families.horizontal import build_edge, recipes_of, rows_for
    from offbeat.jobs.rules import model_of
    from offbeat.orgs.budget import SiteAccount, reservation_name

    job, address, place = _job(job_file), _address(broker, identity), state
    rows = rows_for(job, *_read_rows(data))
    model_of(job).check(rows)
    account, recipe, reservation = SiteAccount(identity / "ledger"), recipes_of(job, {name: rows.rows})[name], ""
    if recipe.budget is not None:
        address.files(name)  # a site that cannot connect reserves nothing
        place = state / job.run
        reservation = reservation_name(place, job.run, name)
        held = account.reserve(reservation, dict(recipe.proven), _site_budget(recipe.budget, epsilon, delta))
        recipe = replace(recipe, reserved=tuple(held.items()))
    edge = build_edge(job, name, rows, recipe)
    for warning in edge.warnings:
        say(f"Warning: {warning}")
    outcome = _serve(job, edge, lambda: _taking_part(edge), address, place, durable=True)
    if reservation:
        account.settle(reservation, edge.ledger.spent)
    _tell_end(outcome, name, "", {"uploads": edge.uploads, "privacy": edge.statement()}, json)


def _tell_end(outcome: "Outcome", name: str, more: str, told: dict[str, Any], as_json: bool) -> NoReturn:
    """How a party's part ended, for people and for programs."""
    verdict, reason = outcome.finished[name].verdict, outcome.finished[name].reason
    say(f"{verdict}: {reason}{more}")
    observed = {what: value for _, _, what, value in outcome.observations if what.startswith("mqtt_")}
    show({"verdict": verdict, "reason": reason, **told, **observed}, as_json)
    raise typer.Exit(exit_code_of(verdict))


def _site_budget(job: "Budget", epsilon: float | None, delta: float | None) -> "Budget":
    """The site's own where it names one: a job does not set the budget of whoever holds the rows."""
    given = {key: value for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    if not all(value > 0 for value in given.values()) or given.get("delta", 0.5) >= 1:
        raise BadInput(f"--epsilon must be above 0, and --delta between 0 and 1; got {epsilon} and {delta}.")
    return msgspec.structs.replace(job, **given)


def _taking_part(edge: "Edge") -> str:
    waiting = f"; no answer from the cloud yet, asked {edge.unanswered} times" if edge.unanswered else ""
    return f"{edge.uploads} uploads{waiting}"


def _serve(
    job: "EdgeJob", party: "Party", doing: Callable[[], str], address: "Address", state: Path, *, durable: bool
) -> "Outcome":
    """Carry the party; what it is doing is said now and then, when it has changed."""
    from offbeat.algorithms.mapa import MESSAGES
    from offbeat.runtime.mqtt import Mqtt

    said, due_s = "", 0.0

    def look(now_s: float) -> float:
        nonlocal said, due_s
        if now_s >= due_s and (words := doing()) != said:
            say(f"{party.name}: {words}")
            said, due_s = words, now_s + SAY_EVERY_S
        return SAY_EVERY_S

    runtime = Mqtt(address, job.run, MESSAGES, state, durable=durable)
    say(f"{party.name}: connecting to the broker at {address.host}:{address.port}")
    return runtime.serve(party, look)


def _job(path: Path) -> "EdgeJob":
    from offbeat.jobs.elsewhere import is_elsewhere
    from offbeat.jobs.horizontal import edge_job_from
    from offbeat.jobs.reading import read_tree

    job = edge_job_from(read_tree(path), str(path), path.resolve().parent)
    if is_elsewhere(job.algorithm):  # all sites hold the same file, and one of them wrote it
        raise BadInput(f"{path} names {job.algorithm!r}: between sites only offbeat's own methods are run.")
    return job


def _address(broker: str, identity: Path) -> "Address":
    from offbeat.runtime.mqtt import Address

    host, _, port = broker.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"--broker expects host:port, as in broker.example.org:8883; got {broker!r}.")
    return Address(host, int(port), identity)


def _read_rows(path: Path) -> tuple[Any, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in ("x", "y") if key not in file.files]
            if not missing:
                return file["x"], file["y"]
    except FileNotFoundError:
        raise BadData(f"There is no file {path} with this edge's rows.") from None
    except (OSError, ValueError, EOFError, BadZipFile) as problem:
        raise BadData(
            f"{path} is not an .npz file of plain numbers. Write one with numpy.savez(path, x=rows, y=labels), where x "
            "is a table of numbers and y has one whole number for each row."
        ) from problem
    raise BadData(f"{path} has no array {missing[0]!r}; an edge's file holds x (rows) and y (labels).")


def _write_model(state: Path, job: "EdgeJob", cloud: Any) -> Path:
    from safetensors.numpy import save_file

    state.mkdir(parents=True, exist_ok=True)
    path = state / "model.safetensors"
    arrays = {"parameters": cloud.parameters, "averaged": cloud.averaged}
    save_file(arrays, path, metadata={"run": job.run, "kind": job.model.kind, "version": str(cloud.version)})
    return path
