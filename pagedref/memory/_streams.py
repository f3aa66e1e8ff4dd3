"""What is known of the tokens of each sequence: as much as it takes to publish its pages (S28, S30).

A stream stands on the node of the last page that was published. Beyond it, the tokens of a prompt are kept until they
are published, and of tokens that come one by one only those of the page that is not full.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Prompt", "Streams"]

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

NO_STREAM = -1


class Prompt(NamedTuple):
    """A prompt that is not published yet, or not all of it.

    Attributes
    ----------
    pages : int32 array (pages, page_size)
        Its whole pages.
    codes : uint64 array (pages,)
        Their codes.
    media : dict
        Encoded media by page.
    """

    pages: Int32Array
    codes: npt.NDArray[np.uint64]
    media: dict[int, bytes]


class Streams:
    """Hold the streams of sequences, by row.

    Parameters
    ----------
    num_rows, page_size : int
        Rows to start with, and tokens in a page.

    Attributes
    ----------
    cursor : int32 array (num_rows,)
        Node of the last published page, or the root; -1 where tokens are not known.
    published : int64 array (num_rows,)
        Pages published, from page 0 on.
    known : int64 array (num_rows,)
        Tokens known, from position 0 on; of a prompt also those not committed yet.
    tail : int32 array (num_rows, page_size)
        The tokens of the page that is not full: the last ``known % page_size``.
    prompts : dict
        Prompts of rows.
    tail_media : dict
        Encoded media of the pages that are not full, of the few rows that have any.
    """

    def __init__(self, num_rows: int, page_size: int) -> None:
        self.page_size = page_size
        self.cursor: Int32Array = np.full(num_rows, NO_STREAM, dtype=np.int32)
        self.published: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self.known: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self.tail: Int32Array = np.zeros((num_rows, page_size), dtype=np.int32)
        self.prompts: dict[int, Prompt] = {}
        self.tail_media: dict[int, bytes] = {}

    def grow(self, num_rows: int) -> None:
        """Make room for more rows.

        Parameters
        ----------
        num_rows : int
            What must be there.
        """
        more = num_rows - self.cursor.size
        if more <= 0:
            return
        self.cursor = np.concatenate([self.cursor, np.full(more, NO_STREAM, dtype=np.int32)])
        self.published = np.concatenate([self.published, np.zeros(more, dtype=np.int64)])
        self.known = np.concatenate([self.known, np.zeros(more, dtype=np.int64)])
        self.tail = np.concatenate([self.tail, np.zeros((more, self.page_size), dtype=np.int32)])

    def open(self, row: int, node: int, published: int, known: int) -> None:
        """Begin a stream.

        Parameters
        ----------
        row, node : int
            Row, and the node it stands on.
        published, known : int
            Pages that are published, tokens that are known.
        """
        self.cursor[row], self.published[row], self.known[row] = node, published, known

    def close(self, row: int) -> int:
        """End a stream.

        Parameters
        ----------
        row : int
            Row.

        Returns
        -------
        int
            The node that it stood on, -1 if there was none.
        """
        node = int(self.cursor[row])
        self.open(row, NO_STREAM, 0, 0)
        self.prompts.pop(row, None)
        self.tail_media.pop(row, None)
        return node

    def copy(self, parent: int, child: int) -> int:
        """Give a forked sequence the stream of its parent.

        Parameters
        ----------
        parent, child : int
            Rows.

        Returns
        -------
        int
            The node that both stand on, -1 if there is none.
        """
        for array in (self.cursor, self.published, self.known, self.tail):
            array[child] = array[parent]
        if parent in self.prompts:
            self.prompts[child] = self.prompts[parent]
        if parent in self.tail_media:
            self.tail_media[child] = self.tail_media[parent]
        return int(self.cursor[parent])
