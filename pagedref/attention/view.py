"""What some query rows of one sequence see: pages to read, live tokens of a tile, and who sees which key of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.call import AttentionCall

__all__ = ["RowView"]

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class RowView:
    """Answer the questions of a walk over pages, and compute only what is asked.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    sequence, first_row, stop_row : int
        A sequence and some of its query rows.

    Attributes
    ----------
    pages : array of int64
        Pages in which one of the rows sees a key, ascending.
    """

    def __init__(self, call: AttentionCall, sequence: int, first_row: int, stop_row: int) -> None:
        options = call.options
        self._call, self._sequence, self._rows = call, sequence, slice(first_row, stop_row)
        self._page_size = call.dims["page_size"]
        self._kv_len = int(call.kv_lens[sequence])
        q_len = int(call.qo_indptr[sequence + 1] - call.qo_indptr[sequence])
        self._first = self._kv_len - q_len + first_row  # absolute position of the first row
        self._bounds: tuple[IndexArray, IndexArray] | None = None
        self._plain = not call.masks and options.reaches_back
        self.pages: Any
        if self._plain:
            stop = self._first + (stop_row - first_row) if options.causal else self._kv_len
            self._all_see = min(self._first + 1, self._kv_len) if options.causal else self._kv_len
            self.pages = np.arange(num_pages(max(min(stop, self._kv_len), 0), self._page_size))
        else:
            self.pages = call.visible_pages(sequence, first_row, stop_row)

    @property
    def positions(self) -> IndexArray:
        """Absolute positions of the rows."""
        return np.arange(self._first, self._first + self._rows.stop - self._rows.start)

    def live_tokens(self, first: int, stop: int) -> int:
        """Return how many tokens the entries ``first .. stop - 1`` of `pages` hold."""
        end = (int(self.pages[stop - 1]) + 1) * self._page_size
        return (stop - first) * self._page_size - max(end - self._kv_len, 0)

    def key_positions(self, first: int, live: int) -> IndexArray:
        """Return the positions of the `live` tokens that begin with entry `first` of `pages`."""
        count = -(-live // self._page_size)
        starts = self.pages[first : first + count, None] * self._page_size
        positions: IndexArray = (starts + np.arange(self._page_size)).reshape(-1)[:live]
        return positions

    def seen(self, first: int, live: int) -> BoolArray | None:
        """Return who sees which of these tokens, or None if all rows see all of them.

        Parameters
        ----------
        first, live : int
            As in :meth:`key_positions`.

        Returns
        -------
        array (rows, live) of bool or None
        """
        if self._plain and first * self._page_size + live <= self._all_see:
            return None
        keys = self.key_positions(first, live)
        if self._bounds is None:
            self._bounds = self._call.options.intervals(self.positions, self._kv_len)
        start, stop = self._bounds
        seen: BoolArray = (keys >= start[:, None]) & (keys < stop[:, None])
        if self._call.masks:
            seen &= self._call.masks[self._sequence][self._rows, keys]
        return None if seen.all() else seen
