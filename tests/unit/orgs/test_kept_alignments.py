"""Alignments that are kept for the next job over the same tables."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.kept_alignments import KeptAlignments

JOB = OrgJob(name="credit", parties=("bank", "shop", "telecom"), labels_at=("bank",))
ROWS = np.arange(50_000, dtype=np.int64)


def test_runs_that_go_on_side_by_side_keep_theirs_one_after_the_other(tmp_path: Path) -> None:
    kept = KeptAlignments(tmp_path / "private")

    def keep_and_look(number: int) -> str:
        kept.note(f"run {number}", JOB, "table", ROWS, b"coin")
        found = kept.found(JOB, "table")
        assert found is not None
        assert np.array_equal(found["rows"], ROWS)
        return str(found["run"])

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(keep_and_look, range(64)))
    assert set(names) <= {f"run {number}" for number in range(64)}
    assert kept.found(JOB, "another table") is None


def test_a_damaged_one_is_as_none_and_is_made_anew(tmp_path: Path) -> None:
    kept = KeptAlignments(tmp_path / "private")
    kept.note("first", JOB, "table", ROWS, b"coin")
    (arrays,) = (tmp_path / "private/alignments").glob("*.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:100])
    assert kept.found(JOB, "table") is None
    kept.note("second", JOB, "table", ROWS, b"coin")
    found = kept.found(JOB, "table")
    assert found is not None
    assert found["run"] == "second"
