"""What the owner of a party allows. A job outside it is refused with the reason, before any data is touched."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import msgspec.inspect

from offbeat.errors import Refused
from offbeat.jobs.elsewhere import is_elsewhere
from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.budget import LABELS, Charge, charges_of, overspent
from offbeat.privacy.accountant import epsilon
from offbeat.privacy.products import release_within
from offbeat.settings import FINITE, Positive, Settings, Unlimited

Names = tuple[str, ...]


def says(text: str, **limits: Any) -> msgspec.Meta:
    """What a key means: as the comment in party.toml, and as the question in the console's form."""
    return msgspec.Meta(description=text, **limits)


class Policy(Settings, frozen=True):
    """An empty list of names means: nobody; the word "any" in it means: everyone on the roster. What gives something
    of this party away is nobody's until the owner names somebody."""

    jobs: Annotated[Names, says("names of jobs this party takes part in")] = ()
    initiators: Annotated[Names, says("who else may propose one")] = ()
    approve: Annotated[
        Literal["by policy", "by hand"], says('"by hand": what the policy allows waits until its owner accepts it')
    ] = "by policy"
    runs_at_once: Annotated[int, says("runs it works on at a time; further ones wait in a queue", ge=1, le=1000)] = 8
    runs_waiting: Annotated[int, says("how many may wait there; further proposals are refused", ge=0, le=1000)] = 16
    peers: Annotated[Names, says("with whom to work")] = ("any",)
    parties_least: Annotated[int, says("fewest parties of a job: with two no sum can hide a share", ge=2)] = 3
    leaders: Annotated[
        Names, says("who else may lead the matching of ids: it learns which of its ids this party has")
    ] = ()
    methods: Annotated[
        Names, says('algorithms; "vafl" sends unmasked embeddings: add it knowingly; module:object names other code')
    ] = ("vfb2-svrg", "vfb2-saga", "vfb2-sgd")
    secure_sum: Annotated[
        tuple[Literal["pairwise", "two-tree", "tree"], ...],
        says('how sums are hidden; "two-tree" is not bound to what was told: add it knowingly'),
    ] = ("pairwise",)
    in_step: Annotated[
        bool,
        says(
            "VFB2: every share is of all that was told; else nobody waits for a slow party, and totals tell who moved"
        ),
    ] = True
    passes_most: Annotated[Positive, says("most passes of a job")] = 1000.0
    on_loss: Annotated[
        tuple[Literal["wait", "stop", "continue"], ...],
        says('when a party is lost; after "continue" the sums of two rosters can tell the share of who was left out'),
    ] = ("wait", "stop")

    labels_for: Annotated[Names, says("who may learn this party's labels, which the derivatives of a job tell")] = ()
    derivatives: Annotated[bool, says("whether it takes derivatives, which tell it the others' labels")] = True
    columns_never: Annotated[Names, says("columns that must not be used, whatever the data section lists")] = ()
    rows_least: Annotated[int, says("fewer common training rows are refused", ge=1)] = 100
    test_rows_least: Annotated[
        int, says("and fewer test rows, if there are any: metrics over few rows tell their labels", ge=1)
    ] = 25
    ids_ratio_most: Annotated[
        float, says("a party that brings this many times the ids of this one is refused", ge=1, le=FINITE)
    ] = 10.0

    predictions_for: Annotated[Names, says("who else may ask for joint predictions")] = ()
    prediction_rows_most: Annotated[int, says("most rows in one question", ge=0)] = 100_000
    predict_without: Annotated[bool, says("whether a prediction may leave out a party that does not answer")] = False
    row_cap: Annotated[
        int, says("how often one row may enter a sum, over all jobs and predictions; 0: no cap", ge=0)
    ] = 0
    epsilon: Annotated[
        Positive | None,
        says("a privacy budget over all jobs, of labels and columns; a job that adds no noise to them is refused"),
    ] = None
    delta: Annotated[float, says("of that budget, whatever a job says", gt=0, lt=1)] = 1e-5
    product_epsilon_most: Annotated[
        Unlimited | None,
        says('products must be private, of at most this epsilon in a run (method "vfb-sgd"), and predictions are none'),
    ] = None
    colluders_least: Annotated[int, says("noise must suffice if so many others help whoever asks", ge=0)] = 0


def meanings() -> dict[str, tuple[Any, str]]:
    """By key of the policy: its type, and what it means."""
    fields: Any = msgspec.inspect.type_info(Policy).fields  # type: ignore[attr-defined]
    return {field.name: (field.type.type, field.type.extra_json_schema["description"]) for field in fields}


Spent = Callable[[Sequence[Charge], float], float]
"""(what a job would charge, delta) -> the epsilon of all that this party would then have spent."""


def refuse_job(policy: Policy, job: OrgJob, me: str, initiator: str, spent: Spent) -> None:
    """Raise `Refused` with every reason, or return."""
    reasons = [*objections(policy, job, me, initiator), *_over_budget(policy, job, me, spent)]
    if reasons:
        raise Refused(f"'{me}' refuses the job '{job.name}' of '{initiator}': {'; '.join(reasons)}.")


def objections(policy: Policy, job: OrgJob, me: str, initiator: str) -> list[str]:
    method = job.method.algorithm
    reasons = []
    if me not in job.parties:
        reasons.append(f"'{me}' is not one of its parties")
    if not allows(policy.jobs, job.name):
        reasons.append(f"its policy allows the jobs {_listed(policy.jobs)}")
    if not allows(policy.initiators, initiator) and initiator != me:
        reasons.append(f"its policy lets {_listed(policy.initiators)} propose jobs")
    leader = job.labels_at[0]
    if leader != me and not allows(policy.leaders, leader):
        reasons.append(f"its policy lets {_listed(policy.leaders)} lead the matching of ids, not '{leader}'")
    strangers = [name for name in job.parties if name != me and not allows(policy.peers, name)]
    if strangers:
        reasons.append(f"its policy does not allow work with {_listed(tuple(strangers))}")
    if refused := refused_code(policy, method):
        reasons.append(refused)
    elif not allows(policy.methods, method):
        reasons.append(f"its policy allows the methods {_listed(policy.methods)}, not '{method}'")
    if job.method.secure_sum not in policy.secure_sum:
        reasons.append(f"its policy allows the secure sums {_listed(policy.secure_sum)}, not '{job.method.secure_sum}'")
    if len(job.parties) < policy.parties_least:
        reasons.append(f"its policy wants at least {policy.parties_least} parties, the job has {len(job.parties)}")
    if job.network.on_loss not in policy.on_loss and not job.embeds:
        reasons.append(
            f"its policy allows on_loss {_listed(policy.on_loss)}, not '{job.network.on_loss}': the sums of two "
            "rosters differ by the share of whoever was left out"
        )
    if policy.in_step and not job.network.in_step and not job.embeds:
        reasons.append(
            "its policy wants shares in step (in_step), and this job waits for no slow party: totals would tell who "
            "has moved, and so parties' shares apart"
        )
    passes = job.products.rounds if job.private_products else job.method.passes
    if passes > policy.passes_most:
        reasons.append(f"its policy allows {policy.passes_most:g} passes, the job wants {passes:g}")
    reasons += _about_products(policy, job)
    learners = tuple(name for name in told_labels(job, me) if not allows(policy.labels_for, name))
    if learners:
        reasons.append(f"its policy does not let {_listed(learners)} learn its labels (labels_for)")
    if asked := answered_without_end(policy, job, me):
        reasons.append(
            f"its policy does not let {_listed(asked)} learn its labels (labels_for), and without a privacy budget "
            "(epsilon) answers at random may tell them all the same"
        )
    if me not in job.labels_at and not policy.derivatives:
        reasons.append("its policy takes no derivatives of others' losses, which would tell it their labels")
    return reasons


def _about_products(policy: Policy, job: OrgJob) -> list[str]:
    """A job without private products, or with weaker ones than the owner wants."""
    reasons, most, method = [], policy.product_epsilon_most, job.method
    if method.product_epsilon is None:
        wanted = (
            "its policy wants private products, and this job's are exact (product_epsilon under [method] adds noise"
        )
        return [] if most is None else [f"{wanted}; product_epsilon_most is {most:g})"]
    spent = epsilon({release_within(method.product_epsilon, method.product_delta): 1}, policy.delta)
    if most is not None and spent > most:
        reasons.append(
            f"its policy allows private products of epsilon {most:g} in one run, at its delta of {policy.delta:g} "
            f"(product_epsilon_most), and the job's {method.product_epsilon:g} at delta {method.product_delta:g} is "
            f"{spent:.4g} there"
        )
    helpers = min(policy.colluders_least, len(job.parties) - 2)
    if job.products.colluders < helpers:
        reasons.append(
            f"its policy wants noise that suffices if {helpers} others help whoever asks (colluders_least), and the "
            f"job counts on {job.products.colluders} (products.colluders)"
        )
    return reasons


def refused_code(policy: Policy, method: str) -> str:
    """Why a method's code is not imported, if so. The owner must name it: "any" means the package's own methods."""
    if not is_elsewhere(method) or method in policy.methods:
        return ""
    return f"'{method}' is no method of offbeat, and its policy does not name that code under methods"


def told_labels(job: OrgJob, holder: str) -> tuple[str, ...]:
    """Who learns this holder's labels from derivatives: all others, also whoever says that it has labels of its own.
    Nobody where they are answered at random."""
    return _others(job, holder) if job.method.label_dp_epsilon is None else ()


def answered_without_end(policy: Policy, job: OrgJob, me: str) -> tuple[str, ...]:
    """Who may not learn this party's labels and could: by answers of a large epsilon, or of many."""
    if job.method.label_dp_epsilon is None or policy.epsilon is not None:
        return ()
    return tuple(name for name in _others(job, me) if not allows(policy.labels_for, name))


def _others(job: OrgJob, holder: str) -> tuple[str, ...]:
    return tuple(name for name in job.parties if name != holder) if holder in job.labels_at else ()


def _over_budget(policy: Policy, job: OrgJob, me: str, spent: Spent) -> list[str]:
    """A budget is kept over all jobs together, or there is none: a job without noise would pass any."""
    if policy.epsilon is None:
        return []
    if bare := bare_of(job, me):
        columns = "product_epsilon under [method], or VAFL with epsilon under [embedding],"
        remedy = "label_dp_epsilon under [method]" if bare == LABELS else columns
        budget = f"its policy has a privacy budget of {policy.epsilon:g}"
        return [f"{budget}, and this job adds no noise to its {bare} ({remedy} would)"]
    after = spent(charges_of(job, me), policy.delta)
    return [overspent(me, after, policy.epsilon, policy.delta).rstrip(".")] if after > policy.epsilon else []


def bare_of(job: OrgJob, me: str) -> str:
    """What of this party leaves without noise: its labels, its columns, or nothing."""
    return next((charge.what for charge in charges_of(job, me) if charge.releases is None), "")


def refuse_rows(policy: Policy, me: str, rows: int) -> None:
    """`rows` are those left for training: the test rows do not make a tiny training larger."""
    if rows < policy.rows_least:
        raise Refused(
            f"'{me}' refuses the alignment: {rows} training rows are shared by all parties, and its policy wants at "
            f"least {policy.rows_least}. A tiny intersection tells too much about the few people in it."
        )


def refuse_test_rows(policy: Policy, me: str, rows: int) -> None:
    if 0 < rows < policy.test_rows_least:
        raise Refused(
            f"'{me}' refuses the test set: it has {rows} rows, and its policy wants at least {policy.test_rows_least} "
            "(test_rows_least). Metrics over few rows tell their labels. Raise test_fraction, or set it to 0."
        )


def refuse_sizes(policy: Policy, me: str, sizes: Mapping[str, int]) -> None:
    """A party that brings very many ids asks for very many: it could be trying out a whole list of people."""
    for name, ids in sorted(sizes.items()):
        if ids > policy.ids_ratio_most * max(sizes[me], policy.rows_least):
            raise Refused(
                f"'{me}' has {sizes[me]} ids and '{name}' brings {ids}; its policy allows {policy.ids_ratio_most:g} "
                "times its own (ids_ratio_most)."
            )


def refuse_prediction(policy: Policy, job: OrgJob, me: str, asker: str, rows: int) -> None:
    """`job`: what the model was trained by. A budget that came after it counts for its predictions, too."""
    kept = "privacy budget (epsilon)" if policy.epsilon is not None else "bound on products (product_epsilon_most)"
    if job.private_products and (policy.epsilon is not None or policy.product_epsilon_most is not None):
        raise Refused(
            f"'{me}' gives no predictions by this model: it was trained with private products, its policy has a "
            f"{kept}, and a score is a row's product without noise, which no budget covers."
        )
    if policy.product_epsilon_most is not None and asker != me and not job.embeds:
        raise Refused(
            f"'{me}' gives no predictions by this model: its policy wants private products (product_epsilon_most), and "
            "a score is a row's product without noise."
        )
    if asker != me and not allows(policy.predictions_for, asker):
        raise Refused(f"'{me}' gives predictions to {_listed(policy.predictions_for)}, not to '{asker}'.")
    if rows > policy.prediction_rows_most:
        raise Refused(f"'{me}' answers at most {policy.prediction_rows_most} rows in one question, {rows} were asked.")
    if policy.epsilon is not None and asker != me and (bare := bare_of(job, me)):
        raise Refused(
            f"'{me}' has a privacy budget of {policy.epsilon:g}, and predictions by this model add "
            f"no noise to its {bare}. Train one that does."
        )


def allows(names: Names, name: str) -> bool:
    return "any" in names or name in names


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nobody"
