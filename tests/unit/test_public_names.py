"""The list of public names is sorted, complete, and each name leads somewhere."""

import ast
import inspect

import pytest

import offbeat


def test_the_names_are_sorted_and_each_has_a_place():
    assert offbeat.__all__ == sorted(offbeat.__all__)
    assert set(offbeat.__all__) == set(offbeat.WHERE)


@pytest.mark.parametrize("name", offbeat.__all__)
def test_every_name_can_be_had(name):
    value = getattr(offbeat, name)
    assert value.__name__ == name
    assert value.__module__.startswith("offbeat.")


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(inspect.getsource(offbeat))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == set(offbeat.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        offbeat.nonsense  # noqa: B018
    assert offbeat.__version__
