"""Which pairs of trees hide a share from every single party, and which do not."""

import pytest

from offbeat.errors import BadJob
from offbeat.privacy.trees import (
    children,
    coalition_leak,
    leaked_dimensions,
    one_tree,
    two_trees,
)


def names(count):
    return tuple(f"p{i:03}" for i in range(count))


def star(roster, root):
    return {name: root for name in roster if name != root}


@pytest.mark.parametrize("count", [*range(3, 41), 64])
def test_the_heap_and_its_reverse_hide_from_every_single_party(count):
    roster = names(count)
    for root in {roster[0], roster[count // 2], roster[-1]}:
        others = [name for name in roster if name != root]
        assert not any(leaked_dimensions(*two_trees(roster, root), root, others).values())


@pytest.mark.parametrize("count", range(3, 12))
def test_two_stars_are_different_trees_by_the_papers_definition_and_hide_nothing(count):
    roster = names(count)
    tree = star(roster, roster[0])
    assert leaked_dimensions(tree, tree, roster[0], roster[1:])[roster[0]] == count - 2


def test_the_papers_merges_over_three_parties_leak_at_the_root():
    first = {"2": "1", "3": "1"}  # ((1, 2), 3) and ((1, 3), 2), both rooted at 1: one node per party gives two stars
    assert leaked_dimensions(first, first, "1", ["2", "3"])["1"] == 1


def test_the_same_heap_twice_is_refused_by_the_check():
    roster = names(6)
    tree = one_tree(roster, roster[0])
    assert any(leaked_dimensions(tree, tree, roster[0], roster[1:]).values())


@pytest.mark.parametrize("count", [6, 8, 12])
def test_a_coalition_of_three_breaks_any_pair(count):
    roster = names(count)
    first, second = two_trees(roster, roster[0])
    degree = {v: sum((a == v) + (b == v) for tree in (first, second) for a, b in tree.items()) for v in roster[1:]}
    victim = min(degree, key=lambda v: degree[v])
    around = {a if b == victim else b for tree in (first, second) for a, b in tree.items() if victim in (a, b)}
    assert len(around) <= 3
    assert coalition_leak(first, second, roster[0], roster[1:], around) >= 1


def test_two_parties_are_refused():
    with pytest.raises(BadJob, match="two parties"):
        two_trees(("a", "b"), "a")


@pytest.mark.parametrize("count", [3, 5, 9, 17])
def test_trees_span_all_parties_and_end_at_the_root(count):
    roster = names(count)
    for tree in (*two_trees(roster, roster[1]), one_tree(roster, roster[1])):
        assert set(tree) == set(roster) - {roster[1]}
        for node in tree:
            for _ in range(count):
                node = tree.get(node, node)
            assert node == roster[1]
        assert sum(len(children(tree, name)) for name in roster) == count - 1
