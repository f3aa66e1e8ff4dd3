"""Speculation: greedy text in fewer steps, by letting the model check guesses instead of asking it token by token.

A step reads, behind the last token of each text, a draft of what may follow (:mod:`pagedref.models.draft`). The logits
of all rows say how far it was right. What was right is committed; the slots of the others are given back with the step.
A right guess on a later branch of a tree does not lie behind the text: it is read again in the next step, in front of
the next draft, so no key is ever moved and no storage format needs to know.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pagedref.attention.state import AttentionState
from pagedref.kv_cache import PagedKVCache, Step
from pagedref.models.config import ModelConfig
from pagedref.models.draft import Draft, Speculation, SpeculationReport, accept, propose
from pagedref.models.fields import refuse
from pagedref.models.generate import BatchRun, Running, Token
from pagedref.models.transformer import Transformer

__all__ = ["SpeculativeRun", "check_branches"]

_COUNT_SLOTS = frozenset({"window", "layer windows", "alibi", "latent"})


def check_branches(config: ModelConfig, speculation: Speculation) -> None:
    """Refuse trees where attention counts slots.

    Parameters
    ----------
    config : ModelConfig
        The model.
    speculation : Speculation
        How much is guessed.

    Raises
    ------
    ContractError
        It is no Speculation; or there are several branches, and the model has windows, ALiBi or latent attention: under
        a tree mask these are measured between slots (S3), where guesses of other branches lie in between.
    """
    if not isinstance(speculation, Speculation):
        refuse("generate", "speculate", "is no Speculation", speculation, "pagedref.models.Speculation(...) or None")
    lacking = sorted(config.features & _COUNT_SLOTS)
    if speculation.branches > 1 and lacking:
        need = f"branches=1 for a model with {lacking[0]}"
        refuse("generate", "speculate", "asks for a tree", speculation.branches, need)


class SpeculativeRun(BatchRun):
    """Run requests to their ends, each step with drafts.

    Parameters
    ----------
    *arguments, **keywords
        As of :class:`pagedref.models.generate.BatchRun`.
    speculation : Speculation
        How much is guessed.

    Notes
    -----
    Tokens are those of :class:`~pagedref.models.generate.BatchRun` wherever the margin between the two best exceeds
    the rounding. A draft takes no frame beyond those set aside for the request.
    """

    def __init__(self, *arguments: Any, speculation: Speculation, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        check_branches(self._transformer.config, speculation)
        if speculation.branches > 1 and not isinstance(self._transformer, Transformer):
            need = "branches=1 where a backend runs the whole model"
            refuse("generate", "speculate", "asks for a tree", speculation.branches, need)
        self._speculation = speculation
        self.speculation = SpeculationReport()

    def _step(self) -> list[Token]:
        """Run one step and return the new tokens."""
        pairs = [(seq, count) for seq, count in zip(self._running, self._counts(), strict=True) if count]
        drafts = self._drafts(pairs)
        known = np.array([count for _, count in pairs])
        read = known + [len(draft) for draft in drafts]
        ids: list[int] = []
        for (seq, count), draft in zip(pairs, drafts, strict=True):
            ids += [*seq.tokens[seq.stored : seq.stored + count], *draft.tokens]
        asked = [at for at, (seq, count) in enumerate(pairs) if count == seq.missing]  # these get new tokens
        ends = np.cumsum(read)
        rows = [range(ends[at] - 1 - len(drafts[at]), ends[at]) for at in asked]  # last known token, then the guesses
        step = self.cache.begin([seq.seq_id for seq, _ in pairs], read.tolist())
        best = self._best(step, ids, drafts, [row for part in rows for row in part])
        new: list[Token] = []
        for at, part in zip(asked, rows, strict=True):
            accepted = accept(drafts[at], partial(_best_of, best[: len(part)]))
            taken = self._take_until_end(pairs[at][0], accepted.tokens)
            known[at] += min(accepted.in_place, len(taken) - 1)
            del best[: len(part)]
            new += taken
        self.cache.manager.commit(step.seq_ids, known)
        self.cache.abort(step)  # gives back the slots of the other guesses
        for (seq, _), stored in zip(pairs, known.tolist(), strict=True):
            seq.stored += stored
        before = self.speculation or SpeculationReport()
        drafted = sum(map(len, drafts))
        self.speculation = SpeculationReport(
            before.steps + 1, before.drafted + drafted, before.accepted + len(new) - len(asked)
        )
        return self._end(new)

    def _drafts(self, pairs: list[tuple[Running, int]]) -> list[Draft]:
        """Propose for every sequence whose last token is read in this step, while there is room."""
        room = max(0, self._tokens_per_step - sum(count for _, count in pairs))
        drafts = []
        for seq, count in pairs:
            limit = min(room, seq.stop - 1 - len(seq.tokens)) if count == seq.missing else 0
            drafts.append(propose(seq.tokens, self._speculation, limit))
            room -= len(drafts[-1])
        return drafts

    def _best(self, step: Step, ids: list[int], drafts: list[Draft], rows: list[int]) -> list[int]:
        """Run the model; where there are trees, with a mask for all, and positions by depth."""
        if all(draft.is_chain for draft in drafts):
            plain: list[int] = self._transformer.greedy(self.cache, step, ids, rows).tolist()
            return plain
        positions = step.positions.copy()
        masks = []
        for at, draft in enumerate(drafts):
            end = int(step.qo_indptr[at + 1])
            first = end - len(draft)  # row of the first guess
            known = first - int(step.qo_indptr[at])
            masks.append(draft.mask(known, int(step.positions[end - 1]) + 1))
            positions[first:end] = step.positions[first - 1] + 1 + np.array(draft.depths, np.int64)
        cache = cast("PagedKVCache", _Masked(self.cache, step, masks))
        step = replace(step, positions=positions)
        best: list[int] = self._transformer.greedy(cache, step, ids, rows).tolist()
        return best

    def _take_until_end(self, seq: Running, tokens: tuple[int, ...]) -> list[Token]:
        """Append new tokens to a sequence up to the one that ends it."""
        taken: list[Token] = []
        for token in tokens:
            taken.append(self._take(seq, token))
            if taken[-1].finish_reason is not None:
                break
        return taken


def _best_of(best: list[int], row: int, _: list[int]) -> int:
    """Return the best token after a row."""
    return best[row]


class _Masked:
    """Stand in for the cache during one forward: the same step, attended to under masks."""

    def __init__(self, cache: PagedKVCache, step: Step, masks: list[npt.NDArray[np.bool_]]) -> None:
        self._cache, self._step, self._masks = cache, step, masks

    def append(self, step: Step, k: Any, v: Any, *, layer: int) -> None:
        self._cache.append(self._step, k, v, layer=layer)

    def attend(self, step: Step, q: Any, *, layer: int, **variants: Any) -> AttentionState:
        return self._cache.attend(self._step, q, layer=layer, mask=self._masks, **variants)
