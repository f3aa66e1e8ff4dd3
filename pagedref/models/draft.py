"""Drafts: guesses at the next tokens, taken from the text itself, and what of them proves right.

A text repeats itself: the last few tokens are looked up earlier in it, and what followed there is proposed. Several
proposals side by side form a tree. The model reads the whole draft in one step and says, for each of its tokens, what
really comes next; the draft is followed as long as it agrees. So the text is the same as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import count

__all__ = ["Accepted", "Draft", "Speculation", "SpeculationReport", "accept", "propose"]

_LOOK_BACK, _PLACES = 4096, 64  # tokens that are searched, and places that are tried: bounds the time of a proposal


@dataclass(frozen=True)
class Speculation:
    """Say how much is guessed.

    Attributes
    ----------
    tokens : int
        Tokens of a draft at most, >= 1.
    ngram : int
        Longest run of tokens that is looked up, >= 1; shorter ones serve where it is not found.
    branches : int
        Proposals side by side at most, >= 1. They share `tokens` evenly.

    Raises
    ------
    ContractError
        A number is below 1.
    """

    tokens: int = 8
    ngram: int = 3
    branches: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens", "ngram", "branches"):
            count("Speculation", name, getattr(self, name))


@dataclass(frozen=True)
class Draft:
    """Hold a tree of guessed tokens below the last token of a text.

    Attributes
    ----------
    tokens : tuple of int
        The guesses.
    parents : tuple of int
        For each the guess that it follows, an earlier one, or -1: it follows the text. The first branch comes first,
        then what the others have beyond it.

    Examples
    --------
    After the text either 5, then 6 or 7; or 8:

    >>> draft = Draft(tokens=(5, 6, 7, 8), parents=(-1, 0, 0, -1))
    >>> draft.depths, draft.is_chain
    ((0, 1, 1, 0), False)
    >>> draft.mask(known=1, kv_len=6).astype(int)
    array([[1, 1, 0, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 1, 1, 0, 1, 0],
           [1, 1, 0, 0, 0, 1]])
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether there is one branch only, which causal attention reads rightly without a mask."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """Guesses before each one on its branch."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def mask(self, known: int, kv_len: int) -> npt.NDArray[np.bool_]:
        """Return who sees whom: all see the text before them, a guess also itself and those that it follows.

        Parameters
        ----------
        known : int
            Rows before the guesses that belong to the text, >= 0.
        kv_len : int
            Keys, those of all rows included: the guesses are the last.

        Returns
        -------
        array (known + len(self), kv_len) of bool
            For ``paged_prefill(mask=)`` (S14).
        """
        first = kv_len - len(self)  # key of the first guess
        rows = np.arange(first - known, first)[:, None]
        text = np.concatenate(
            [np.arange(kv_len) <= rows, np.broadcast_to(np.arange(kv_len) < first, (len(self), kv_len))]
        )
        tree = text[known:, first:]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                tree[node] = tree[parent]
            tree[node, node] = True
        return text


@dataclass(frozen=True)
class Accepted:
    """Report what came of a draft.

    Attributes
    ----------
    tokens : tuple of int
        New tokens of the text, one more than guesses were right.
    in_place : int
        So many of them, the first ones, lie in the cache already, right behind the text: those on the first branch.
    """

    tokens: tuple[int, ...]
    in_place: int


@dataclass(frozen=True)
class SpeculationReport:
    """Count what drafts were worth.

    Attributes
    ----------
    steps : int
        Times that the model ran.
    drafted : int
        Guesses that it read.
    accepted : int
        Guesses that were right.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


def propose(token_ids: Sequence[int], speculation: Speculation, limit: int) -> Draft:
    """Look up the end of a text in the text before it and propose what followed.

    Parameters
    ----------
    token_ids : sequence of int
        Prompt and new tokens, one or more.
    speculation : Speculation
        How much.
    limit : int
        Guesses at most, >= 0: what there is room for.

    Returns
    -------
    Draft
        Empty where the last token is new.

    Notes
    -----
    Places come in order of how many tokens before them agree, `ngram` at most, then the later first; places whose
    proposals are equal count once. A proposal that runs into the end of the text goes on with itself, as a repetition
    does.

    References
    ----------
    A. Saxena, Prompt lookup decoding, 2023; Y. Leviathan et al., Fast inference from transformers via speculative
    decoding, ICML 2023.

    Examples
    --------
    >>> propose([1, 2, 3, 4, 1, 2], Speculation(tokens=3), 8).tokens
    (3, 4, 1)
    >>> propose([7, 7], Speculation(tokens=3), 8).tokens
    (7, 7, 7)
    >>> propose([1, 2, 1, 3, 1], Speculation(tokens=4, branches=2), 8)
    Draft(tokens=(3, 1, 2, 1), parents=(-1, 0, -1, 2))
    """
    limit = min(speculation.tokens, limit)
    length = limit // speculation.branches or min(limit, 1)
    ids = np.asarray(token_ids[-_LOOK_BACK:], np.int64)
    end = len(ids) - 1
    places = np.flatnonzero(ids[:end] == ids[end])
    if not length or not places.size:
        return Draft()
    agreed, going = np.ones(len(places), np.int64), np.ones(len(places), bool)
    for back in range(1, min(speculation.ngram, end + 1)):
        going &= (places >= back) & (ids[np.maximum(places - back, 0)] == ids[end - back])
        agreed += going
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    branches: set[int] = set()  # by their last guess
    for at in places[np.lexsort([-places, -agreed])[:_PLACES]].tolist():
        node = -1
        for token in ids[at + 1 + np.arange(length) % (end - at)].tolist():
            if (node, token) not in children:
                if len(tokens) == limit:
                    break
                children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = children[node, token]
        branches.add(node)
        if len(branches) == speculation.branches:
            break
    return Draft(tuple(tokens), tuple(parents))


def accept(draft: Draft, choose_at: Callable[[int, list[int]], int]) -> Accepted:
    """Follow a draft as long as it says what really comes.

    Parameters
    ----------
    draft : Draft
        The guesses that were read.
    choose_at : callable
        Given a row (0: the last token of the text, ``1 + i``: guess i) and the new tokens so far, the token that comes
        after that row. A pure function of both, such as :func:`pagedref.models.sampling.choose`: so noise changes
        nothing either.

    Returns
    -------
    Accepted

    Raises
    ------
    Exception
        Whatever `choose_at` raises for the first token. Further on it is no error yet, since the text may end before:
        the draft is followed no more.

    Examples
    --------
    What really comes is 5, 7, 9; the guesses were 5, then 6 or 7.

    >>> accept(Draft((5, 6, 7), (-1, 0, 0)), lambda row, new: [5, 7, 0, 9][row])
    Accepted(tokens=(5, 7, 9), in_place=1)
    """
    children = {(parent, token): at for at, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    new: list[int] = []
    node, in_place = -1, 0
    while True:
        try:
            token = choose_at(1 + node, new)
        except Exception:
            if not new:
                raise
            return Accepted(tuple(new), min(in_place, len(new) - 1))  # its last one is read again, if the text goes on
        new.append(token)
        follower = children.get((node, token))
        if follower is None:
            return Accepted(tuple(new), in_place)
        in_place += follower == len(new) - 1  # a guess as deep as its number: all before it are those that it follows
        node = follower
