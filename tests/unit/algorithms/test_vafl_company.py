"""Whose uploads one pass of a long-working head serves: who is near is waited for, who is not is not."""

import numpy as np
import pytest

from offbeat.algorithms.vafl.company import TRIAL_FIRST, TRIAL_LATE, TRIAL_SOON, Company

EVERYONE = {0, 1, 2}


def walk(company: Company, passes: int, late: dict[int, int], began: int = 0) -> list[list[int]]:
    """Whom each pass serves. `late`: after how many passes these clients come back; others come while none is made."""
    due, waiting, served = dict.fromkeys(EVERYONE, began), set(), []
    for number in range(began, began + passes):
        come = {client for client in EVERYONE - waiting if due[client] <= number}
        for client in sorted(come):
            company.came(client, number)
        waiting |= come
        if not company.is_complete(waiting, (), number):  # the head rests until the others come
            for client in sorted(EVERYONE - waiting):
                company.came(client, number)
            waiting = set(EVERYONE)
        served.append(sorted(waiting))
        company.passed(waiting, (), number + 1)
        due |= {client: number + 1 + late.get(client, 0) for client in waiting}
        waiting = set()
    return served


def test_where_all_are_near_every_pass_serves_all() -> None:
    company = Company(3)
    assert walk(company, 7, {}) == [[0, 1, 2]] * 7
    assert company.near == EVERYONE


def test_a_client_that_takes_longer_is_found_out_at_the_first_trial_and_not_waited_for() -> None:
    company = Company(3)
    served = walk(company, 40, {1: 4})
    assert served[:2] == [[0, 1, 2], [0, 2]] and company.near == {0, 2}
    assert all({0, 2} <= set(pair) for pair in served) and 7 <= sum(1 in pair for pair in served) <= 9


def test_a_client_that_is_quick_again_is_waited_for_again() -> None:
    company = Company(3)
    walk(company, 20, {1: 4})
    assert walk(company, 10, {}, began=20)[-1] == [0, 1, 2] and company.near == EVERYONE


def test_trials_come_more_rarely_while_nobody_changes() -> None:
    company = Company(3)
    trials = [number for number in range(300) if company.trial == number or company.passed(EVERYONE, (), number)]
    assert company.gap == TRIAL_LATE and company.near == EVERYONE
    assert trials[0] == TRIAL_FIRST and max(np.diff(trials)) > TRIAL_SOON


def test_clients_that_are_away_are_not_waited_for() -> None:
    company = Company(3)
    assert not company.is_complete({0, 2}, (), 2)
    assert company.is_complete({0, 2}, {1}, 2)


@pytest.mark.parametrize("passes", [0, 5, 30])
def test_it_comes_back_from_what_was_written_down(passes: int) -> None:
    one, other = Company(3), Company(3)
    walk(one, passes, {2: 3})
    other.restore(one.snapshot())
    assert vars(other) == vars(one)
    assert walk(other, 20, {2: 3}, began=passes) == walk(one, 20, {2: 3}, began=passes)
