"""Three organisations on this machine, each with its own folder, keys, file and daemon: from alignment to prediction.

    python examples/three_organisations [FOLDER]

Every step is a command that a person would type at one of the organisations; this script types them, and in the end
works the console in a real browser. The data is the breast cancer set that comes with scikit-learn: 569 real patients,
30 measurements, ten to each organisation.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from steward import Steward, has_browser

HERE = Path(__file__).parent
NAMES = ("clinic", "hospital", "laboratory")
OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]


def main(folder: Path) -> None:
    begin = time.monotonic()
    title("1. Each organisation has a table of its own, in its own order")
    write_tables(folder)
    title("2. Each makes its settings and its key, and pins the certificates of the others")
    set_up(folder)
    title("3. Each starts its daemon and checks that all is well")
    daemons = {name: serve(folder / name) for name in NAMES}
    try:
        for name in NAMES:
            wait_for(folder / name, daemons[name])
        for name in NAMES:
            offbeat("party", "check", "--home", folder / name)
        title("4. The hospital proposes a job: private set intersection, then training, all by policy")
        status = offbeat_json("job", "submit", HERE / "job.toml", "--home", folder / "hospital", "--wait")
        run = status["run"]
        title("5. Joint prediction for three patients, whose scores the hospital alone learns")
        ids = ("P100000", "P100003", "P100007")
        offbeat("predict", run, "--home", folder / "hospital", *(arg for i in ids for arg in ("--id", i)))
        scores = offbeat_json("predict", run, "--home", folder / "hospital", "--ids", folder / "all.ids")
        title("6. Was anything lost against pooling all tables?")
        compare(folder, run, scores["rows"])
        title("7. The hospital's data steward opens the console in a browser: approve by hand, watch, predict")
        at_the_console(folder)
    finally:
        for daemon in daemons.values():
            daemon.terminate()
        for daemon in daemons.values():
            daemon.wait()
    for name in NAMES:
        say(f"report of {name}: {folder / name / 'runs' / run / 'report.html'}")
    say(f"done in {time.monotonic() - begin:.1f} s")


def write_tables(folder: Path) -> None:
    """Ten columns each; the rows shuffled, a few missing, one doubled, everywhere differently."""
    data = load_breast_cancer()
    ids = np.array([f"P{100000 + i}" for i in range(len(data.target))])
    (folder / "all.ids").parent.mkdir(parents=True, exist_ok=True)
    (folder / "all.ids").write_text("\n".join(ids) + "\n", encoding="utf-8")
    for k, name in enumerate(NAMES):
        rows = np.random.default_rng(k).permutation(len(ids))[: len(ids) - 10 * k - 5]
        rows = np.append(rows, rows[0])
        columns = [*range(10 * k, 10 * k + 10)]
        head = ["patient", *(str(data.feature_names[c]).replace(" ", "_") for c in columns)]
        head += ["malignant"] if name == "hospital" else []
        lines = [",".join(head)]
        for row in rows:
            label = [str(1 - int(data.target[row]))] if name == "hospital" else []
            lines.append(",".join([ids[row], *(repr(float(data.data[row, c])) for c in columns), *label]))
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "patients.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        say(f"{name}: {len(rows)} rows, 10 columns")


def set_up(folder: Path) -> None:
    from offbeat.runtime.processes import free_ports

    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)}
    for name in NAMES:
        place = folder / name
        others = [other for other in NAMES if other != name]
        label = ("--label", "malignant", *(word for other in others for word in ("--labels-for", other)))
        allowed = ("--initiator", "hospital", "--leader", "hospital", "--predictions-for", "hospital")
        more = ("--dir", place, "--data", "patients.csv", "--id", "patient", "--listen", addresses[name])
        asks = ("--initiator", "clinic")  # the clinic's jobs may use the labels too, if the hospital's steward agrees
        more = (*more, "--job", "diagnosis", *((*label, *asks) if name == "hospital" else allowed))
        more = (*more, *(asks if name == "laboratory" else ()))
        offbeat("party", "init", name, *more, quiet=True)
        offbeat("keys", "new", name, "--dir", place / "keys", quiet=True)
    for name in NAMES:
        for other in NAMES:  # in real life the certificates arrive by mail, and the hash is compared by telephone
            certificate = folder / other / "keys" / f"{other}.crt"
            roster = folder / name / "roster.toml"
            offbeat("keys", "trust", certificate, "--address", addresses[other], "--roster", roster, quiet=True)
    offbeat("keys", "show", "--roster", folder / "hospital" / "roster.toml")


def serve(place: Path) -> "subprocess.Popen[bytes]":
    log = (place / "daemon.log").open("ab")
    return subprocess.Popen([*OFFBEAT, "party", "serve", "--home", str(place)], stderr=log, stdout=log)


def wait_for(place: Path, daemon: "subprocess.Popen[bytes]") -> None:
    for _ in range(1200):
        if (place / "private" / "control").exists():
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"the daemon of {place.name} did not start; see {place / 'daemon.log'}")


def compare(folder: Path, run: str, rows: list[dict[str, float]]) -> None:
    """Pool the three aligned tables, which only this script can do, and solve the same problem centrally."""
    from offbeat.data.matrix import stack_columns
    from offbeat.jobs.organisations import read_job
    from offbeat.learning.central import optimum
    from offbeat.learning.losses import LOGISTIC
    from offbeat.orgs.party_config import read_home
    from offbeat.orgs.rows import load_table, own_rows
    from offbeat.runtime.checkpoint import read_checkpoint

    job = read_job(HERE / "job.toml")
    blocks, labels, ids = [], None, None
    for name in job.parties:
        home = read_home(folder / name)
        table = load_table(home)
        kept = read_checkpoint(home.private / run, "alignment")
        assert kept is not None
        own = own_rows(home, table, job, kept["rows"], kept["tokens"], kept["coin"])
        blocks.append((own.train, own.test))
        if own.y_train is not None:
            labels = own.y_train
            order = {token: str(table.ids[row]) for token, row in zip(kept["tokens"], kept["rows"], strict=True)}
            ids = [order[token] for token in (*own.tokens_train, *own.tokens_test)]
    assert labels is not None and ids is not None
    blocks.append((np.ones((len(labels), 1)), np.ones((len(ids) - len(labels), 1))))  # the constant has no penalty
    pool = stack_columns([train for train, _ in blocks])
    weights, _ = optimum(pool, labels, LOGISTIC, job.model.strength, free=1, tolerance=1e-12)
    pooled = np.vstack([stack_columns([b[i] for b in blocks]) for i in (0, 1)]) @ weights
    together = {row["id"]: row["score"] for row in rows}
    difference = max(abs(together[i] - score) for i, score in zip(ids, pooled, strict=True))
    say(f"{len(ids)} patients: the largest difference between joint and pooled scores is {difference:.1e}")
    assert difference < 1e-4, difference  # the certificate of 1e-12 allows some 7e-5


def at_the_console(folder: Path) -> None:
    """The clinic proposes; at the hospital a person decides."""
    if not has_browser():
        say("chromium is not installed, so the console was not opened (on Debian: apt-get install chromium).")
        return
    steward = Steward(OFFBEAT, folder / "hospital", say)
    try:
        steward.decide_by_hand(cap=5000)
        run = offbeat_json("job", "submit", HERE / "job.toml", "--home", folder / "clinic")["run"]
        steward.approve()
        steward.watch(str(run))
        for name in NAMES:  # the others end a moment earlier or later
            offbeat("job", "watch", run, "--home", folder / name, quiet=True)
        steward.predict((folder / "all.ids").read_text(encoding="utf-8").split())
    finally:
        steward.close()
    say(f"pictures of every page: {steward.folder}")


def title(text: str) -> None:
    print(f"\n{text}", flush=True)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def offbeat(*arguments: object, quiet: bool = False) -> str:
    """Type one command; what it says to people is shown."""
    done = subprocess.run([*OFFBEAT, *map(str, arguments)], capture_output=True, text=True)
    if not quiet or done.returncode:
        for line in (*done.stderr.splitlines(), *([] if "--json" in arguments else done.stdout.splitlines())):
            say(line)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def offbeat_json(*arguments: object) -> dict[str, object]:
    result: dict[str, object] = json.loads(offbeat(*arguments, "--json"))
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="offbeat-orgs-")))
