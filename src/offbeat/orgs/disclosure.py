"""Who will learn what from a job, in sentences: said by `offbeat job submit` before anything is sent."""

from offbeat.families.statements import about_sums
from offbeat.jobs.organisations import OrgJob
from offbeat.names import counted
from offbeat.orgs.policy import told_labels


def disclosures(job: OrgJob) -> list[str]:
    """One sentence for each thing that leaves a party."""
    columns = _about_products(job) if job.private_products else _about_columns(job)
    sums = [] if job.embeds else about_sums(len(job.parties), job.method.secure_sum)
    return [*_about_ids(job), *_about_labels(job), *columns, *_about_tests(job), *sums]


def _about_ids(job: OrgJob) -> list[str]:
    if job.rows.align == "import":
        return ["All parties learn whether their imported orders of rows are the same."]
    leader = job.labels_at[0]
    return [
        "All parties learn how many ids each has, and which of their own ids all have.",
        f"'{leader}' leads the matching: it also learns which of its ids are shared by the parties asked before the "
        "last one.",
    ]


def _about_labels(job: OrgJob) -> list[str]:
    holders = _listed(job.labels_at)
    if job.method.label_dp_epsilon is not None:
        epsilon = f"{job.method.label_dp_epsilon:g}"
        return [f"The others learn random answers for the labels of {holders} ({epsilon}-label-privacy)."]
    told = [
        f"The labels of '{holder}' for all training rows are told to {_listed(told_labels(job, holder))}, by the "
        "derivatives."
        for holder in job.labels_at
    ]
    beside = f"Weights or exposures of rows, if the party.toml of {holders} names any, are told to them too."
    return told if job.embeds else [*told, beside]


def _about_columns(job: OrgJob) -> list[str]:
    if not job.embeds:
        several = "" if job.model.classes is None else f" (one for each of {job.model.classes} classes)"
        holders = _listed(job.labels_at)
        apart = f" Nobody waits for a slow party (in_step = false), so {holders} can tell parties' shares apart."
        return [
            f"The label holder ({holders}) learns the sum over all parties of each training row's "
            f"product with the model{several}, once for each time the row is used; enough of them can give "
            f"columns away up to a rotation.{'' if job.network.in_step else apart}"
        ]
    noise = (
        "unmasked and without noise"
        if job.embedding.epsilon is None
        else f"clipped and noisy: ({job.embedding.epsilon:g}, {job.embedding.delta:g})-differentially private"
    )
    return [f"'{job.labels_at[0]}' learns one number of every row from every party, many times over, {noise}."]


def _about_products(job: OrgJob) -> list[str]:
    method, colluders = job.method, job.products.colluders
    helpers = f" together with {counted(colluders, 'other')}" if colluders else ""
    return [
        f"'{job.labels_at[0]}' learns a noisy total over the other parties of each row's product, "
        f"{job.products.rounds} times at most, and the others learn derivatives of it: for the features of one row at "
        f"one party that is ({method.product_epsilon:g}, {method.product_delta:g})-differentially private against any "
        f"one party{helpers}, over the whole run, as long as all the others add their noise.",
        "Predictions by the model have no noise and are outside of that: parties whose policy has epsilon or "
        "product_epsilon_most give none.",
    ]


def _about_tests(job: OrgJob) -> list[str]:
    if not job.rows.test_fraction:
        return []
    learner = job.labels_at[0]
    return [f"'{learner}' learns the joint score of every test row ({job.rows.test_fraction:.0%} of the common rows)."]


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(f"'{name}'" for name in names)
