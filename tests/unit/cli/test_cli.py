"""The command line, as a user and as a script meets it: names, exit codes, one JSON document, one clear paragraph."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.jobs.reading import job_from

RUN_KEYS = {
    "run", "algorithm", "runtime", "seed", "digest", "objective", "certificate", "passes", "seconds", "clock",
    "metrics", "parties", "reveals", "promises", "warnings",
}  # fmt: skip
PARTY_KEYS = {"updates", "lag_mean", "lag_max", "bytes_sent", "compute_s", "communicate_s", "wait_s"}


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def paragraph(result):
    """What a user reads, as one line, without a traceback."""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def write_csv(path, columns):
    names, values = list(columns), list(columns.values())
    rows = [",".join(names)] + [",".join(str(column[i]) for column in values) for i in range(len(values[0]))]
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def job(tmp_path):
    """Three organisations with 240 customers, in different orders."""
    rng = np.random.default_rng(5)
    ids = np.array([f"c{i:03d}" for i in range(240)])
    features = rng.normal(size=(240, 6))
    label = (features @ [1, -1, 0.5, 1, -0.5, 0] + rng.logistic(size=240) > 0).astype(int)
    orders = [rng.permutation(240) for _ in range(3)]
    bank, shop, telecom = ({"customer": ids[o]} for o in orders)
    bank |= {"age": features[orders[0], 0], "income": features[orders[0], 1], "default": label[orders[0]]}
    shop |= {"visits": features[orders[1], 2], "basket": features[orders[1], 3]}
    telecom |= {"calls": features[orders[2], 4], "data": features[orders[2], 5]}
    for name, table in (("bank", bank), ("shop", shop), ("telecom", telecom)):
        write_csv(tmp_path / f"{name}.csv", table)
    parties = "".join(
        f'[[party]]\nname = "{name}"\nfile = "{name}.csv"\nid = "customer"\n'
        + ('label = "default"\n' if name == "bank" else "")
        for name in ("bank", "shop", "telecom")
    )
    path = tmp_path / "job.toml"
    path.write_text(f"passes = 6\nseed = 7\n{parties}\n[runtime]\nslow = {{ shop = 4.0 }}\n")
    return path


# -- run, and what is done with a run ---------------------------------------------------------------------------------


def test_run_prints_one_json_document_with_the_promised_keys(job, tmp_path):
    result = call("run", job, "--json", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told.keys() >= RUN_KEYS
    assert told["certificate"].keys() == {"gradient_norm", "duality_gap"}
    assert set(told["parties"]) == {"bank", "shop", "telecom"}
    assert all(party.keys() >= PARTY_KEYS for party in told["parties"].values())
    assert told["metrics"].keys() == {"test_auc", "test_accuracy"}
    assert {"message", "count", "bytes", "reveals"} == told["reveals"][0].keys()
    assert "seeded: for experiments only" in " ".join(told["warnings"])
    folder = tmp_path / "run"
    for name in ("job.toml", "record.json", "metrics.jsonl", "report.html", "events", "checkpoints/bank.safetensors"):
        assert (folder / name).exists(), name
    assert job_from(tomllib.loads((folder / "job.toml").read_text())).seed == 7


def test_the_same_seed_gives_the_same_digest_and_another_another(job, tmp_path):
    digests = [
        json.loads(call("run", job, "--json", "--out", tmp_path / name, "--seed", seed).stdout)["digest"]
        for name, seed in (("a", 7), ("b", 7), ("c", 8))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_run_is_reported_compared_replayed_and_audited(job, tmp_path):
    for name, algorithm in (("a", "afsaga-vp"), ("b", "fsaga-vp")):
        assert call("run", job, "--set", f"algorithm={algorithm}", "--out", tmp_path / name).exit_code == 0
    shown = call("report", tmp_path / "a")
    assert shown.exit_code == 0 and "Disclosed, and to whom" in shown.stdout
    assert json.loads(call("report", tmp_path / "a", "--json").stdout)["algorithm"] == "afsaga-vp"
    compared = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json", "--target", "0.1").stdout)
    assert set(compared["runs"]) == {"a", "b"}
    assert call("compare", tmp_path / "a", tmp_path / "b", "--html", tmp_path / "c.html").exit_code == 0
    assert (tmp_path / "c.html").is_file()
    assert json.loads(call("replay", tmp_path / "a", "--json").stdout)["same"] is True
    audit = json.loads(call("audit", tmp_path / "a", "--json").stdout)
    assert audit["masks"]["used_once"] is True and audit["sums"]["complete"] > 0
    assert audit["received"]["shop"]["ShareAsked"] > 0
    assert "curious party" in call("audit", tmp_path / "a").stdout


@pytest.mark.parametrize("loss", ["logistic", "ls_svm"])
def test_an_audit_says_whose_labels_can_be_read(job, tmp_path, loss):
    """By every derivative of the logistic loss, and by the first ones of least squares."""
    settings = ["--set", "algorithm=vfb2-svrg", "--set", f"loss={loss}", "--out", tmp_path / "run"]
    told = json.loads(call("run", job, *settings, "--json").stdout)
    assert "Labels are disclosed: they stay at bank" in " ".join(told["warnings"])
    attacks = json.loads(call("audit", tmp_path / "run", "--json").stdout)["attacks"]
    read = {row["party"]: row["right"] for row in attacks if row["attack"] == "labels"}
    assert read == {"shop": 1.0, "telecom": 1.0}


def test_private_labels_are_said_to_be_so(job, tmp_path):
    settings = ["--set", "algorithm=vfb2-saga", "--set", "label_dp_epsilon=2.0"]
    told = json.loads(call("run", job, *settings, "--json", "--out", tmp_path / "run").stdout)
    assert "answered at random first (label_dp_epsilon = 2)" in " ".join(told["promises"])
    assert "answered at random first" not in " ".join(told["warnings"])
    audited = call("audit", tmp_path / "run").stdout
    assert audited.index("What is promised") < audited.index("Training labels were") < audited.index("Warnings of the")
    assert "private answers" in told["options"]["chosen"]["label_privacy"]["refers_to"]


def test_threads_run_and_their_logs_replay_bit_for_bit(job, tmp_path):
    result = call("run", job, "--runtime", "threads", "--set", "runtime.slow={}", "--json", "--out", tmp_path / "run")
    told = json.loads(result.stdout)
    assert (told["runtime"], told["clock"]) == ("threads", "wall")
    replayed = json.loads(call("replay", tmp_path / "run", "--json").stdout)
    assert replayed["same"] is True and replayed["how"] == "logs"
    assert json.loads(call("audit", tmp_path / "run", "--json").stdout)["masks"]["used_once"] is True


def test_a_changed_log_does_not_replay(job, tmp_path):
    call("run", job, "--runtime", "threads", "--set", "runtime.slow={}", "--out", tmp_path / "run")
    record = tmp_path / "run" / "record.json"
    record.write_text(record.read_text().replace('"digest": "', '"digest": "0'))
    result = call("replay", tmp_path / "run")
    assert result.exit_code == 3


def test_a_grid_of_steps_says_what_it_tried(job, tmp_path):
    told = json.loads(call("run", job, "--set", "step=grid", "--json", "--out", tmp_path / "run").stdout)
    tried = told["options"]["chosen"]["steps_tried"]
    assert len(tried) >= 3
    assert told["options"]["chosen"]["step"] == min(tried, key=lambda row: row["objective"])["step"]


def test_regression_and_the_other_losses(job, tmp_path):
    for name, settings, metric in (
        ("r", ["loss=squared", "party.bank.label=income"], "test_rmse"),
        ("h", ["loss=squared_hinge"], "test_auc"),
        ("l", ["loss=ls_svm", "penalty_kind=nonconvex"], "test_auc"),
    ):
        flags = [flag for setting in settings for flag in ("--set", setting)]
        result = call("run", job, *flags, "--json", "--out", tmp_path / name)
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)
        assert metric in told["metrics"]
        assert (told["certificate"]["duality_gap"] is None) == (name == "l")


def test_without_the_optimum_there_is_no_suboptimality(job, tmp_path):
    told = json.loads(call("run", job, "--no-optimum", "--json", "--out", tmp_path / "run").stdout)
    assert told["suboptimality"] is None


def test_ctrl_c_keeps_what_was_computed(job, tmp_path, monkeypatch):
    from offbeat.cli.output import RunProgress

    original, looks = RunProgress.watch, []

    def interrupted(self, glance):
        looks.append(glance)
        if len(looks) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, glance)

    monkeypatch.setattr(RunProgress, "watch", interrupted)
    result = call("run", job, "--set", "passes=1000", "--json", "--out", tmp_path / "run")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["verdict"]) == (1, "stopped")
    assert (tmp_path / "run" / "record.json").is_file()
    assert call("report", tmp_path / "run").exit_code == 0


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["algorithm=afsvgr-vp"], 2, "'afsvrg-vp'"),
        (["penality=1"], 2, "Did you mean 'penalty'"),
        (["party.shop.file=absent.csv"], 2, "absent.csv"),
        (["party.shop.id=custmer"], 2, "no id column 'custmer'. Did you mean 'customer'"),
        (["party.bank.label=defalt"], 2, "Did you mean 'default'"),
        (["party.shop.columns=['visit']"], 2, "Did you mean 'visits'"),
        (["party.bank.label=age", "task=classification"], 2, "Classification needs classes"),
        (["algorithm=afsvrg-vp", "labels_at=['bank']"], 2, "gives the labels to every party"),
        (["algorithm=vfb2-svrg", "labels_at=['banc']"], 2, "Did you mean 'bank'"),
        (["algorithm=vfb2-svrg", "labels_at=['shop']"], 2, "which brings no labels"),
        (["algorithm=vfb2-svrg", "labels_at=['bank', 'shop']"], 2, "which brings no labels"),
        (["loss=squared_hinge", "task=regression"], 2, "two classes"),
        (["runtime.kind=sim"], 2, "runtime.kind"),
        (["step=30.0", "leap=false"], 2, "the run ended as 'diverged'"),
        (["step=1000.0", "leap=false"], 4, "the run ended as 'range'"),
        (["fraction_bits=60"], 4, "the run ended as 'range'"),
    ],
)
def test_bad_input_ends_with_its_code_and_one_paragraph(job, tmp_path, settings, code, words):
    flags = [flag for setting in settings for flag in ("--set", setting)]
    result = call("run", job, *flags, "--out", tmp_path / "run")
    assert result.exit_code == code, result.stderr
    assert words.lower() in paragraph(result).lower()


@pytest.mark.parametrize("place", ["job.toml", "job.toml/inside", "/proc/offbeat"])
def test_a_run_folder_that_cannot_be_made_is_one_paragraph(job, tmp_path, place):
    result = call("run", job, "--set", "passes=1", "--out", tmp_path / place)
    assert result.exit_code == 2, result.stderr
    assert Path(place).name in paragraph(result)


def test_a_page_that_cannot_be_written_is_one_paragraph(job, tmp_path):
    call("run", job, "--set", "passes=1", "--out", tmp_path / "run")
    result = call("report", tmp_path / "run", "--html", tmp_path / "absent" / "page.html")
    assert result.exit_code == 2 and "page.html" in paragraph(result)
    result = call("compare", tmp_path / "run", tmp_path / "run", "--target", "0")
    assert result.exit_code == 2 and "above 0" in paragraph(result)


def test_the_demo_takes_no_negative_seed():
    assert call("demo", "--seed", "-1").exit_code == 2


def test_a_step_that_diverges_leaves_a_record_with_the_best_iterate(job, tmp_path):
    result = call("run", job, "--set", "step=30.0", "--set", "leap=false", "--json", "--out", tmp_path / "run")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["verdict"]) == (2, "diverged")
    assert told["objective"] <= 0.6932  # no worse than the zero start
    assert any("smaller step" in warning for warning in told["warnings"])


def test_duplicate_ids_and_wrong_numbers_are_found_with_their_rows(job, tmp_path):
    bank = tmp_path / "bank.csv"
    good = bank.read_text().splitlines()
    for line, words in (
        (good[1], "stands in 2 rows"),
        ("c999,inf,0.0,1", "finite"),
        ("c999,old,0.0,1", "expected a number, came 'old'"),
        (",1.0,0.0,1", "has no id"),
        ("c999,1.0,0.0,", "has no label"),
    ):
        bank.write_text("\n".join([*good, line]) + "\n")
        result = call("run", job, "--out", tmp_path / "run")
        assert result.exit_code == 2 and words in paragraph(result), line


def test_an_empty_intersection_shows_ids_of_both(job, tmp_path):
    shop = tmp_path / "shop.csv"
    shop.write_text(shop.read_text().replace("c", "k").replace("kustomer", "customer"))
    result = call("run", job, "--out", tmp_path / "run")
    assert result.exit_code == 2 and "No id is common" in paragraph(result)


def test_two_parties_are_refused_unless_that_is_accepted(job, tmp_path):
    text = job.read_text().split('[[party]]\nname = "telecom"')[0] + "[runtime]\n"
    job.write_text(text)
    refused = call("run", job, "--out", tmp_path / "a")
    assert refused.exit_code == 2 and "two_party_insecure" in paragraph(refused)
    told = json.loads(call("run", job, "--set", "two_party_insecure=true", "--json", "--out", tmp_path / "b").stdout)
    assert any("two parties" in warning for warning in told["warnings"])


def test_no_labels_anywhere_is_said(job, tmp_path):
    job.write_text(job.read_text().replace('label = "default"\n', ""))
    result = call("run", job, "--out", tmp_path / "run")
    assert result.exit_code == 2 and "No party brought labels" in paragraph(result)


@pytest.mark.parametrize("command", ["report", "replay", "audit"])
def test_a_folder_that_is_no_run_is_named(command, tmp_path):
    result = call(command, tmp_path)
    assert result.exit_code == 2 and "not a finished run folder" in paragraph(result)


def test_a_missing_job_and_a_wrong_option_end_with_2(tmp_path):
    assert call("run", tmp_path / "absent.toml").exit_code == 2
    assert call("run", "--no-such-option").exit_code == 2
    assert call("reproduce", "no-such-table").exit_code == 2
    both = call("reproduce", "vfb2-table2", "--all")
    assert both.exit_code == 2 and "expected a name or --all; got both" in both.stderr
    none = call("reproduce", "--check", "--kept", tmp_path / "absent")  # said by another process
    assert none.exit_code == 2 and "Kept results are expected in" in none.stderr
    assert call("bench", "no-such-bench").exit_code == 2
    assert call("compare", tmp_path).exit_code == 2


def test_a_check_measures_anew_and_passes_only_where_something_was_compared(tmp_path, monkeypatch):
    from offbeat.lab import catalogue
    from offbeat.lab.reproduce.measure import kept_pieces

    def measured(options):
        ours = kept_pieces(options, "pieces").get("ratio", lambda: ratios.pop())
        row = {"setting": "a", "ours": ours, "published": "", "verdict": ""}
        return catalogue.LabResult([row])

    ratios = [2.0, 2.0, 1.0]
    monkeypatch.setattr(catalogue, "entry_named", lambda *_: catalogue.Entry("x", "x", measured))
    monkeypatch.chdir(tmp_path)
    (kept := tmp_path / "kept").mkdir()
    check = ("reproduce", "x", "--quick", "--check", "--kept", kept)
    assert call("reproduce", "x", "--quick").exit_code == 0, "measures 1.0, and keeps its pieces"
    assert call(*check).exit_code == 1, "nothing is kept to compare with"
    (kept / "x.json").write_text((tmp_path / "out/check/x/rows.json").read_text())
    told = call(*check)
    assert told.exit_code == 0 and "1 beside a kept full run and 0 beside a kept quick run; 0 drifted" in told.stderr
    assert paragraph(told).endswith("As they were kept: 1 of 1.")
    ratios.append(1.5)
    told = call(*check)
    assert told.exit_code == 1 and paragraph(told).endswith("As they were kept: 0 of 1. Not: x.")


def test_an_interruption_ends_all_reproductions_at_once_and_none_begins_after_it(tmp_path):
    """A worker of a pool takes an interruption for the end of its piece: it went on with the next for a minute. Tests
    in the background of a shell are born with interruptions ignored; whoever types the command is not."""
    script = tmp_path / "two.py"
    script.write_text(
        "import signal, threading\n"
        "from offbeat.cli.catalogue import _two_at_a_time\n"
        "def redrawn(name, out):\n"
        "    print(name, flush=True)\n"
        "    threading.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    _two_at_a_time(redrawn, list('abcd'), None)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, script], stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as running:
        assert sorted(running.stdout.readline().strip() for _ in range(2)) == ["a", "b"]
        os.killpg(running.pid, signal.SIGINT)
        rest, said = running.communicate(timeout=120)
    assert rest == "" and running.returncode != 0
    assert "0 of 4 are done; the same command goes on from there." in said


# -- the other commands -----------------------------------------------------------------------------------------------


def test_data_and_doctor_and_the_lists_answer_in_both_forms():
    for arguments, key in (
        (["data"], "sets"),
        (["doctor"], "checks"),
        (["reproduce"], "reproductions"),
        (["bench"], "benchmarks"),
    ):
        assert key in json.loads(call(*arguments, "--json").stdout)
        assert call(*arguments).exit_code in (0, 1)
    narrow = CliRunner().invoke(app, ["data"], env={"COLUMNS": "80"}).stdout.splitlines()
    names = [row["name"] for row in json.loads(call("data", "--json").stdout)["sets"]]
    assert max(map(len, narrow)) <= 80 and {line.split()[0] for line in narrow if line.strip()} >= set(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument 'JOB.toml'. `offbeat run --help` says what it takes."),
        (["run", "job.toml", "--nope"], "No such option: --nope. `offbeat run --help` says what it takes."),
        (["keys", "new"], "Missing argument 'name'. `offbeat keys new --help` says what it takes."),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'? `offbeat --help` says what it takes."),
    ],
)
def test_a_call_that_lacks_something_gets_one_paragraph(arguments, said):
    ended = call(*arguments)
    assert (ended.exit_code, ended.stderr.strip()) == (2, f"offbeat: {said}")


def test_version_and_help():
    assert call("--version").stdout.strip()
    for command in ("demo", "run", "reproduce", "bench", "report", "compare", "replay", "audit", "data", "doctor"):
        assert call(command, "--help").exit_code == 0


def test_the_package_runs_as_a_module_with_the_same_answers_and_codes(tmp_path):
    for arguments in (["--version"], ["run", str(tmp_path / "no.toml")], ["rnu"]):
        ours, command = call(*arguments), [sys.executable, "-m", "offbeat", *arguments]
        module = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert (module.returncode, module.stdout) == (ours.exit_code, ours.stdout)


def test_the_demo_on_generated_data_shows_speedups_and_repeats(tmp_path, monkeypatch):
    import offbeat.lab.demo as demo

    monkeypatch.setattr(demo, "REAL", "no such set")
    monkeypatch.setattr(demo, "find_set", lambda name, where: None)
    monkeypatch.setattr(demo, "STAND_IN", "credit-like@0.02")
    monkeypatch.setattr(demo, "PASSES", 4.0)
    first = json.loads(call("demo", "--json", "--out", tmp_path / "a").stdout)
    assert first.keys() >= RUN_KEYS | {"speedups"}
    assert set(first["speedups"]) == {"vfb2-svrg", "afsaga-vp", "vfb2-sgd"}
    page = (tmp_path / "a" / "report.html").read_text()
    cells = r'<td class="n">([^<]*)</td>' * 4
    shown = {row[0]: row[4] for row in re.findall(rf'<th scope="row">([a-z0-9-]+)</th>{cells}', page)}
    told = {name: f"{value:.2f}x" if value else "not met" for name, value in first["speedups"].items()}
    assert {name: shown[name] for name in told} == told
    again = call("demo", "--out", tmp_path / "b")
    assert f"Digest {first['digest']}" in again.stderr
    assert "Generated data" in again.stderr and str(tmp_path / "b" / "report.html") in again.stdout


def test_an_earlier_run_in_the_same_folder_is_kept(job, tmp_path):
    first = json.loads(call("run", job, "--json", "--out", tmp_path / "run").stdout)
    second = call("run", job, "--seed", 8, "--json", "--out", tmp_path / "run")
    assert "moved to" in second.stderr
    kept = json.loads((tmp_path / "run-before" / "record.json").read_text())
    assert kept["digest"] == first["digest"] != json.loads(second.stdout)["digest"]


def test_a_run_does_not_replace_the_job_that_a_user_wrote(job, tmp_path, monkeypatch):
    written = job.read_text()
    monkeypatch.chdir(tmp_path)
    for out in (".", "", tmp_path):
        assert "the run would replace that file" in paragraph(call("run", "job.toml", "--out", out))
    assert job.read_text() == written
    assert call("run", job, "--out", "run").exit_code == 0
    for file in ("record.json", "report.html"):  # as if it had been broken off
        (tmp_path / "run" / file).unlink()
    assert call("run", "run/job.toml", "--out", "run").exit_code == 0


def test_a_terminal_without_a_letter_gets_its_number(monkeypatch):
    monkeypatch.setattr("offbeat.cli.scoring.score_files", lambda *_: print("Łódź"))
    result = CliRunner(charset="ascii").invoke(app, ["predict", "run", "--data", "bank=a.csv"])
    assert (result.exit_code, result.stdout) == (0, "\\u0141\\xf3d\\u017a\n")


def test_an_output_in_a_folder_that_is_not_there_is_told_by_the_folder(tmp_path, monkeypatch):
    def missing(*_):
        (tmp_path / "nowhere" / "scores.csv").write_text("")

    monkeypatch.setattr("offbeat.cli.scoring.score_files", missing)
    result = call("predict", tmp_path, "--data", "bank=a.csv")
    assert result.exit_code == 2 and f"There is no folder {tmp_path}/nowhere" in paragraph(result)


def test_control_c_ends_with_a_sentence_while_the_command_is_imported(monkeypatch):
    from offbeat.__main__ import main

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.cli.main", interrupted)
    with pytest.raises(SystemExit, match="offbeat: interrupted"):
        main()
