"""A policy in sentences, and what one proposal would cost under it."""

from offbeat.jobs.organisations import OrgJob
from offbeat.orgs.budget import charges_of
from offbeat.orgs.policy import Names, Policy, Spent, told_labels


def sentences(policy: Policy, has_labels: bool) -> list[str]:
    """What this party agrees to, one sentence for each thing; what nobody may do is said too."""
    return [*_about_jobs(policy), *_about_rows(policy, has_labels), *_about_limits(policy)]


def _about_jobs(policy: Policy) -> list[str]:
    by_hand = "What the policy allows waits until its owner accepts it by hand."
    at_once = "What the policy allows is accepted at once, without asking its owner."
    others = f"or by {_who(policy.initiators)}" if policy.initiators else "alone"
    return [
        f"It takes part in {_jobs(policy.jobs)}, proposed by its owner {others}.",
        by_hand if policy.approve == "by hand" else at_once,
        f"It works on at most {policy.runs_at_once} at a time; at most {policy.runs_waiting} more wait their turn.",
        f"It works with {_who(policy.peers, 'nobody')}; at least {policy.parties_least} parties take part.",
        f"The matching of ids may be led by {_who(policy.leaders)}.",
        f"Methods: {', '.join(policy.methods)}. Sums are hidden by: {', '.join(policy.secure_sum)}. "
        f"At most {policy.passes_most:g} passes.",
    ]


def _about_rows(policy: Policy, has_labels: bool) -> list[str]:
    takes = "It takes derivatives, which tell it others' labels." if policy.derivatives else "It takes no derivatives."
    never = f"Columns that are never used: {', '.join(policy.columns_never)}."
    return [
        f"At least {policy.rows_least:,} common training rows; nobody may bring more than {policy.ids_ratio_most:g} "
        "times its ids.",
        f"Its labels may be learned by {_who(policy.labels_for, 'nobody')}." if has_labels else takes,
        never if policy.columns_never else "No column is kept out.",
    ]


def _about_limits(policy: Policy) -> list[str]:
    end = ", also without a party that does not answer." if policy.predict_without else "."
    account = f"epsilon = {policy.epsilon} at delta {policy.delta:g}"
    budget = f"Its privacy budget over all jobs is {account}; a job without noise is refused."
    return [
        f"Joint predictions may be asked for by its owner and {_who(policy.predictions_for)}, at most "
        f"{policy.prediction_rows_most:,} rows in one question{end}",
        f"A row may enter at most {policy.row_cap:,} sums, ever." if policy.row_cap else "Uses of a row have no cap.",
        "It keeps no privacy budget." if policy.epsilon is None else budget,
        *_about_products(policy),
    ]


def _about_products(policy: Policy) -> list[str]:
    if policy.product_epsilon_most is None:
        return []
    helpers = f", also if {policy.colluders_least} others help whoever asks" if policy.colluders_least else ""
    return [
        f"Products must be private, of epsilon {policy.product_epsilon_most:g} at delta {policy.delta:g} at most in "
        f"one job{helpers}; models that were trained so give no predictions."
    ]


def _jobs(names: Names) -> str:
    if "any" in names or not names:
        return "any job" if names else "no job"
    return f"the job {names[0]}" if len(names) == 1 else f"the jobs {', '.join(names)}"


def _who(names: Names, nobody: str = "nobody else") -> str:
    return "everyone on the roster" if "any" in names else ", ".join(names) or nobody


def costs(job: OrgJob, me: str, policy: Policy, spent: Spent) -> list[str]:
    """What accepting this job would cost this party, in sentences."""
    charges = charges_of(job, me)
    budget = [
        f"It adds no noise to your {charge.what}: nothing is counted against a privacy budget."
        for charge in charges
        if charge.releases is None
    ]
    if any(charge.releases for charge in charges):
        what = " and ".join(charge.what for charge in charges if charge.releases)
        limit = f" of {policy.epsilon:g}" if policy.epsilon is not None else ""
        after = spent(charges, policy.delta)
        budget.append(f"It adds noise to your {what}; epsilon = {after:.4g}{limit} would then be spent in all.")
    cap = f"your cap is {policy.row_cap:,}" if policy.row_cap else "you have set no cap"
    sums = f"{len(job.labels_at) * job.method.passes:,.0f} sums at most, plus surveys"
    sums = f"{job.products.rounds} noisy sums" if job.private_products else sums
    rows = f"Each common row enters about {sums}; {cap}."
    learners, holders = told_labels(job, me), [name for name in job.labels_at if me in told_labels(job, name)]
    labels = [f"Your labels are told to {' and '.join(learners)}."] if learners else []
    learned = [f"You would learn the labels of {' and '.join(holders)}."] if holders else []
    return [*labels, *learned, *budget, rows]
