"""The commands for organisations: `offbeat keys`, `party`, `job` and `predict`.

Text for people goes to standard error; with --json the only thing on standard output is one JSON document. Errors are
raised as they are: the command line's main function turns them into one paragraph and the exit code.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from offbeat.cli.output import Json, Open, Port, group, say, show, write_csv
from offbeat.errors import BadData, BadInput, OffbeatError, PeerFailed
from offbeat.names import counted

keys = group("Keys, certificates and the roster of parties that trust each other.")
party = group("One party: its settings, a check before the first job, its daemon.")
job = group("Jobs that parties do together.")

HomeOption = Annotated[Path, typer.Option("--home", help="The folder with party.toml, or the file itself.")]
Names = list[str] | None
PartyOption = Annotated[
    str, typer.Option("--party", help="The daemon's host:port, or its party.toml; by default the one under --home.")
]


SUBMIT_WITHIN_S = 900.0  # every party reads its table meanwhile


# -- keys -------------------------------------------------------------------------------------------------------------


@keys.command("new")
def keys_new(
    name: str,
    folder: Annotated[Path, typer.Option("--dir", help="Where the key goes; only its owner can read it.")] = Path(
        "keys"
    ),
    request: Annotated[bool, typer.Option("--request", help="Make a request for an authority instead.")] = False,
    days: Annotated[int, typer.Option(help="How long a self-signed certificate is valid.")] = 825,
    json: Json = False,
) -> None:
    """Make a private key, and a self-signed certificate (or a request for one)."""
    from offbeat.runtime.grpc.identity import fingerprint, new_identity, new_request, short, write_private

    key_file = folder / f"{name}.key"
    if days < 1:
        raise BadInput(f"--days {days}: expected at least one day.")
    if request:
        key, csr = new_request(name)
        write_private(key_file, key)
        (folder / f"{name}.csr").write_bytes(csr)
        say(f"wrote {key_file} (keep it) and {folder / f'{name}.csr'} (send it to your authority).")
        show({"key": str(key_file), "request": str(folder / f"{name}.csr")}, json)
        return
    identity = new_identity(name, days=days)
    write_private(key_file, identity.key_pem)
    certificate = folder / f"{name}.crt"
    certificate.write_bytes(identity.certificate_pem)
    mark = fingerprint(identity.certificate_pem)
    say(f"wrote {key_file} (keep it) and {certificate} (give it to the others).\nfingerprint: {short(mark)}")
    show({"key": str(key_file), "certificate": str(certificate), "fingerprint": mark}, json)


@keys.command("trust")
def keys_trust(
    certificate: Annotated[Path, typer.Argument(help="A party's certificate, as it gave it to you.")],
    address: Annotated[str, typer.Option(help="host:port where it listens; empty if it only calls out.")] = "",
    roster_file: Annotated[Path, typer.Option("--roster")] = Path("roster.toml"),
    authority: Annotated[bool, typer.Option("--authority", help="This is an authority's certificate.")] = False,
    name: Annotated[str, typer.Option(help="The party's name, if it is not the certificate's common name.")] = "",
    keep_old: Annotated[
        bool, typer.Option("--keep-old", help="Take its certificate of before as well, while it changes its key.")
    ] = False,
    json: Json = False,
) -> None:
    """Pin a party's certificate in the roster, or replace it there."""
    from offbeat.orgs.party_config import check_address, check_members, is_authority
    from offbeat.runtime.grpc.identity import (
        Member,
        PinnedRoster,
        common_name,
        out_of_time,
        read_roster,
        short,
        write_roster,
    )

    if not certificate.is_file():
        raise BadInput(f"expected a certificate at {certificate}, found nothing.")
    check_address(address, "--address")
    pem = certificate.read_bytes()
    if is_authority(pem, certificate) != authority:
        raise BadInput(
            f"{certificate} is an authority's certificate, which could sign for any name: pin it by --authority, and "
            "the party's own certificate beside it."
            if not authority
            else f"{certificate} is not an authority's certificate; leave --authority out."
        )
    roster = read_roster(roster_file) if roster_file.is_file() else PinnedRoster(())
    if authority:
        roster = PinnedRoster(roster.members, (*roster.authorities_pem, pem))
    else:
        who = name or common_name(pem, certificate)
        known = {member.name: member for member in roster.members}
        before = known.get(who, Member(who, pem))
        new = Member(who, pem, address or before.address)
        roster = roster.with_member(new.also(Member(who, before.certificate_pem)) if keep_old else new)
        if trouble := out_of_time(pem):
            say(f"Warning: this certificate of '{who}' {trouble}")
    write_roster(roster_file, check_members(roster, roster_file))
    say(
        f"{roster_file} lists {', '.join(roster.names) or 'no party yet'}.\n"
        f"compare with the others: {short(roster.hash)}"
    )
    show({"roster": str(roster_file), "parties": list(roster.names), "hash": roster.hash}, json)


@keys.command("show")
def keys_show(roster_file: Annotated[Path, typer.Option("--roster")] = Path("roster.toml"), json: Json = False) -> None:
    """List the roster and the hash that all parties must agree on."""
    from offbeat.runtime.grpc.identity import read_roster, short, validity

    roster = read_roster(roster_file)
    for member in roster.members:
        for pem, mark in zip(member.certificates, member.fingerprints, strict=True):
            end = validity(pem)[1]
            say(f"{member.name:16} {member.address or '(calls out)':24} {short(mark)}  to {end:%Y-%m-%d}")
    say(f"hash: {short(roster.hash)}")
    parties = {m.name: {"address": m.address, "fingerprint": m.fingerprints[0]} for m in roster.members}
    show({"parties": parties, "hash": roster.hash}, json)


# -- party ------------------------------------------------------------------------------------------------------------


@party.command("init")
def party_init(
    name: str,
    folder: Annotated[Path, typer.Option("--dir")] = Path("."),
    data: Annotated[str, typer.Option(help="The party's table.")] = "",
    id_column: Annotated[str, typer.Option("--id", help="The column by which rows are matched.")] = "id",
    label: Annotated[str, typer.Option(help="The label column, where this party has it.")] = "",
    listen: Annotated[str, typer.Option(help="host:port; empty: only call others.")] = "127.0.0.1:7443",
    jobs: Annotated[Names, typer.Option("--job", help="A job it takes part in; may be repeated.")] = None,
    initiators: Annotated[Names, typer.Option("--initiator", help="Who else may propose jobs.")] = None,
    leaders: Annotated[Names, typer.Option("--leader", help="Who else may lead the matching of ids.")] = None,
    labels_for: Annotated[Names, typer.Option("--labels-for", help="Who may learn its labels.")] = None,
    predictions_for: Annotated[
        Names, typer.Option("--predictions-for", help="Who else may ask for joint predictions.")
    ] = None,
) -> None:
    """Write a commented party.toml. Its policy allows nothing to anybody who is not named."""
    from offbeat.orgs.party_config import example
    from offbeat.runtime.grpc.identity import check_name

    path = folder / "party.toml"
    if path.exists():
        raise BadInput(f"{path} exists already; it is not overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    named = {"jobs": jobs, "initiators": initiators, "leaders": leaders, "labels_for": labels_for}
    allowed = {key: tuple(names or ()) for key, names in {**named, "predictions_for": predictions_for}.items()}
    text = example(check_name(name), data=data, id_column=id_column, label=label, listen=listen, **allowed)
    path.write_text(text, encoding="utf-8")
    say(
        f"wrote {path}. Next: `offbeat keys new {name} --dir {folder / 'keys'}`, `offbeat keys trust` for everybody's "
        "certificate (your own, too), then `offbeat party check`."
    )


@party.command("check")
def party_check(
    home: HomeOption = Path("."),
    reach: Annotated[bool, typer.Option(help="Call the peers, too.")] = True,
    json: Json = False,
) -> None:
    """Say what is wrong before a job finds out, and how to mend it."""
    from offbeat.orgs.party_config import read_home
    from offbeat.orgs.preflight import check_home

    findings = check_home(read_home(home), reach=reach)
    for finding in findings:
        say(f"{finding.state:8} {finding.what}: {finding.detail}")
    show([{"what": f.what, "state": f.state, "detail": f.detail} for f in findings], json)
    wrong = [finding for finding in findings if finding.state == "wrong"]
    if wrong:
        unreachable = all(finding.what.startswith("peer") for finding in wrong)
        raise typer.Exit(PeerFailed.exit_code if unreachable else BadInput.exit_code)


@party.command("serve")
def party_serve(
    home: HomeOption = Path("."),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what is only of use to find a fault.")] = False,
    json_lines: Annotated[bool, typer.Option("--log-json", help="Each line of the log as one JSON object.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", help="Log into this file; ten full ones of 10 MB are kept.")
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0.0, help="When asked to end, give runs so many seconds; others go on later.")
    ] = 0.0,
) -> None:
    """Run the party's daemon until it is interrupted."""
    from offbeat.orgs.daemon import Daemon
    from offbeat.orgs.daemon_log import write_log
    from offbeat.orgs.party_config import read_home
    from offbeat.runtime.grpc.identity import short

    settings = read_home(home)
    write_log(log_file or sys.stderr, verbose=verbose, as_json=json_lines, party=settings.name)
    done, hurry = when_asked_to_end()
    daemon = Daemon(settings)
    address = daemon.start()
    say(f"'{daemon.home.name}' listens at {address}; roster {short(daemon.roster.hash)}. Ctrl-C ends.")
    done.wait()
    for run in daemon.drain(drain, hurry):
        say(f"run {run} has not ended; it goes on when the daemon is started again.")
    daemon.stop()


def when_asked_to_end() -> tuple[threading.Event, threading.Event]:
    """Set by the first and by the second SIGINT or SIGTERM. A handler in Python would run in the main thread, which may
    be about to sleep, and then sleeps on, or hold the event's own lock, and then waits for itself for ever. So a thread
    reads what the interpreter's own handler writes."""
    events = threading.Event(), threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    def heed() -> None:
        for event in events:
            os.read(reading, 1)
            event.set()

    threading.Thread(target=heed, name="signals", daemon=True).start()
    return events


@party.command("status")
def party_status(party: PartyOption = "", home: HomeOption = Path("."), json: Json = False) -> None:
    """What the daemon works on, what waits and why, and what it refused lately."""
    from collections import Counter

    from offbeat.orgs.control import ListRuns

    told = ask(home, party, ListRuns())
    runs, refusals = told.runs, told.refusals
    going = [run for run in runs if not run.ended and run.phase not in ("queued", "waiting")]
    queued, undecided = ([run for run in runs if run.phase == phase] for phase in ("queued", "waiting"))
    ended = Counter(run.phase for run in runs if run.ended)
    for title, some in (("under way", going), ("in the queue", queued), ("for the owner to decide", undecided)):
        say("\n  ".join([f"{title}: {len(some) or 'none'}", *map(status_line, some)]))
    say(f"ended: {', '.join(f'{count} {phase}' for phase, count in sorted(ended.items())) or 'none'}")
    lines = [f"{one.at} {one.peer}, {one.request}: {one.reason} ({counted(one.times, 'time')})" for one in refusals]
    say("\n  ".join([f"refused lately: {len(lines) or 'nothing'}", *lines]))
    plain = {"runs": [run for run in runs if not run.ended], "ended": dict(ended), "refusals": refusals}
    show(msgspec.to_builtins(plain), json)


@party.command("console")
def party_console(home: HomeOption = Path("."), port: Port = 0, open_: Open = False, json: Json = False) -> None:
    """A page for the owner: proposals to decide, runs, ledgers, policy, peers; on this machine, until Ctrl-C."""
    from offbeat.cli.serving import console

    console(home, port, open_, json)


# -- jobs -------------------------------------------------------------------------------------------------------------


def ask(home_path: Path, party: str, request: Any, timeout_s: float = 60.0) -> Any:
    """An owner's request; `party` is the daemon's address, or another party.toml than the one under --home."""
    from offbeat.orgs import client

    if party and Path(party).exists():
        return client.ask(Path(party), request, timeout_s=timeout_s)
    return client.ask(home_path, request, party.removeprefix("grpc://").removeprefix("https://"), timeout_s)


@job.command("submit")
def job_submit(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    party: PartyOption = "",
    home: HomeOption = Path("."),
    from_: Annotated[str, typer.Option("--from", help="A run whose model all parties begin with.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to its end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say who would learn what, and send nothing.")] = False,
    json: Json = False,
) -> None:
    """Propose a job to all its parties, and begin when all have accepted."""
    from offbeat.jobs.organisations import begun_with, read_job
    from offbeat.orgs.control import Submit
    from offbeat.orgs.disclosure import disclosures

    wanted = begun_with(read_job(job), Path(from_).name, job) if from_ else read_job(job)
    say("\n".join(["What this job tells whom:", *(f"  - {line}" for line in disclosures(wanted))]))
    if dry_run:
        return
    submitted = ask(home, party, Submit(wanted.text), SUBMIT_WITHIN_S)
    if submitted.awaited:
        say(f"run {submitted.run} waits for the owners of {' and '.join(submitted.awaited)}, who decide by hand.")
    elif submitted.queued:
        say(f"accepted by all parties: run {submitted.run} waits for its turn ({submitted.queued}).")
    else:
        say(f"accepted by all parties: run {submitted.run}")
    if wait:
        job_watch(submitted.run, party, home, json)
    else:
        show({"run": submitted.run}, json)


@job.command("status")
def job_status(run: str, party: PartyOption = "", home: HomeOption = Path("."), json: Json = False) -> None:
    """How one run stands, as this party sees it."""
    from offbeat.orgs.control import Status

    status = ask(home, party, Status(run))
    say(status_line(status))
    show(msgspec.to_builtins(status), json)


@job.command("watch")
def job_watch(run: str, party: PartyOption = "", home: HomeOption = Path("."), json: Json = False) -> None:
    """Follow a run to its end; the exit code is the run's."""
    status = followed(run, party, home)
    show(msgspec.to_builtins(status), json)
    refuse_failed(status)


def followed(run: str, party: str, home: Path) -> Any:
    """The status of a run at its end."""
    from offbeat.orgs.control import Status

    last = ""
    while True:
        status = ask(home, party, Status(run))
        if status_line(status) != last:
            last = status_line(status)
            say(last)
        if status.ended:
            return status
        time.sleep(0.3)


def refuse_failed(status: Any) -> None:
    from offbeat.orgs.control import error_named

    if status.kind:
        raise error_named(status.kind, status.reason)
    if status.phase != "done":
        raise OffbeatError(status.reason) if status.phase == "stopped" else PeerFailed(status.reason)


ByOption = Annotated[str, typer.Option("--by", help="Who decides; it is written down.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is written down, and told in a refusal.")]


def deciding(accept: bool, told: str) -> Callable[..., None]:
    """The command that accepts, or refuses."""

    def decide(
        run: str, by: ByOption, reason: ReasonOption = "", party: PartyOption = "", home: HomeOption = Path(".")
    ) -> None:
        from offbeat.orgs.control import Decide

        ask(home, party, Decide(run, accept, by, reason))
        say(f"{run} is {told}")

    return decide


job.command("accept", help='Accept a proposal that waits for this party\'s owner (approve = "by hand").')(
    deciding(True, "accepted; it begins when every party has accepted it.")
)
job.command("refuse", help="Refuse a proposal that waits for this party's owner.")(
    deciding(False, "refused; its initiator is told within seconds.")
)


@job.command("stop")
def job_stop(run: str, party: PartyOption = "", home: HomeOption = Path(".")) -> None:
    """End a run; the initiator's stop ends it everywhere."""
    from offbeat.orgs.control import Stop

    ask(home, party, Stop(run))
    say(f"{run} is being stopped; `offbeat job watch {run}` tells when it has ended.")


@job.command("list")
def job_list(party: PartyOption = "", home: HomeOption = Path("."), json: Json = False) -> None:
    """All runs this party knows."""
    from offbeat.orgs.control import ListRuns

    runs = ask(home, party, ListRuns()).runs
    for status in runs:
        say(status_line(status))
    show([msgspec.to_builtins(status) for status in runs], json)


def status_line(status: Any) -> str:
    from offbeat.orgs.control import PAUSED

    progress = status.progress
    parts = [f"{status.run}: {status.phase}", "" if status.ended else progress.get(PAUSED, "")]
    if progress.get("awaiting") and status.phase == "accepted":
        parts.append(f"waiting for the owners of {' and '.join(progress['awaiting'])}")
    if status.phase == "queued":
        parts.append(f"waits for a place: {progress.get('queued', '')}")
    if "passes" in progress and not status.ended:
        parts.append(f"{progress['passes']:.1f} passes")
        known = {key: value for key, value in progress.items() if isinstance(value, float) and isfinite(value)}
        certificate = "gap" if "gap" in known else "gradient_norm"  # no gap without convexity
        shown = {"objective": "objective", certificate: "certificate", "batch_loss": "loss"}
        parts += [f"{word} {known[key]:.4g}" for key, word in shown.items() if key in known]
    if status.ended:
        parts.append(f"{status.verdict}: {status.reason}" if status.verdict else status.reason)
        parts += [f"{name} {value:.4f}" for name, value in status.metrics.items()]
    return ", ".join(part for part in parts if part)


# -- predict ----------------------------------------------------------------------------------------------------------


def predict(
    run: Annotated[str, typer.Argument(help="A finished run.")],
    ids: Annotated[Path | None, typer.Option("--ids", help="A file with one id per line.")] = None,
    one: Annotated[list[str] | None, typer.Option("--id", help="One id; may be repeated.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="PARTY=FILE", help="A party's new rows, for a run in one place; once a party."),
    ] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also what each party adds to a row's score; with --ids, this party alone.")
    ] = False,
    party: PartyOption = "",
    home: HomeOption = Path("."),
    out: Annotated[Path | None, typer.Option("--out", help="Write a CSV file here.")] = None,
    json: Json = False,
) -> None:
    """Score new rows by a finished run: files of all parties with --data where the run was made in one place; or, with
    --ids, together with the organisations of the run, and then this party alone learns the scores."""
    if data:
        from offbeat.cli.scoring import score_files

        if ids is not None or one:
            raise BadInput("--data scores the rows of files, --ids and --id rows that organisations hold; choose one.")
        score_files(Path(run), data, out, json, parts)
        return
    from offbeat.orgs.client import PREDICT_WITHIN_S, predict_in_parts
    from offbeat.orgs.control import Predict

    wanted = [*_ids_in(ids), *(one or [])]
    if not wanted and ids is not None:
        raise BadInput(f"{ids} has no id in it: expected one id per line.")
    if not wanted:
        raise BadInput(
            "expected rows to score: --data PARTY=FILE for each party of a run in one place; or ids that organisations "
            "hold, by --ids FILE (one per line) or --id ID."
        )
    answer = predict_in_parts(
        lambda some: ask(home, party, Predict(Path(run).name, some), timeout_s=PREDICT_WITHIN_S), wanted
    )
    rows = [{"id": i, "score": score, "probability": chance} for i, score, chance in answer.rows(wanted)]
    if parts:
        _add_own_parts(rows, Path(party) if party and Path(party).exists() else home, Path(run).name)
    _tell_scores(rows, answer, out, json)


def _tell_scores(rows: list[dict[str, Any]], answer: Any, out: Path | None, json: bool) -> None:
    from offbeat.orgs.control import cell_text

    if out is not None:
        write_csv([{key: cell_text(cell) for key, cell in row.items()} for row in rows], out)
        say(f"wrote {counted(len(rows), 'row')} to {out}.")
    missing = sum(row["score"] is None for row in rows)
    say(
        f"{len(rows) - missing} of {len(rows)} rows scored"
        + (f"; not known to all parties: {missing}." if missing else ".")
    )
    if answer.without:
        say(f"scored without {', '.join(answer.without)}: its part of the model is missing from these scores.")
    show({"rows": rows, "classes": answer.classes, "without": answer.without}, json)
    if not json and out is None:
        for row in rows:
            typer.echo("\t".join(map(cell_text, row.values())))
    if missing == len(rows):
        raise BadData("no row was scored: none of these ids is known to all parties.")


def _add_own_parts(rows: list[dict[str, Any]], home: Path, run: str) -> None:
    """Of the own columns alone: masks hide the others' parts, and the asker learns their sum."""
    from offbeat.orgs.own_part import own_parts
    from offbeat.orgs.party_config import read_home

    own = read_home(home)
    for row, part in zip(rows, own_parts(own, run, [row["id"] for row in rows]), strict=True):
        row[f"part of {own.name}"] = part


def _ids_in(path: Path | None) -> list[str]:
    if path is None:
        return []
    if not path.is_file():
        raise BadInput(f"expected a file with one id per line at {path}, found nothing.")
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path} is not text: expected one id per line.") from problem
