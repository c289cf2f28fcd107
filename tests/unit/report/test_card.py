"""The model card says what the record says, and what the record does not show."""

from report_samples import hostile_record, sample_record

from offbeat.metrics.held_out import HeldOut, Worth
from offbeat.metrics.record import Certificate, DataRecord
from offbeat.report.card import CARD_FILE, card_text
from offbeat.report.page import write_report

TITLES = ("Data", "Model", "Certificate", "Scores on held-out rows", "Privacy", "What it is not for")


def test_a_card_has_its_parts_in_order_and_the_records_numbers(tmp_path):
    write_report(sample_record(), tmp_path)
    text = (tmp_path / CARD_FILE).read_text()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(TITLES)
    for told in ("24,000 rows to train, 6,000 held out", "bank 23, shop 23", "within 9.1e-07 of the best possible",
                 "Test AUC: 0.7731", "penalty = 0.0001", "Masks are seeded", "MaskedShare, sent 55,236 times",
                 "35 duplicate rows dropped", "No epsilon"):  # fmt: skip
        assert told in text


def test_what_the_record_does_not_show_is_said():
    text = card_text(sample_record(certificate=Certificate(), data=DataRecord(rows=10), metrics={}))
    assert "none were held out" in text and "no bound on the distance" in text and "None were computed" in text
    assert "no bound on the distance to that" not in card_text(sample_record())
    assert "data was generated" in card_text(sample_record(warnings=("The data is generated, not real.",)))
    private = {"bank": {"releases": 1, "epsilon": 2.0, "delta": 0.0, "adjacency": "replace-one label"}}
    told = card_text(sample_record(privacy=private))
    assert "party: bank; releases: 1; epsilon: 2" in told and "No epsilon" not in told


def test_what_is_promised_has_a_place_of_its_own():
    text = card_text(sample_record(promises=("Rows are safe.",)))
    assert "## What is promised\n\n- Rows are safe.\n\n## Privacy" in text and text.count("Rows are safe.") == 1


def test_held_out_rows_and_worth_are_on_it():
    seen = HeldOut(rows=40, ks=0.25, confusion=((15, 5), (8, 12)))
    worth = Worth("auc", 40, 0.7, 0.5, {"bank": 0.2}, {"bank": 0.1}, {})
    text = card_text(sample_record(held_out=seen, worth=worth, data=DataRecord(classes=("no", "yes"), test_rows=40)))
    assert "KS: 0.25" in text and "Of 20 rows of no, 15 were taken for it." in text and "bank +0.2000" in text


def test_names_from_tables_stay_text():
    text = card_text(hostile_record())
    assert "<script>" not in text and "\\<script\\>" in text
