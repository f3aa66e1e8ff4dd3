"""One ragged batch through the model: tokens of many sequences, the logits that are wanted, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref._step import Step
from pagedref.engine._memory import PagedMemory
from pagedref.engine._request import Branch, Request
from pagedref.kv_cache import PagedKVCache
from pagedref.models.draft import Draft, Speculation, propose

__all__ = ["ModelStep", "Part", "guesses", "make_parts"]

NO_DRAFT = Draft((), ())


class Part(NamedTuple):
    """What one sequence does in a step.

    Attributes
    ----------
    request : Request
    branch : Branch
        Whose.
    known : int
        Known tokens that are computed.
    draft : Draft
        Guessed tokens behind them.
    first : int
        Its first row among the wanted logits.
    logged : int
        Rows wanted for the log-probabilities of the prompt; they come first.
    rows : int
        Rows in all: behind those, that of the last known token if a token comes of it, and those of the draft.
    """

    request: Request
    branch: Branch
    known: int
    draft: Draft
    first: int
    logged: int
    rows: int


def make_parts(work: Sequence[tuple[Request, Branch, int]], drafts: Sequence[Draft]) -> list[Part]:
    """Say which logits are wanted of each sequence of a step.

    Parameters
    ----------
    work : sequence of (Request, Branch, int)
        Who computes how many known tokens.
    drafts : sequence of Draft
        Guesses of each.

    Returns
    -------
    list of Part
    """
    parts, row = [], 0
    for (request, branch, count), draft in zip(work, drafts, strict=True):
        end = branch.stored + count
        logged = 0
        if request.prompt_logprobs:  # the row of position p judges the token at p + 1
            logged = max(0, min(end, len(request.prompt) - 1) - max(branch.stored, len(request.prompt_logprobs) - 1))
        reads = request.ticket.state == "prefill"
        ends = end == request.target and (not request.started or len(request.live) == 1)
        rows = logged + (ends if reads and request.trunk else not reads) + len(draft)
        parts.append(Part(request, branch, count, draft, row, logged, rows))
        row += rows
    return parts


def guesses(
    work: Sequence[tuple[Request, Branch, int]], speculation: Speculation | None, budget: int, memory: PagedMemory
) -> list[Draft]:
    """Guess what sequences that decode will say, as far as budget and frames are left over; nobody goes for a guess.

    Parameters
    ----------
    work
        As in `make_parts`.
    speculation : Speculation, optional
        How; by default not at all.
    budget : int
        Tokens of a step.
    memory : PagedMemory
        Frames that are spare.

    Returns
    -------
    list of Draft
        One for each, most of them empty.
    """
    if speculation is None:
        return [NO_DRAFT] * len(work)
    budget -= sum(count for _, _, count in work)
    drafts = []
    for request, branch, _ in work:
        draft = NO_DRAFT
        if request.ticket.state == "decode" and request.search is None and len(request.live) == 1:
            most = min(budget, request.limit - len(branch.outputs) - 1, memory.slots_left(branch))
            if most > 0:
                draft = propose(request.prompt + branch.outputs, speculation, most)
                memory.promise_guesses(branch, len(draft))
                budget -= len(draft)
        drafts.append(draft)
    return drafts


class ModelStep:
    """Run parts through a model, then keep what turned out to be right.

    Parameters
    ----------
    transformer : object
        Has ``forward(cache, step, token_ids, rows)``.
    cache : PagedKVCache
        Where keys and values go.
    parts : list of Part
        One or more.

    Attributes
    ----------
    logits : array (rows, vocab) of float32
        The wanted rows, part after part.
    """

    def __init__(self, transformer: Any, cache: PagedKVCache, parts: list[Part]) -> None:
        self._cache, self._parts = cache, parts
        counts = [part.known + len(part.draft) for part in parts]
        ids: list[int] = []
        wanted: list[int] = []
        for part in parts:
            start, stop = part.branch.stored, part.branch.stored + part.known
            if part.logged:
                skipped = max(0, len(part.request.prompt_logprobs) - 1 - start)
                wanted += range(len(ids) + skipped, len(ids) + skipped + part.logged)
            ids += part.request.tokens(part.branch, start, stop)
            ids += part.draft.tokens
            wanted += range(len(ids) - (part.rows - part.logged), len(ids))
        self._ids = np.array(ids, np.int64)
        self._step: Step = cache.begin([part.branch.seq_id for part in parts], counts)  # type: ignore[misc]
        try:
            self.logits: npt.NDArray[np.float32] = transformer.forward(cache, self._step, self._ids, wanted)
        except BaseException:
            cache.abort(self._step)
            raise

    def commit(self, kept: Sequence[int], *, learn: bool, window: int | None) -> None:
        """Make tokens live, and let go of pages that no window sees any more (S32).

        Parameters
        ----------
        kept : sequence of int
            Guessed tokens of each part that were right, the first ones.
        learn : bool
            Whether other prompts may hit their pages (S30).
        window : int, optional
            Of all layers.
        """
        cache, step = self._cache, self._step
        if any(part.draft.tokens for part in self._parts):
            starts = step.qo_indptr[:-1].tolist()
            counts = [part.known + right for part, right in zip(self._parts, kept, strict=True)]
            own = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
            cache.manager.commit(step.seq_ids, counts, self._ids[np.concatenate(own)] if learn else None)
            cache.abort(step)  # the rest goes back
        else:
            cache.commit(step, self._ids if learn else None)
        for part, right in zip(self._parts, kept, strict=True):
            part.branch.stored += part.known + right
        if window is not None and any(part.branch.stored > window for part in self._parts):
            cache.manager.release_window(step.seq_ids, window)

    def row(self, part: Part) -> int:
        """Return where the logits behind the last known token of a part are."""
        return part.first + part.logged


