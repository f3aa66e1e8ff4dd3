"""Prefix hits alone: one request at a time against a cache of pages, nothing else of a server.

Two orders of using the pages of a request:

``"request"``
    Look first: k pages from the head are there, up to the first that is not. Then the pages are used. Under LRU all of
    them become the newest, the head the newest of all, and none of them is given up before a page of another request:
    tails go first, as the memory manager has it (S31). The other policies use them head to tail.
``"access"``
    A stream of single pages, head to tail: each is a hit or enters at once.

The whole prompt may hit, and the last page, which may be short, is cached like the others: this is ``recompute_last=
False`` of S29 for studies. Outputs are not stored. `hit_rates` takes any policy and reads the trace as a stream.

**LRU at all capacities in one pass.** Under LRU a cache of capacity C holds the first C pages of one list, the most
recently used first, whatever C is (inclusion). So the place of a page in that list when it is looked up, its *depth*,
says for every capacity at once whether it hits: depth < C. `lru_depths` finds all depths offline: the depth of a page
last used at time p is the number of different pages used since then, that is all uses since p less those whose page
was used between p and them. Counting those is one question to a wavelet matrix: how many of the first m numbers of a
list are below x. `lru_curve` adds up. Both orders have inclusion; a property test compares them with `hit_rates`.

References
----------
R. Mattson et al., *Evaluation techniques for storage hierarchies*, IBM Systems Journal 1970 (inclusion, depths).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.simulate._caches import LRU
from pagedref.simulate._optimal import Optimal
from pagedref.simulate._wavelet import count_below
from pagedref.simulate.policies import Belady, Cache, make_cache
from pagedref.simulate.trace import Request

__all__ = ["HitCounts", "PageUses", "hit_rates", "lru_curve", "lru_depths", "page_uses"]

Order: TypeAlias = Literal["request", "access"]
Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HitCounts:
    """What a cache found of the prompts of a trace.

    Attributes
    ----------
    capacity : int
        Pages at most.
    requests, pages, tokens : int
        What was asked for.
    object_hits : int
        Pages that were there, also behind a missing one.
    page_hits, token_hits : int
        Pages before the first missing one, and their tokens.
    request_mean_hit_rate : float
        Mean over requests of the part of the prompt that was found.
    """

    capacity: int
    requests: int
    pages: int
    tokens: int
    object_hits: int
    page_hits: int
    token_hits: int
    request_mean_hit_rate: float

    @property
    def page_hit_rate(self) -> float:
        """Part of the pages that were found."""
        return self.page_hits / self.pages

    @property
    def token_hit_rate(self) -> float:
        """Part of the tokens that were found."""
        return self.token_hits / self.tokens


@dataclass(frozen=True)
class PageUses:
    """The pages of all prompts of a trace, one after the other.

    Attributes
    ----------
    pages : uint64 array (uses,)
        Names.
    indptr : int64 array (requests + 1,)
        Where each request begins; every request has a page.
    prompt_len : int64 array (requests,)
        Tokens.
    page_size : int
        Tokens of a page.
    """

    pages: npt.NDArray[np.uint64]
    indptr: Int64Array
    prompt_len: Int64Array
    page_size: int


def page_uses(trace: Iterable[Request], page_size: int) -> PageUses:
    """Read the pages of a trace into arrays: 8 bytes a page.

    Parameters
    ----------
    trace : iterable of Request
        Each with its pages.
    page_size : int
        Tokens of a page.

    Returns
    -------
    PageUses

    Raises
    ------
    ContractError
        A request names no pages, or not one for each `page_size` tokens of its prompt.
    """
    page_size = whole_number("page_uses", "page_size", page_size, low=1)
    pages: list[int] = []
    ends, lengths = [0], []
    for number, request in enumerate(trace):
        _check(number, request, page_size)
        pages += request.pages
        ends.append(len(pages))
        lengths.append(request.prompt_len)
    return PageUses(
        np.array(pages, np.uint64), np.array(ends, np.int64), np.array(lengths, np.int64), page_size
    )


def hit_rates(
    trace: Iterable[Request],
    page_size: int,
    capacity: int,
    policy: str | Callable[[int], Cache] = "lru",
    *,
    order: Order = "request",
    warmup: int = 0,
) -> HitCounts:
    """Replay the prompts of a trace against a cache of pages.

    Parameters
    ----------
    trace : iterable of Request
        Each with its pages; read once, as a stream, except for ``belady``, which must know the future.
    page_size : int
        Tokens of a page.
    capacity : int
        Pages that the cache holds.
    policy : str or callable
        A name of :data:`~pagedref.simulate.policies.CACHES`, ``belady``, or a function of the capacity. In the order
        ``request``, ``belady`` gives up the leaf of a chain that is used next in the most distant request, and lets in
        only what is used sooner.
    order : {"request", "access"}
        See above.
    warmup : int
        Requests at the beginning that are replayed and not counted.

    Returns
    -------
    HitCounts

    Raises
    ------
    ContractError
        A number is out of range, the policy is unknown, or a request names no pages.

    Examples
    --------
    >>> trace = [Request(0, 8, 1, (1, 2)), Request(0, 8, 1, (1, 3)), Request(0, 6, 1, (1, 2))]
    >>> counts = hit_rates(trace, page_size=4, capacity=2)
    >>> counts.page_hits, counts.token_hits, counts.page_hit_rate
    (2, 8, 0.3333333333333333)
    >>> hit_rates(trace, page_size=4, capacity=3).page_hits
    3
    """
    page_size = whole_number("hit_rates", "page_size", page_size, low=1)
    capacity = whole_number("hit_rates", "capacity", capacity, low=1)
    if order not in ("request", "access"):
        raise ContractError(f"hit_rates: order is unknown, got {order!r}, need 'request' or 'access'")
    cache: Cache | Optimal
    if policy == "belady":
        trace = list(trace)
        future = [request.pages for request in trace]
        flat = [page for pages in future for page in pages]
        cache = Optimal(capacity, future) if order == "request" else Belady(capacity, flat)
    else:
        cache = make_cache(policy, capacity)
    counted = np.zeros(6, np.int64)
    mean = 0.0
    for number, request in enumerate(trace):
        _check(number, request, page_size)
        hits, found = _use(cache, request.pages, order)
        if number >= warmup:
            tokens = min(found * page_size, request.prompt_len)
            counted += (1, len(request.pages), request.prompt_len, hits, found, tokens)
            mean += tokens / request.prompt_len
    if not counted[0]:
        raise ContractError(f"hit_rates: trace is too short, got no request after {warmup}, need one at least")
    requests, pages, prompts, objects, found, tokens = counted.tolist()
    return HitCounts(capacity, requests, pages, prompts, objects, found, tokens, mean / requests)


def _use(cache: Cache | Optimal, pages: Sequence[int], order: Order) -> tuple[int, int]:
    """Use the pages of one prompt; return how many were there, and how many up to the first that was not."""
    if order == "access" and not isinstance(cache, Optimal):
        there = [cache.access(page) for page in pages]
    else:
        there = [page in cache for page in pages]
        if isinstance(cache, LRU | Optimal):
            cache.settle(pages)
        else:
            for page in pages:
                cache.access(page)
    return sum(there), there.index(False) if False in there else len(there)


def _check(number: int, request: Request, page_size: int) -> None:
    """Refuse a request whose pages do not fit its length."""
    need = -(-request.prompt_len // page_size)
    if len(request.pages) != need:
        text = f"got {len(request.pages)} for {request.prompt_len} tokens of request {number}, need {need}"
        raise ContractError(f"hit_rates: pages do not fit the prompt, {text} of {page_size} tokens")


def lru_depths(uses: PageUses, order: Order = "request") -> Int64Array:
    """Return how deep in the list of LRU each page lies when it is looked up.

    Parameters
    ----------
    uses : PageUses
        What is used, in order.
    order : {"request", "access"}
        See above.

    Returns
    -------
    int64 array (uses,)
        Pages that were used more recently; the number of all uses for a page that was never used before.

    Examples
    --------
    >>> uses = page_uses([Request(0, 8, 1, (1, 2)), Request(0, 8, 1, (1, 3)), Request(0, 6, 1, (1, 2))], 4)
    >>> lru_depths(uses).tolist()           # the third request finds 1 on top, and 2 below 1 and 3
    [6, 6, 0, 6, 0, 2]
    """
    total = uses.pages.size
    starts, lens = uses.indptr[:-1], np.diff(uses.indptr)
    at = np.arange(total)  # where the use at a moment of the stream stands in the arrays
    looked = at  # the moment before which everything counts
    if order == "request":  # looked up before the request, used tail first
        looked = np.repeat(starts, lens)
        at = np.repeat(starts + uses.indptr[1:] - 1, lens) - at
    stream = uses.pages[at]
    by_name = np.argsort(stream, kind="stable")
    same = np.flatnonzero(stream[by_name[1:]] == stream[by_name[:-1]])
    last = np.full(total, -1, np.int64)  # when the page of each moment was used before
    last[by_name[same + 1]] = by_name[same]
    again = np.flatnonzero(last >= 0)
    before, looked = last[again], looked[again]
    # Since then: all uses, less those of pages that were used since then before.
    earlier = np.searchsorted(again, looked)  # repeated uses before the look
    repeated = earlier - count_below(before, earlier, before + 1)
    depths = np.full(total, total, np.int64)
    depths[at[again]] = looked - before - 1 - repeated
    return depths


def lru_curve(
    uses: PageUses, capacities: Sequence[int], *, order: Order = "request", warmup: int = 0
) -> list[HitCounts]:
    """Return the hits of LRU at many capacities, from one pass; equal to `hit_rates` at each.

    Parameters
    ----------
    uses : PageUses
        What is used, in order.
    capacities : sequence of int
        Pages, >= 1.
    order, warmup
        See `hit_rates`.

    Returns
    -------
    list of HitCounts
        One for each capacity.

    Raises
    ------
    ContractError
        A capacity is out of range, or no request is left to count.

    Examples
    --------
    >>> uses = page_uses([Request(0, 8, 1, (1, 2)), Request(0, 8, 1, (1, 3)), Request(0, 6, 1, (1, 2))], 4)
    >>> [counts.page_hits for counts in lru_curve(uses, [1, 2, 3])]
    [2, 2, 3]
    """
    sizes = [whole_number("lru_curve", "capacities", capacity, low=1) for capacity in capacities]
    if warmup >= uses.prompt_len.size:
        raise ContractError(f"lru_curve: trace is too short, got no request after {warmup}, need one at least")
    depths = lru_depths(uses, order)
    total, lens = depths.size, np.diff(uses.indptr)
    lift = np.repeat(np.arange(lens.size) * (total + 1), lens)  # so that a maximum never crosses a request
    deepest = np.maximum.accumulate(depths + lift) - lift  # of a page and all before it in its prompt
    first = uses.indptr[warmup]
    starts, prompts = uses.indptr[warmup:-1] - first, uses.prompt_len[warmup:]
    found = []
    for capacity in sizes:
        below = min(capacity, total)  # a page that was never used before hits nowhere
        pages = np.add.reduceat(deepest[first:] < below, starts, dtype=np.int64)  # (requests,)
        tokens = np.minimum(pages * uses.page_size, prompts)
        objects = int(np.count_nonzero(depths[first:] < below))
        asked = (prompts.size, int(total - first), int(prompts.sum()))
        mean = float(np.mean(tokens / prompts))
        found.append(HitCounts(capacity, *asked, objects, int(pages.sum()), int(tokens.sum()), mean))
    return found
