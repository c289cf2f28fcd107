"""A run is its events: real threads, real races, and then the very same run again, bit for bit.

    python examples/replay.py

Two runs on threads differ, because the operating system decides who comes first. But every party's events were logged
in the order it handled them, and fed again they lead to the same state, checked by a digest.
"""

import tempfile
from pathlib import Path

from offbeat import load_data, run_experiment
from offbeat.jobs.reading import job_from
from offbeat.run.folder import write_job, write_result
from offbeat.run.replay import replay_run


def main() -> None:
    job = job_from(
        {
            "algorithm": "afsaga-vp",
            "passes": 5,
            "penalty": 1e-2,
            "data": {"set": "known-logistic", "parties": ["ana", "bo", "cy"]},
            "runtime": {"kind": "threads"},
        }
    )
    data = load_data(job)
    with tempfile.TemporaryDirectory() as place:
        for name in ("first", "second"):
            folder = Path(place) / name
            write_job(job, folder)
            result = run_experiment(data, job, folder=folder)
            write_result(result, folder)
            print(f"{name} run: objective {result.record.objective!r}")
            print("   " + replay_run(folder)["sentence"])


if __name__ == "__main__":
    main()
