"""The table of operations against the functions that fulfil it."""

from __future__ import annotations

import inspect

import pytest

from pagedref import backends
from pagedref.contract import DTYPES, NOT_BUILT, OPERATIONS, Agreement


@pytest.mark.parametrize("name", OPERATIONS)
def test_reference_has_the_arguments_of_the_table(name: str) -> None:
    operation = OPERATIONS[name]
    parameters = inspect.signature(getattr(backends.get("numpy"), name)).parameters
    assert set(parameters) == {*operation.by_name, *operation.options}
    for array in operation.arrays:
        assert (parameters[array.name].default is None) == array.optional, array.name


def test_types_and_agreement_are_known() -> None:
    for operation in OPERATIONS.values():
        assert isinstance(operation.agreement, Agreement)
        assert operation.rules
        for array in operation.arrays:
            assert all(array.dtype in table for table in DTYPES.values())
    assert set(NOT_BUILT) == set(DTYPES)


def test_every_rule_has_its_form() -> None:
    for operation in OPERATIONS.values():
        assert all(rule[0] == "S" and 1 <= int(rule[1:]) <= 34 for rule in operation.rules)
