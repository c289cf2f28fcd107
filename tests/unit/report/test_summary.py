"""The page of text: its order, its exact sentences, and that nothing in a record can disturb it."""

from report_samples import PARTIES, hostile_record, plain_text, sample_party, sample_record

from offbeat.metrics.record import Certificate
from offbeat.report.summary import PARTIES_LISTED, summary
from offbeat.report.wording import SEEDED, certificate, key_figures, losses, privacy_rows, promised, verdict


def test_the_verdict_comes_first_then_disclosure_then_warnings_then_the_result():
    text = plain_text(summary(sample_record(), run="runs/credit"))
    assert text.splitlines()[0] == "Reached the target  afsvrg-vp with 4 parties, simulator, seed 7"
    order = ["Disclosed, and to whom", "Warnings", "Certificate", "Result", "Parties", "Data and run"]
    places = [text.index(f"\n{heading}\n") for heading in order]
    assert places == sorted(places)


def test_every_warning_and_every_disclosure_is_there():
    record = sample_record()
    text = " ".join(plain_text(summary(record), width=200).split())
    for warning in record.warnings:
        assert warning in text
    for reveal in record.reveals:
        assert reveal.reveals in text


def test_what_is_promised_is_no_warning():
    lines = plain_text(summary(sample_record(promises=("Rows are safe.",)))).splitlines()
    place = lines.index("What is promised")
    assert lines[place + 1 : place + 4] == ["  Rows are safe.", "", "Warnings"]
    assert "What is promised" not in plain_text(summary(sample_record()))


def test_a_seed_makes_an_exception_of_whoever_knows_it():
    stated = {"bank": {"releases": 1, "epsilon": 2.0, "seeded": True}}
    assert promised(sample_record(promises=("Rows are safe.",), privacy=stated)) == ["Rows are safe.", SEEDED]
    assert promised(sample_record(privacy=stated)) == []


def test_the_table_of_parties_is_exact():
    lines = plain_text(summary(sample_record())).splitlines()
    assert "  party     updates     lag   lag max      sent   compute   network     wait" in lines
    assert "  shop        1,200    3.02        10   7.87 MB    41.2 s     5.9 s   1.15 s" in lines
    assert "  bank retried 1; shop dropped 3, retried 1; telecom retried 1; insurer retried 1." in lines


def test_the_certificate_is_called_a_bound():
    assert certificate(sample_record()) == (
        "The objective is within 9.1e-07 of the best possible: an upper bound, computed by secure sums without pooling "
        "data; the true distance is usually smaller. Against a known optimum it is within 2.4e-08."
    )


def test_without_a_gap_no_bound_is_claimed():
    nonconvex = sample_record(certificate=Certificate(gradient_norm=3e-4), suboptimality=None)
    assert "The gradient's norm is 0.0003. This problem has no bound" in certificate(nonconvex)
    assert "nothing is proved" in certificate(sample_record(certificate=Certificate()))
    assert ("Gradient norm", "0.0003") in key_figures(nonconvex)


def test_verdicts_have_a_headline_and_a_mood():
    assert verdict(sample_record(verdict="diverged")) == ("Diverged", "bad")
    assert verdict(sample_record(verdict="budget")) == ("Stopped at the privacy budget", "caution")
    assert verdict(sample_record(verdict="something-new")) == ("Something-new", "caution")


def test_key_figures_name_the_clock():
    assert ("Virtual time", "48.2 s") in key_figures(sample_record())
    assert ("Wall-clock time", "48.2 s") in key_figures(sample_record(clock="wall"))


def test_no_losses_no_sentence():
    quiet = sample_record(parties={})
    assert losses(quiet) == []


def test_hostile_names_are_printed_as_they_are():
    text = plain_text(summary(hostile_record()), width=200)
    assert '<script>alert("x")</script>' in text
    marked = plain_text(summary(sample_record(warnings=("[bold red]not a style[/]",))))
    assert "[bold red]not a style[/]" in marked


def test_a_thousand_parties_stay_on_the_page():
    edges = {f"edge-{number}": sample_party("bank") for number in range(1000)}
    text = plain_text(summary(sample_record(parties=edges)))
    assert f"and {1000 - PARTIES_LISTED} more, in record.json" in text
    assert len(text.splitlines()) < 90


def test_the_privacy_ledger_is_printed_and_missing_privacy_is_called_so():
    statements = {
        "edge-1": {"releases": 400, "epsilon": 2.126, "delta": 1e-5, "budget_epsilon": 3.0, "adjacency": "replace-one"},
        "edge-2": {"releases": 400, "epsilon": None, "warning": "not differentially private"},
        "edge-3": {"releases": 7},
    }
    assert privacy_rows(sample_record(privacy=statements)) == [
        ("edge-1", "400", "2.13", "1e-05", "3", "replace-one", ""),
        ("edge-2", "400", "none", "–", "–", "–", "not differentially private"),
        ("edge-3", "7", "none", "–", "–", "–", "no epsilon was accounted for"),
    ]
    text = plain_text(summary(sample_record(privacy=statements)))
    assert "  edge-1        400      2.13   1e-05        3   replace-one" in text.splitlines()
    assert "Privacy ledger" not in plain_text(summary(sample_record()))


def test_nothing_recorded_is_said():
    bare = sample_record(reveals=(), warnings=(), parties={}, metrics={}, objective=None)
    text = plain_text(summary(bare))
    assert "The record lists no messages, so it cannot say what was disclosed." in " ".join(text.split())
    assert "Warnings" not in text
    assert set(PARTIES) & set(text.split()) == set()


def test_a_certificate_above_the_objective_says_no_more_than_it():
    early = sample_record(objective=0.1, certificate=Certificate(gradient_norm=0.5, duality_gap=2.1), options={})
    assert early.bound == 0.1
    assert "no objective is below 0" in certificate(early) and "2.1" in certificate(early)
    answered = sample_record(objective=0.1, certificate=Certificate(duality_gap=2.1), options={"label_dp_epsilon": 1.0})
    assert answered.bound == 2.1  # de-biased losses can be negative
