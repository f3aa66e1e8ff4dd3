"""Docstrings are in the house form: every check of numpydoc, but those listed here with a reason.

Checked are the public classes and functions of both packages, and the public methods of those classes. Without Numba,
only ``pagedref`` is.
"""

from __future__ import annotations

import enum
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import pytest

from tests.meta.sources import modules

pytest.importorskip("numpydoc", reason="needs numpydoc: pip install 'pagedref[docs]'")

from numpydoc.docscrape import Parameter, get_doc_object
from numpydoc.validate import Validator, validate

# Checks that are off, and why.
LISTED = {
    "ES01": "a summary that says it all needs no second paragraph",
    "EX01": "examples stand where they teach; chapters and tutorials hold the rest",
    "SA01": "rules and chapters link what belongs together, and numbers such as S5 are links",
    "RT03": "the summary says what comes back; Returns adds its dtype and shape",
}
# Sections of our own.
SECTIONS = ("Mutates", "Launch", "Reads/Writes", "Barriers", "Rung")
# A parameter that points to another function needs no type; "integer" is any integer, where "int" is Python's.
ELSEWHERE = re.compile(r"^(As|See|The same as) |, as in ")
INTEGER = 'should use "int" instead of "integer"'


class HouseDoc(Validator):
    """A docstring as numpydoc sees it, with what the house allows beyond numpydoc."""

    def __init__(self, obj_name: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of our own sections
            super().__init__(get_doc_object(Validator._load_obj(obj_name)))

    @property
    def is_one_sentence(self) -> bool:
        """A method, a function that kernels are made of, and a record may be told in text alone, without sections."""
        if isinstance(self.code_obj, property):
            may = True
        elif inspect.isclass(self.obj):
            may = is_dataclass(self.obj) or issubclass(self.obj, tuple)
        else:
            may = "." in self.code_obj.__qualname__ or self.code_obj.__module__.startswith("pagedref_cuda.")
        return may and not super().section_titles

    @property
    def section_titles(self) -> list[str]:
        return [title for title in super().section_titles if title not in SECTIONS]

    @property
    def signature_parameters(self) -> tuple[str, ...]:
        """Fields that stand under Attributes are told; protocols and enumerations are not built by their users; and
        ``**options`` that another class explains may be named one by one."""
        obj = self.obj
        if inspect.isclass(obj) and (getattr(obj, "_is_protocol", False) or issubclass(obj, enum.Enum)):
            return tuple(self.doc_all_parameters)
        names = super().signature_parameters
        if self.is_one_sentence:
            return ()
        told = {name.strip() for entry in self.doc["Attributes"] for name in entry.name.split(",")}
        names = tuple(name for name in names if name not in told or name in self.doc_all_parameters)
        if names and names[-1] == "**options" and "**options" not in self.doc_all_parameters:
            names = (*names[:-1], *(name for name in self.doc_all_parameters if name not in names))
        return names

    @property
    def parameter_mismatches(self) -> list[Any]:
        """Parameters that are told together (``a, b : int``) need not be in the order of the signature."""
        together = any("," in entry.name for entry in self.doc["Parameters"])
        return [error for error in super().parameter_mismatches if not (together and error[0] == "PR03")]

    def parameter_type(self, param: str) -> str:
        """A parameter that is the same as elsewhere has its type there."""
        text = " ".join(self.doc_all_parameters[param][1])
        return super().parameter_type(param) or ("as there" if ELSEWHERE.search(text) else "")

    @property
    def returns(self) -> list[Parameter]:
        """``k, v : ndarray`` are two."""
        return [Parameter(name, one.type, one.desc) for one in super().returns for name in one.name.split(",")]

    @property
    def method_returns_something(self) -> bool:
        return not self.is_one_sentence and bool(super().method_returns_something)


def wrong_in(target: str) -> list[str]:
    """List what numpydoc finds in the docstring of a name and the house does not allow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = validate(target, HouseDoc)["errors"]
    return [f"{target}: {code} {text}" for code, text in errors if code not in LISTED and INTEGER not in text]


def targets(package: str) -> Iterator[str]:
    """Name every public class, method and function of a package where it is defined."""
    for name in modules(package):
        if any(piece.startswith("_") for piece in name.split(".")):
            continue
        module = import_module(name)
        for offered in getattr(module, "__all__", ()):
            obj = getattr(module, offered)
            if not (inspect.isclass(obj) or inspect.isfunction(obj)) or not obj.__module__.startswith(package):
                continue
            where = f"{obj.__module__}.{obj.__qualname__}"
            yield where
            if inspect.isclass(obj):
                yield from (f"{where}.{member}" for member, value in vars(obj).items() if is_method(member, value, obj))


def is_method(name: str, value: object, owner: type) -> bool:
    """Tell whether a member is a public method or property that this class defines."""
    if name.startswith("_"):
        return False
    if isinstance(value, property | classmethod | staticmethod):
        return True
    return inspect.isfunction(value) and value.__qualname__ == f"{owner.__qualname__}.{name}"


@pytest.mark.parametrize("package", ["pagedref", "pagedref_cuda"])
def test_docstrings_are_in_the_house_form(package: str) -> None:
    if package == "pagedref_cuda":
        pytest.importorskip("pagedref_cuda.cache", reason="needs numba-cuda")
    names = sorted(set(targets(package)))
    assert names
    wrong = [line for name in names for line in wrong_in(name)]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


class Sample:
    """Hold functions whose docstrings are right or wrong."""

    def one_sentence(self, number: int) -> int:
        """Return the number."""
        return number

    def right(self, number: int, other: int) -> int:
        """Add two numbers.

        Parameters
        ----------
        number : int
            The first.
        other : integer
            The second.

        Returns
        -------
        int

        Mutates
        -------
        Nothing.
        """
        return number + other

    def no_verb_line(self, number: int) -> int:
        """the number

        Parameters
        ----------
        number : int
            It.

        Returns
        -------
        int
        """
        return number

    def forgets_one(self, number: int, other: int) -> int:
        """Add two numbers.

        Parameters
        ----------
        number : int
            The first.

        Returns
        -------
        int
        """
        return number + other

    def forgets_returns(self, number: int) -> int:
        """Return it.

        Parameters
        ----------
        number : int
            The first.
        """
        return number

    def forgets_type(self, number: int) -> None:
        """Take it.

        Parameters
        ----------
        number
            The first.
        """

    def strange_section(self, number: int) -> None:
        """Take it.

        Parameters
        ----------
        number : int
            The first.

        Advice
        ------
        None.
        """


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("one_sentence", set()),
        ("right", set()),
        ("no_verb_line", {"SS02", "SS03"}),
        ("forgets_one", {"PR01"}),
        ("forgets_returns", {"RT01"}),
        ("forgets_type", {"PR04"}),
        ("strange_section", {"GL06", "GL07"}),
    ],
)
def test_check_can_fail(name: str, codes: set[str]) -> None:
    found = wrong_in(f"{__name__}.Sample.{name}")
    assert {re.findall(r": (\w+) ", line)[0] for line in found} == codes
