"""`make attacks`: every attack is run; one line says what it is, what it got before, and what it gets now.

The lines stand here, the attacks in the tests beside this file. A line holds when all its tests pass, is broken when
one fails, and was not tried when one was skipped (without a broker, for example). A test that stands in no line fails.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PLACE = Path(__file__).parent
HOLDS, BROKEN, SKIPPED, WORKS = "holds", "BROKEN", "not tried", "works"


class Attack(NamedTuple):
    name: str
    before: str
    now: str
    tests: tuple[str, ...]  # beginnings of the names of tests
    open: bool = False  # it still works: the documents say so, and its test shows how


KNOWN = (
    Attack(
        "differing questions to parties",
        "one party's own share, error 5e-13",
        "uniform words",
        ("test_asked_alike", "test_another_", "test_two_askers", "test_a_survey_is_cut", "test_two_trees_asked"),
    ),
    Attack(
        "probes of one's own choice",
        "a Gram matrix, so features up to rotation",
        "one probe, of everybody's coin",
        ("test_probes_",),
    ),
    Attack(
        "a question again",
        "the difference of two shares",
        "a refusal with the asker's name",
        (
            "test_a_question_",
            "test_a_certificate_is_asked",
            "test_rounds_are",
            "test_derivatives_of_what",
            "test_a_dominator_cannot",
            "test_masked_words_of_a_leaf",
        ),
    ),
    Attack(
        "one row again and again",
        "500 answers at a cap of 3, counted 0",
        "the cap, counted before each answer",
        (
            "test_a_row_is_answered",
            "test_a_run_that_fails_has",
            "test_runs_side_by_side",
            "test_a_party_killed_between",
            "test_the_scores_of_all_classes",
        ),
    ),
    Attack(
        "a passive party asks",
        "any sum",
        "a refusal: not its to ask",
        ("test_every_kind_is_asked", "test_there_are_no"),
    ),
    Attack(
        "a smaller roster",
        "the share of whoever was left out, though on_loss is wait",
        "a refusal; by policy, no second",
        ("test_a_smaller_roster", "test_the_share_of_whoever", "test_surveys_of_another_epoch"),
    ),
    Attack(
        "a roster with a name twice",
        "an unmasked share",
        "a refusal, in training and in prediction",
        ("test_a_roster_",),
    ),
    Attack(
        "an id that one party has",
        "that party's score; who has which id",
        "a random word, the same for all",
        ("test_an_id_that_somebody", "test_parties_that_are_asked_for_different"),
    ),
    Attack("200,000 ids in a question for one", "answers", "a refusal", ("test_a_prediction_asks",)),
    Attack(
        "one person as the test set",
        "its true label",
        "no job chooses test rows; metrics are made of answers",
        ("test_no_job_chooses", "test_metrics_under"),
    ),
    Attack(
        "labels of two columns",
        "XOR of answers = XOR of labels, charged 0",
        "independent draws, charged",
        ("test_answers_of_two",),
    ),
    Attack(
        "delta 0.999999 in the job",
        "no noise within a budget of 1",
        "a refusal: the delta is the policy's",
        ("test_a_delta_of",),
    ),
    Attack(
        "last bits of an upload",
        "20 of 20 tables told apart at epsilon 0.1",
        "chance",
        ("test_one_upload_does", "test_the_lowest_bits", "test_rounding_an_upload"),
    ),
    Attack(
        "last bits, no row known",
        "touched columns, precision 1.000",
        "precision at the base rate",
        ("test_an_upload_does_not_tell",),
    ),
    Attack(
        "an accountant of one's own", "agreed", "agrees", ("test_the_accountant", "test_full_batches", "test_pure_rel")
    ),
    Attack(
        "a leader with a dictionary",
        "429 of 429 ids, and a dictated intersection",
        "as many as it said, once",
        ("test_a_leader_", "test_blinded_ids", "test_a_member_plays", "test_nothing_but_ready"),
    ),
    Attack(
        "an impostor listens",
        "proposals with the salt",
        "a refusal: the key is not the pinned one",
        ("test_an_impostor", "test_a_member_that_signs", "test_names_that_are_one"),
    ),
    Attack("80 polls", "everybody is shut out", "one is held, 79 are refused", ("test_polls_of_one",)),
    Attack("a range of 2^25 rows", "512 MiB for 40 bytes", "a refusal, less than 2 MiB", ("test_a_small_question",)),
    Attack(
        "names with control characters",
        "a daemon blocked; escape codes in logs",
        "a refusal",
        ("test_proposals_with", "test_proposals_that"),
    ),
    Attack(
        "an old run's name",
        "the same masks, budget charged 0",
        "a refusal: names are used once",
        ("test_a_run_that_was_deleted", "test_a_known_name"),
    ),
    Attack(
        "another edge's client id",
        "its place on the line, the cloud's too",
        "ids are secrets of the key",
        ("test_an_edge_does_not_take", "test_an_id_is_its"),
    ),
    Attack("bytes in a report", "the state of a run wedged", "a refusal", ("test_a_report_cannot",)),
    Attack(
        "an empty labels.secret",
        "every random answer undone",
        "an error that names the file",
        ("test_an_empty_secret",),
    ),
)

OWN = (
    Attack("test sets that differ by one row", "one label", "sets of different sizes are drawn anew",
           ("test_two_test_sets",)),
    Attack("a corrected label", "which label it was, with certainty", "all answers are new draws, charged",
           ("test_a_label_that_changes",)),
    Attack("a prediction's name twice", "the second one uncounted", "counted", ("test_a_prediction_whose",)),
    Attack("the same rows under a second roster", "uncounted", "counted as a second sum",
           ("test_the_same_question_under",)),
    Attack("one row twice in a question", "not tried", "counted twice",
           ("test_a_row_named_twice", "test_the_scores_of_all")),
    Attack("two predictions at once", "both within one cap", "one cap", ("test_two_predictions",)),
    Attack("changed columns, private model", "a second noisy score, uncharged", "the first score",
           ("test_a_record_whose",)),
    Attack("the label holder's own rows", "derivatives of them uncounted", "counted", ("test_derivatives_tell",)),
    Attack("two_party_insecure and a roster of two", "an unmasked share", "each owner's parties_least stands",
           ("test_a_job_that_accepts",)),
    Attack("back to an old roster", "not tried", "nothing: epochs only rise", ("test_a_roster_of_an_old",)),
    Attack("many small jobs", "sums of epsilons under many deltas", "one account at one delta",
           ("test_many_small_jobs", "test_a_run_that_is_killed_and")),
    Attack("a new state folder for an edge", "the whole budget again", "a refusal: the account is the site's",
           ("test_a_second_run_in_a_new", "test_a_run_spends_no_more")),
    Attack("a ledger set back", "rows begin anew", "an error", ("test_a_ledger_that_was",)),
    Attack("letters of others", "a forged answer taken", "refused", ("test_a_peer_answers",)),
    Attack("runs of others", "not tried", "the same sentence", ("test_a_peer_learns",)),
    Attack("other sizes than committed", "taken", "refused", ("test_an_initiator_changes",)),
    Attack("a poisoned model or clip", "not tried", "clipped exactly, or refused",
           ("test_no_model_and", "test_no_number_format", "test_a_clip_beyond", "test_the_grid_is", "test_zero_columns",
            "test_an_adaptive_clips")),
    Attack("an old state and a lying server", "not tried", "other noise, or the same bytes",
           ("test_a_retry_and", "test_the_same_number_with", "test_a_client_of_an_old", "test_a_row_named_often",
            "test_an_answer_of", "test_scores_of_a_private", "test_an_embedding_does", "test_a_sparse_row",
            "test_noise_", "test_a_client_uses", "test_a_public_step", "test_edges_of_the_same",
            "test_the_private_mode")),
    Attack("different derivatives to parties", "one party's own share", "noise from then on",
           ("test_told_alike", "test_a_label_holder_that_lies", "test_one_bit_of", "test_a_lie_cannot",
            "test_words_left_of", "test_a_question_is_bound")),
    Attack("different steps, paces or leaps", "not tried", "noise from then on",
           ("test_another_step_size", "test_another_pace")),
    Attack("whoever runs the broker signs as a site", "every site's key", "a site's own key, which only it has",
           ("test_a_site_makes_its_own_key",)),
    Attack("another table, or none, for one party", "not tried", "a refusal",
           ("test_another_table", "test_a_table_that_is_withheld", "test_a_party_is_not_left_without")),
    Attack("lies in training, read in predictions", "not tried", "masks of predictions do not cancel",
           ("test_a_model_remembers_what_its", "test_a_model_remembers_the_same")),
    Attack("lies, and a chair that vanishes", "a party's part of a score", "masks of predictions do not cancel",
           ("test_a_model_remembers_what_a_chair",)),
    Attack("an honest label holder as a tool", "not tried", "the chair alone asks",
           ("test_an_honest_label",)),
    Attack("a party that has not moved yet", "the other's share, in honest runs too", "it answers after its step",
           ("test_whoever_has_not_moved",)),
    Attack("a proposal that names code", "not tried", "a refusal before anything is imported",
           ("test_a_proposal_never_has_code",)),
    Attack("features from the products she saw", "all of them, error 7e-9, from some known rows",
           "with product_epsilon: worse than the mean", ("test_exact_products_give", "test_private_products_do_not")),
    Attack("parties that leave their noise out", "more than epsilon says, if nobody counts on it",
           "with products.colluders: no more than it says", ("test_helpers_that_leave",)),
    Attack("a party rewrites its log after the run", "nothing shows it", "its own signatures name it",
           ("test_a_log_that_is_rewritten",)),
    Attack("two receipts of the same messages", "the audit named the honest sender", "one of them is signed",
           ("test_a_receiver_that_has_two", "test_an_older_receipt")),
    Attack("scores by a model from before the budget", "un-noised sums, charged to nobody", "a refusal",
           ("test_a_budget_stops",)),
    Attack("brackets and digits in a proposal", "an unforeseen error, 1,000 lines of log", "a wrong job",
           ("test_a_job_that_no_reader",)),
    Attack("a message again with other bytes", "not looked at", "the run ends, and the sender is named",
           ("test_a_message_sent_again",)),
    Attack("another's key as one's own, in scoring", "a party's score, with a friend of the asker", "uniform words",
           ("test_a_friend_of",)),
    Attack("a guessed id beyond its cap", "whether a party has it, uncounted", "the same as where it is lacking",
           ("test_a_cap_does_not",)),
    Attack("runs that only wait", "everybody else shut out", "room for others",
           ("test_runs_of_one",)),
    Attack("escape codes in a refusal or a goodbye", "the owner's screen and log", "question marks",
           ("test_a_peers_words",)),
    Attack("a share driven out of its range", "the share, to six digits, in the alarm", "that it is out of range",
           ("test_a_share_that_leaves",)),
    Attack("a column that cannot be prepared", "a cell and names of columns, in the error", "a code and a number",
           ("test_a_mistake_in",)),
    Attack("uploads beyond a caller's quota", "the disk", "no more than the quota", ("test_an_upload_takes",)),
    Attack("a network of 10^18 weights", "a daemon's memory", "a refusal", ("test_a_proposal_asks",)),
    Attack("a start with another run's model", "others' models; a part; lies forgotten", "a refusal; or uniform words",
           ("test_a_job_begins_with",)),
    Attack("everybody under labels_at", "labels, though labels_for names nobody", "a refusal by the policy",
           ("test_whoever_says",)),
    Attack("answers at an epsilon of 100", "labels, though labels_for names nobody", "a refusal without a budget",
           ("test_answers_that_keep",)),
    Attack("late at the zero start of a new roster", "another's share, error 4.5e-13", "a refusal",
           ("test_nobody_is_late_at",)),
    Attack("a certificate of survey 0", "a survey without tables; then another's share, error 4.5e-13", "a refusal",
           ("test_a_certificate_of_no",)),
    Attack("the order of blinded ids", "93 of 1,050 people, one by one", "nothing: points are in no order of ids",
           ("test_the_order_of_points",)),
    Attack("one mark for all ids of the leader", "all 300 of its ids, for 20 that were brought", "a refusal",
           ("test_one_id_of_a_member",)),
    Attack("exchanged marks", "tokens of 18 ids that the member lacks", "its own points",
           ("test_a_member_that_exchanges",)),
    Attack("weights that follow from labels", "every label that answers hide", "a refusal",
           ("test_weights_of_rows", "test_balanced_classes")),
    Attack("a lost labels.secret", "labels answered anew, charged to nobody", "an error", ("test_a_lost_secret",)),
    Attack("scores by a model from before the bound", "exact products", "a refusal", ("test_who_wants_private",)),
    Attack("a link or session cut out of a folder", "the audit says that it holds", "CHANGED, with the owner's name",
           ("test_a_folder_from_which",)),
    Attack("names that speak for the auditor", "a forged verdict on its screen", "a refusal; question marks",
           ("test_no_name_in_a_folder",)),
    Attack("status words at the broker", "the memory of cloud and edges", "one word of each peer waits",
           ("test_status_words",)),
    Attack("nonsense of one edge", "the end of the run, for all edges", "passed over, counted", ("test_nonsense_of",)),
    Attack("an edge that asks and takes nothing", "512 MiB; then the end of the run", "it is lost; others are served",
           ("test_an_edge_that_asks",)),
    Attack("an edge that holds what was never sent", "the end of the run at every restart of the cloud", "it is lost",
           ("test_an_edge_that_holds",)),
    Attack("a training taken up after its end", "answers beyond the cap, uncounted", "counted beside the first",
           ("test_a_training_that_is_taken_up",)),
    Attack("budgets that nobody can compute", "an unforeseen error, with its log", "a wrong job",
           ("test_a_budget_that_nobody",)),
    Attack("a link that beats without end", "a core of every party", "a wrong job", ("test_a_job_that_has_links",)),
    Attack("a hundred batches of one caller", "no batch for anybody else, for a day", "25 of one are kept",
           ("test_batches_of_one_caller",)),
    Attack("rows of a batch that nobody reads", "all files that the service can open", "eight at a time",
           ("test_one_caller_reads",)),
    Attack("whom two members share", "all of them, for a leader that brought none", "marks that cannot be compared",
           ("test_a_leader_does_not_learn_whom", "test_parts_of_a_joined")),
    Attack("a run that fails where labels are alike", "one label, uncharged", "classes of the whole column",
           ("test_a_run_that_fails_does",)),
    Attack("long lines in a batch", "the disk, at one row of quota each", "a refusal", ("test_a_long_line",)),
    Attack("an owner's error, told to a caller", "a cell, its column and row", "a code and a number",
           ("test_a_caller_is_told",)),
    Attack("questions without end", "memory for each, for ever", "none", ("test_questions_without",)),
    Attack("an account set back", "the budget again", "an error", ("test_an_account_that",)),
    Attack("an edge's account set back or damaged", "the budget again", "an error that names the file",
           ("test_an_older_copy_of_the_account", "test_a_damaged_account")),
    Attack("the word that one need not be waited for", "the other's share, error 4.4e-13",
           "between organisations both answer after the step", ("test_in_step_nobody",)),
    Attack("a block out of range goes back alone", "the other's share of every row, error 0", "the run ends",
           ("test_a_block_that_leaves",)),
    Attack("a burst, between organisations", "the other's share, with SGD", "nothing is dropped",
           ("test_in_step_a_burst",)),
    Attack("questions to the idle and the busy", "what one alone has moved", "in step, both have done the same",
           ("test_in_step_a_question", "test_in_step_what_is_told", "test_in_step_every_answer")),
    Attack("derivatives and a mark right behind them", "one block before its step", "the mark waits, in rounds too",
           ("test_in_rounds_a_mark",)),
    Attack("one party alone is late", "its move's products", "between organisations nobody is late",
           ("test_between_organisations_nobody",)),
    Attack("a page whose name resolves to here", "runs, peers, callers and budgets, by /metrics", "not found",
           ("test_a_page_from_elsewhere",)),
    Attack("empty lines without end", "a core of the scoring service", "a refusal", ("test_empty_lines",)),
    Attack("calls that never end", "all connections of the scoring service", "64 of one caller, for 30 s",
           ("test_calls_that_never",)),
    Attack("a folder that names a database", "any variable of its reader's environment, as a password",
           "nothing is asked without --connect", ("test_a_folder_that_names_a_database",)),
    Attack("what parties are worth, of a folder sent", "the import of a module of the sender's", "a refusal",
           ("test_what_parties_are_worth",)),
    Attack("a home that allows itself all", "the same, and the environment, by offbeat audit",
           "nothing without --method and --connect", ("test_a_home_from_elsewhere",)),
    Attack("formulas in ids, classes and categories", "worked out by the spreadsheet that opens the file", "text",
           ("test_text_in_a_table",)),
    Attack("escape codes in a folder that is sent", "its reader's screen", "question marks",
           ("test_a_folder_that_is_sent_moves",)),
    Attack("letters that are not seen, in a refusal", "two that look the same", "question marks",
           ("test_a_peers_words_hold",)),
    Attack("two label holders, in rounds", "a third one's share, exact", "uniform words; models are bound too",
           ("test_in_turn_",)),
    Attack("markup in names of columns and classes", "not tried", "text", ("test_what_stands_in_tables",)),
    Attack("one hurried, not waited for, or late", "not tried", "its share in one place: see the threat model",
           ("test_a_party_that_is_hurried", "test_a_party_that_is_not", "test_who_moves_alone", "test_who_alone_is"),
           open=True),
    Attack("two label holders, without rounds", "not tried", "a third one's share: see the threat model",
           ("test_two_label_holders",), open=True),
    Attack("wrong shares to one worker (AFSGD-VP)", "not tried", "its block stays: see the threat model",
           ("test_a_worker_that_gives",), open=True),
    Attack("different derivatives, two-tree", "not tried", "the same: see the threat model",
           ("test_the_tree_of_masks",), open=True),
)  # fmt: skip


class Outcomes:
    """A plugin of pytest: how each test ended."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.when == "call" or report.outcome != "passed":
            self.of.setdefault(name, set()).add(report.outcome)


def state_of(attack: Attack, outcomes: dict[str, set[str]]) -> str:
    mine = [outcomes[name] for name in outcomes if name.startswith(attack.tests)]
    tried = all(any(name.startswith(test) for name in outcomes) for test in attack.tests)
    if not tried or any("failed" in found for found in mine):
        return BROKEN
    if any("skipped" in found for found in mine):
        return SKIPPED
    return WORKS if attack.open else HOLDS


def main() -> int:
    seen = Outcomes()
    files = [*sorted(PLACE.glob("test_*.py")), PLACE.parent / "unit" / "orgs" / "test_site_account.py"]
    code = pytest.main(
        ["--import-mode=importlib", "-q", "--no-header", "-p", "no:cacheprovider", *map(str, files)], [seen]
    )
    ended = 0
    for title, attacks in (("Attacks that once worked", KNOWN), ("Attacks of our own", OWN)):
        print(f"\n{title}\n  {'':9}  {'attack':39} | {'before':62} | now")
        for attack in attacks:
            state = state_of(attack, seen.of)
            ended |= state == BROKEN
            print(f"  {state:9}  {attack.name:39} | {attack.before:62} | {attack.now}")
    listed = tuple(test for attack in (*KNOWN, *OWN) for test in attack.tests)
    left = sorted(name for name in seen.of if not name.startswith(listed))
    if left:
        print(f"\nIn no line: {', '.join(left)}.")
    return int(bool(code) or bool(ended) or bool(left))


if __name__ == "__main__":
    sys.exit(main())
