"""Index widths: frames, slots and offsets past 2**16, 2**31 and 2**32, without the memory.

The pool is a map of memory of which only a few frames are ever written. The frame that is asked for holds one set of
rows; the frames to which a narrow index would wrap hold others, so that a wrong answer tells which index is narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.dense import Arithmetic, dense_attention
from pagedref.conformance.agreement import bound_fraction
from pagedref.conformance.cases import type_of_judgement
from pagedref.conformance.fault_cases._tools import copies, sparse_bytes

__all__ = ["WIDTHS", "Width"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Width:
    """One pool with a frame far away.

    Attributes
    ----------
    name : str
        The boundary.
    num_frames, frame_bytes, page_size : int
        The pool, of one-byte numbers; K lies at the start of a frame's bytes and V in the middle.
    large : bool
        Whether the pool is a map larger than memory, which a backend that copies its arrays cannot take.
    """

    name: str
    num_frames: int
    frame_bytes: int
    page_size: int
    large: bool = True

    def run(self, backend: Any) -> None:
        """Write, gather and decode the last frame.

        Parameters
        ----------
        backend : module or object
            The backend.

        Raises
        ------
        AssertionError
            Names the index that wraps, where the numbers tell.
        NotHere
            The machine has no such memory, or the backend copies its arrays.
        """
        from pagedref.conformance.fault_cases._tools import NotHere

        if self.large and copies(backend):
            raise NotHere("a pool larger than memory is for backends that read it where it lies")
        memory = sparse_bytes(self.num_frames * self.frame_bytes).reshape(self.num_frames, self.frame_bytes)
        half, width = self.frame_bytes // 2, self.page_size * 4
        shape = (self.num_frames, self.page_size, 1, 4)
        k_cache, v_cache = (memory[:, at : at + width].reshape(shape) for at in (0, half))
        frame, count = self.num_frames - 1, min(3, self.page_size)
        rows = np.arange(1, 4 * count + 1, dtype=np.int8).reshape(count, 1, 4)
        decoys = {}
        for at, (wrapped, what) in enumerate(self.wraps(frame).items()):
            decoys[wrapped] = what
            k_cache[wrapped, :count], v_cache[wrapped, :count] = rows + 20 * (at + 1), rows + 20 * (at + 1)
        before = {wrapped: memory[wrapped].copy() for wrapped in decoys}
        slots = np.arange(count, dtype=np.int64) + frame * self.page_size
        wide = rows.astype(np.float32)
        one = {"k_scale": 1.0, "v_scale": 1.0}
        if callable(getattr(backend, "append_kv", None)):
            backend.append_kv(wide, wide, k_cache, v_cache, slots, **one)
            for wrapped, what in decoys.items():
                if (memory[wrapped] != before[wrapped]).any():
                    raise AssertionError(f"append to frame {frame} wrote frame {wrapped}: {what}")
            for name, cache in (("keys", k_cache), ("values", v_cache)):
                assert (cache[frame, :count] == rows).all(), f"append to frame {frame} did not write its {name}"
        k_cache[frame, :count], v_cache[frame, :count] = rows, rows
        pages = np.array([0, 1], np.int32), np.array([frame], np.int32), np.array([count], np.int32)
        if callable(getattr(backend, "gather_kv", None)):
            keys, values = backend.gather_kv(k_cache, v_cache, *pages, **one)
            self._told(np.asarray(keys), np.asarray(values), wide, decoys, frame)
        q = np.full((1, 1, 4), 0.25, np.float32)
        for name, call in self._attention(backend, q, k_cache, v_cache, pages, one).items():
            out = np.asarray(next(iter(call())))
            self._explain(out, q, rows, decoys, f"{name} of frame {frame}")

    def wraps(self, frame: int) -> dict[int, str]:
        """Return the frames to which narrow indices lead, with the index that is narrow.

        Parameters
        ----------
        frame : int
            The frame that is meant.

        Returns
        -------
        dict of int to str
        """
        offset = frame * self.frame_bytes
        narrow = [(frame % (1 << bits), f"frame numbers wrap at {1 << bits:,}") for bits in (16, 15)]
        for bits in (32, 31):
            what = f"int32 wraps at page {frame:,} (offset modulo 2**{bits})"
            narrow.append((offset % (1 << bits) // self.frame_bytes, what))
        found: dict[int, str] = {}
        for at, what in narrow:
            if at != frame:
                found[at] = f"{found[at]} or {what}" if at in found else what
        return found

    @staticmethod
    def _attention(backend: Any, q: Array, k: Array, v: Array, pages: Any, one: Any) -> dict[str, Callable[[], Any]]:
        """Return the attention operations that the backend has, as calls."""
        rows = np.array([0, 1], np.int32)
        calls: dict[str, Callable[[], Any]] = {
            "paged_decode": lambda: backend.paged_decode(q, k, v, *pages, **one),
            "paged_prefill": lambda: backend.paged_prefill(q, rows, k, v, *pages, **one),
        }
        return {name: call for name, call in calls.items() if callable(getattr(backend, name, None))}

    @staticmethod
    def _told(keys: Array, values: Array, rows: Array, decoys: dict[int, str], frame: int) -> None:
        """Compare gathered rows."""
        if np.array_equal(keys, rows) and np.array_equal(values, rows):
            return
        for at, (wrapped, what) in enumerate(decoys.items()):
            if np.array_equal(keys, rows + 20 * (at + 1)) or np.array_equal(values, rows + 20 * (at + 1)):
                raise AssertionError(f"gather of frame {frame} read frame {wrapped}: {what}")
        raise AssertionError(f"gather of frame {frame} read other numbers")

    @staticmethod
    def _explain(out: Array, q: Array, rows: Array, decoys: dict[int, str], what: str) -> None:
        """Compare an output with the right one and with those of the decoys."""

        def close(numbers: Array) -> bool:
            arithmetic = Arithmetic(dtype=type_of_judgement())
            exact = dense_attention(q, numbers, numbers, with_bound=True, arithmetic=arithmetic)
            assert exact.out_bound is not None
            return bound_fraction(out, exact.out, exact.out_bound) <= 1

        if close(rows.astype(np.float32)):
            return
        for at, (wrapped, why) in enumerate(decoys.items()):
            if close((rows + 20 * (at + 1)).astype(np.float32)):
                raise AssertionError(f"{what} read frame {wrapped}: {why}")
        raise AssertionError(f"{what} is another number")


WIDTHS: tuple[Width, ...] = (
    Width("frame 65,541 of pages of 1", 65_542, 16, 1, large=False),
    Width("frame 70,000 of pages of 4", 70_001, 64, 4, large=False),
    Width("element 2**31", 65_537, 32_768, 16),
    Width("element 2**31 behind a stride that is no power of two", 2_067, 1_039_680, 4),
    Width("element 2**32", (1 << 17) + 1, 32_768, 16),
    Width("element 2**34", (1 << 20) + 1, 16_384, 4),
    Width("slot 2**31", (1 << 21) + 1, 8_192, 1_024),
)
"""Pools by boundary."""
