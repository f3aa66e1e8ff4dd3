"""What paging replaced: one run of slots for each request, reserved at admission and never moved.

A contiguous cache must give a request all its slots in one piece, before it knows how long the request will get. Three
rules say how many (`slots_to_reserve`): room for the longest request there may be (``max``), for the power of two at or
above the outputs still to come (``pow2``), or for exactly what it will need (``oracle``: nobody knows it, so this is a
bound). Three allocators say where (`make_space`): `FitSpace` takes the first or the smallest hole that is large enough,
`BuddySpace` rounds up to powers of two, halves, and joins halves again.

**Every slot of the pool is in one of four states**, and `Waste` counts them; they sum to the pool:

=============  ========================================================================================================
token states   it holds the key and value of a token that a later query will read
reserved       it will hold one before its request ends: allocated, at or below the request's final length
internal       it is allocated and never will: above the request's final length, or behind a window
external       it is allocated to nobody: too small a hole, or nothing that waits fits
=============  ========================================================================================================

The final length of a request of P prompt and D output tokens is P + D - 1: its last token is never stored.

References
----------
W. Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023, section 3
and figure 2; G. Yu et al., *Orca*, OSDI 2022 (reservation of the maximum); K. Knowlton, *A Fast Storage Allocator*,
CACM 1965 (buddies).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.memory._spaces import BuddySpace, FitSpace, Space

__all__ = ["PLACEMENTS", "RESERVATIONS", "BuddySpace", "FitSpace", "Space", "Waste", "make_space", "slots_to_reserve"]

RESERVATIONS = ("max", "pow2", "oracle")
"""How many slots a request reserves: see `slots_to_reserve`."""


class Waste(NamedTuple):
    """Slots of a pool by what they hold; the four sum to the pool.

    Attributes
    ----------
    token_states : int
        Hold a token that is stored and still read.
    reserved : int
        Allocated, and will hold a token of the same request later: ``min(allocated, final length) - stored``.
    internal : int
        Allocated, and never will: ``allocated - min(allocated, final length)``.
    external : int
        Allocated to no request.

    Examples
    --------
    A request of 100 tokens in all, in room for 4,000, after its last step and with the pool to itself:

    >>> waste = Waste.of_request(stored=100, allocated=4000, final=100, pool=4000)
    >>> waste
    Waste(token_states=100, reserved=0, internal=3900, external=0)
    >>> 1 - waste.token_states / sum(waste)
    0.975
    >>> Waste.of_request(stored=100, allocated=7 * 16, final=100, pool=112)
    Waste(token_states=100, reserved=0, internal=12, external=0)
    """

    token_states: int
    reserved: int
    internal: int
    external: int

    @classmethod
    def of_request(cls, stored: int, allocated: int, final: int, pool: int) -> Waste:
        """Count the slots of a pool that holds one request.

        Parameters
        ----------
        stored, allocated : int
            Slots that hold its tokens, and slots that it has.
        final : int
            Slots that will hold tokens at its end.
        pool : int
            Slots of the pool, at least `allocated`.

        Returns
        -------
        Waste
        """
        useful = min(allocated, final)
        return cls(stored, useful - stored, allocated - useful, pool - allocated)


def slots_to_reserve(rule: str, prompt_len: int, output_len: int, max_len: int) -> int:
    """Return how many slots a contiguous cache reserves for a request.

    Parameters
    ----------
    rule : {"max", "pow2", "oracle"}
        ``max``: `max_len`. ``pow2``: the prompt and the power of two at or above `output_len`, at most `max_len`.
        ``oracle``: `prompt_len` + `output_len` - 1, what the request holds at its end.
    prompt_len, output_len : int
        Tokens, >= 1.
    max_len : int
        The longest request that there may be, at least `prompt_len` + `output_len`.

    Returns
    -------
    int

    Raises
    ------
    ContractError
        The rule is unknown, or the request is longer than `max_len`.

    Examples
    --------
    >>> [slots_to_reserve(rule, 10, 100, 2048) for rule in RESERVATIONS]
    [2048, 138, 109]
    """
    whole_number("slots_to_reserve", "prompt_len", prompt_len, low=1)
    whole_number("slots_to_reserve", "output_len", output_len, low=1)
    if prompt_len + output_len > max_len:
        text = f"got {prompt_len} + {output_len} tokens, need at most {max_len}"
        raise ContractError(f"slots_to_reserve: prompt_len and output_len are too long, {text}")
    if rule == "max":
        return max_len
    if rule == "pow2":
        return min(prompt_len + (1 << (output_len - 1).bit_length()), max_len)
    if rule == "oracle":
        return prompt_len + output_len - 1
    raise ContractError(f"slots_to_reserve: rule is unknown, got {rule!r}, need one of {', '.join(RESERVATIONS)}")


PLACEMENTS: dict[str, Callable[[int], Space]] = {
    "firstfit": FitSpace,
    "bestfit": lambda num_slots: FitSpace(num_slots, best=True),
    "buddy": BuddySpace,
}
"""Where a run goes: see `make_space`."""


def make_space(placement: str, num_slots: int) -> Space:
    """Return an empty address space.

    Parameters
    ----------
    placement : {"firstfit", "bestfit", "buddy"}
        How a hole is chosen.
    num_slots : int
        Slots of the pool.

    Returns
    -------
    Space

    Raises
    ------
    ContractError
        The placement is unknown.
    """
    if placement not in PLACEMENTS:
        names = ", ".join(PLACEMENTS)
        raise ContractError(f"make_space: placement is unknown, got {placement!r}, need one of {names}")
    return PLACEMENTS[placement](num_slots)
