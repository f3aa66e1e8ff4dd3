"""Frames of a pool on the device as bytes, for swapping through pinned memory, in the order of the reference (S33)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._slots import checked_pages
from pagedref.memory.stores import ArrayFrames
from pagedref_cuda import _runtime
from pagedref_cuda._copy import copy_frames

__all__ = ["DeviceFrames"]

Bytes = npt.NDArray[np.uint8]


class DeviceFrames(ArrayFrames):
    """Treat the arrays of a pool on the device as a :class:`pagedref.memory.stores.FrameStore`.

    Parameters
    ----------
    layers : dict of str to list of DeviceArray (num_frames, ...)
        By name, what each layer holds, without gaps; in the order of the bytes.

    Notes
    -----
    A page has the bytes that it has on the host, so that either can bring back what the other has put aside. Copies
    run through one pinned buffer, and are waited for.
    """

    def __init__(self, layers: dict[str, list[Any]]) -> None:
        self._layers = layers
        forms = {name: (parts[0].shape, parts[0].dtype, len(parts)) for name, parts in layers.items()}
        super().__init__(
            {
                name: np.broadcast_to(np.zeros((), dtype), (shape[0], count, *shape[1:]))  # its form; never read
                for name, (shape, dtype, count) in forms.items()
            }
        )
        self._buffer: Bytes = _runtime.pinned(self.bytes_per_frame)

    def copy(self, src: Any, dst: Any) -> None:
        """Copy frames to others: all are read before any is written.

        Parameters
        ----------
        src, dst : integer arrays (n,)
            Frames; `dst` names each once. If it names one of `src`, the copies run through the host.
        """
        source, target = self._frames("copy", "src", src), self._frames("copy", "dst", dst, unique=True)
        if source.size != target.size:
            raise ContractError(f"copy: dst has the wrong length, got {target.size}, need {source.size}")
        if np.intersect1d(source, target).size:
            self.write(target, self.read(source))
        else:
            copy_frames([array for parts in self._layers.values() for array in parts], source, target)

    def read(self, frames: Any) -> Bytes:
        """Return frames as bytes.

        Parameters
        ----------
        frames : integer array (n,)
            Frames of the pool; one may be named twice.

        Returns
        -------
        uint8 array (n, bytes_per_frame)
            Owned by the caller.
        """
        index = self._frames("read", "frames", frames)
        rows = self._rows(index.size)
        self._move(index, rows, back=True)
        return rows.copy()

    def write(self, frames: Any, pages: Bytes) -> None:
        """Fill frames with bytes.

        Parameters
        ----------
        frames : integer array (n,)
            Frames of the pool, each named once.
        pages : uint8 array (n, bytes_per_frame)
            What they shall hold.

        Mutates
        -------
        These frames, in every array.
        """
        index = self._frames("write", "frames", frames, unique=True)
        given = checked_pages("write", pages, index.size, self.bytes_per_frame)
        rows = self._rows(index.size)
        rows[...] = given
        self._move(index, rows, back=False)

    def _rows(self, n: int) -> Bytes:
        """Return the pinned buffer as rows, larger than before if it must be."""
        if n * self.bytes_per_frame > self._buffer.size:
            self._buffer = _runtime.pinned(n * self.bytes_per_frame)
        return self._buffer[: n * self.bytes_per_frame].reshape(n, self.bytes_per_frame)

    def _move(self, index: Any, rows: Bytes, *, back: bool) -> None:
        """Queue the copies between frames and pinned rows, and wait for them once."""
        pairs = []
        for frame, row in zip(index.tolist(), rows, strict=True):
            start = 0
            for array in (array for parts in self._layers.values() for array in parts):
                part = array[frame]
                pairs.append((part, row[start : start + part.nbytes].view(part.dtype).reshape(part.shape)))
                start += part.nbytes
        _runtime.move_pinned(pairs, back=back)
