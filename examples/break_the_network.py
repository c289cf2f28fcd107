"""Break the network on purpose: the same job under every fault, and the same certified answer.

    python examples/break_the_network.py

Faults hold for the first virtual seconds and then heal. What was lost is sent again, what came twice is used once, and
a party that crashed goes on from its log.
"""

from offbeat import load_data, run_experiment
from offbeat.jobs.reading import job_from

FAULTS = ("calm", "delay", "loss", "duplicate", "reorder", "partition", "crash", "swarm")


def main() -> None:
    print(f"{'fault':>10}  {'verdict':>8}  {'seconds':>8}  {'objective':>10}  {'gap':>8}")
    for fault in FAULTS:
        job = job_from(
            {
                "algorithm": "vfb2-saga",
                "target": 1e-6,
                "penalty": 1e-2,
                "data": {"set": "known-logistic", "parties": ["ana", "bo", "cy"]},
                "runtime": {"faults": fault, "faults_until_s": 0.5},
            }
        )
        record = run_experiment(load_data(job), job).record
        gap = record.certificate.duality_gap
        end = f"{record.verdict:>8}  {record.seconds:>8.2f}  {record.objective:>10.7f}"
        print(f"{fault:>10}  {end}  {gap:>8.1e}")


if __name__ == "__main__":
    main()
