"""What a step brings to the device, and the rows that it works on there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.kv_cache import Step
from pagedref_cuda import _runtime
from pagedref_cuda.fast.words import flat_words

__all__ = ["SPLIT", "Buffers", "Inputs"]

SPLIT = 512
"""Keys of a single new token that a warp takes; with more, several share them."""

Array = npt.NDArray[Any]


class Inputs:
    """Numbers of one step on the device: one copy of integers, one of angles.

    Parameters
    ----------
    step : Step
        An open step.
    token_ids : array (tokens,) of int64
        Its new tokens.
    rows : array (n,) of int64
        Tokens whose logits are wanted.
    angles : dict of str to pair of arrays (tokens, pairs) of float32
        Cosine and sine, by kind of rotation.

    Attributes
    ----------
    token_ids, positions, slots, owner, place, rows, split_rows, kv_indptr, kv_indices : arrays of int64
        On the device; `owner` is the sequence of each token, `place` its number among those whose keys are shared among
        warps, or -1, and `split_rows` are these.
    split, parts : int
        Keys of a part, and parts of the longest.
    angles : dict
        On the device.
    """

    def __init__(
        self, step: Step, token_ids: Array, rows: Array, angles: dict[str, tuple[Array, Array]]
    ) -> None:
        owner = np.repeat(np.arange(len(step.seq_ids)), step.num_tokens)
        alone = np.repeat(np.asarray(step.num_tokens) == 1, step.num_tokens)
        self.split = SPLIT
        split_rows = np.flatnonzero(alone & (step.positions >= self.split))
        self.parts = int(step.positions[split_rows].max(initial=0)) // self.split + 1
        place = np.full(len(owner), -1)
        place[split_rows] = np.arange(len(split_rows))
        parts = [token_ids, step.positions, step.slot_mapping, owner, place, rows, split_rows]
        parts += [step.kv_indptr, step.kv_indices]
        packed = _runtime.readable(np.concatenate(parts).astype(np.int64, copy=False))
        ends = np.cumsum([len(part) for part in parts]).tolist()
        lent = [packed[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
        self.token_ids, self.positions, self.slots, self.owner, self.place, self.rows, self.split_rows = lent[:7]
        self.kv_indptr, self.kv_indices = lent[7:]
        self.angles = {
            kind: tuple(_runtime.readable(table) for table in pair) for kind, pair in angles.items()
        }


class Buffers:
    """Rows on the device, used again by the next step with as many tokens.

    Parameters
    ----------
    widths : dict of str to int
        Columns of each array of rows, by name.
    most : int
        Sets of buffers that are kept; steps with other numbers of tokens replace the oldest.
    """

    def __init__(self, widths: dict[str, int], most: int = 4) -> None:
        self._widths, self._most = widths, most
        self._kept: dict[int, dict[str, Any]] = {}

    def of(self, tokens: int) -> dict[str, Any]:
        """Return the rows for a step.

        Parameters
        ----------
        tokens : int
            Rows of each array.

        Returns
        -------
        dict of str to array (tokens, columns) of float32
            Not initialised; under the name with `` words`` behind it the same memory as words, for 16-byte loads.
        """
        if tokens not in self._kept:
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            made = {name: _runtime.empty((tokens, columns), np.float32) for name, columns in self._widths.items()}
            self._kept[tokens] = {**made, **{f"{name} words": flat_words(array) for name, array in made.items()}}
        return self._kept[tokens]
