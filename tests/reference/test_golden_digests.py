"""A change of the code's shape changes no result: every method gives what `golden_digests.json` says it gave."""

import golden_digests
import pytest

from offbeat.jobs.methods import METHODS

GOLDEN = golden_digests.read()
SAME_BITS = golden_digests.bits_of() == GOLDEN["bits_of"]
RUNS = [(case, seed) for case in golden_digests.CASES for seed in golden_digests.SEEDS]


@pytest.mark.parametrize(("case", "seed"), RUNS)
def test_a_run_gives_what_it_gave(case, seed):
    if "networks" in case:
        pytest.importorskip("torch", reason="the extra `deep` is not installed")
    expected, came = GOLDEN["runs"][f"{case} (seed {seed})"], golden_digests.came_of(case, seed)
    assert came["counts"] == expected["counts"]
    assert came["objective"] == pytest.approx(expected["objective"], rel=1e-9)
    if SAME_BITS:
        assert came["digest"] == expected["digest"]


def test_every_method_has_a_run_in_the_file():
    assert {change["algorithm"] for change in golden_digests.CASES.values()} == set(METHODS)
    assert set(GOLDEN["runs"]) == {f"{case} (seed {seed})" for case, seed in RUNS}


@pytest.mark.skipif(SAME_BITS, reason="this machine gives the bits of the file: they were compared")
def test_bits_are_compared_where_they_were_made():
    pytest.skip(f"digests were made with {GOLDEN['bits_of']}; here is {golden_digests.bits_of()}: only counts compared")
