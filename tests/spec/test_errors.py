"""Error classes: what catches what."""

from __future__ import annotations

import pytest

from pagedref import errors


@pytest.mark.parametrize(
    ("name", "base"),
    [("ContractError", ValueError), ("OutOfFrames", MemoryError), ("PageFault", LookupError)],
)
def test_kinds_are_also_builtin_kinds(name: str, base: type[Exception]) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.PagedRefError)
    assert issubclass(kind, base)


def test_all_names_are_of_the_family() -> None:
    assert all(issubclass(getattr(errors, name), errors.PagedRefError) for name in errors.__all__)


def test_out_of_frames_carries_the_numbers() -> None:
    error = errors.OutOfFrames("text", needed=3, available=1)
    assert (str(error), error.needed, error.available) == ("text", 3, 1)
