"""Global memory: allocations with bounds and gaps between them. The device's memory is the caller's NumPy array."""

from __future__ import annotations

import bisect
import ctypes
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

GLOBAL_BASE = 0x7000_0000_0000
SHARED_WINDOW = 0x0100_0000_0000
LOCAL_WINDOW = 0x0200_0000_0000
PARAM_WINDOW = 0x0300_0000_0000
WINDOW = 0x1_0000_0000
MODULE_BASE = 0x6000_0000_0000  # .global and .const variables
GUARD = 1 << 16
MOST_TRACKED = 1 << 28  # bytes of an array for which the race detector holds everything
CHUNK = 1 << 16  # above that, pieces of this many bytes that were touched
UINT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Alloc:
    """One allocation: its device address, its bytes (which are those of the host array), and what was done to it."""

    __slots__ = (
        "base",
        "chunks",
        "gpc",
        "gr",
        "gw",
        "keep",
        "key",
        "name",
        "nbytes",
        "nc_read",
        "readonly",
        "stored",
        "u8",
        "views",
    )

    base: int
    nbytes: int
    name: str
    u8: Any
    readonly: bool
    views: dict[tuple[int, int], Any]
    keep: Any
    key: tuple[int, int]
    stored: bool
    nc_read: bool
    gw: Any
    gr: Any
    gpc: Any
    chunks: dict[int, int] | None

    def tracked(self, off: Any) -> Any:
        """Return where the state of bytes lies in `gw`, `gr`, `gpc`, which grow, so that a vast array costs little."""
        if self.gw is None:
            self.chunks = {} if self.nbytes > MOST_TRACKED else None
            self.gw, self.gr, self.gpc = (np.zeros(0 if self.chunks == {} else self.nbytes, np.int32) for _ in range(3))
        if self.chunks is None:
            return off
        numbers, inverse = np.unique(off // CHUNK, return_inverse=True)
        for number in numbers.tolist():
            self.chunks.setdefault(number, len(self.chunks))
        grown = len(self.chunks) * CHUNK - len(self.gw)
        if grown:
            more = np.zeros(grown, np.int32)
            self.gw, self.gr, self.gpc = (np.concatenate([x, more]) for x in (self.gw, self.gr, self.gpc))
        places = np.array([self.chunks[number] for number in numbers.tolist()])
        return places[inverse] * CHUNK + off % CHUNK

    def view(self, w: Any, vec: int) -> Any:
        """Return the bytes as words of `w` bytes (rows of `vec` words)."""
        v = self.views.get((w, vec))
        if v is None:
            n = self.nbytes // (w * vec) * (w * vec)
            v = self.u8[:n].view(UINT[w])
            if vec > 1:
                v = v.reshape(-1, vec)
            self.views[w, vec] = v
        return v


class Memory:
    """The device address space. Addresses stay valid as long as the object lives.

    Parameters
    ----------
    base : int
        The first address.
    """

    def __init__(self, base: Any = GLOBAL_BASE) -> None:
        self.bases: list[int] = []
        self.allocs: list[Alloc] = []
        self.by_key: dict[tuple[int, int], Alloc] = {}
        self.next = base

    def add(self, arr: Any, name: Any = None, readonly: Any = None) -> Any:
        """Register a NumPy array of any strides; its memory is the device's.

        Parameters
        ----------
        arr : array
            Used where it lies.
        name : str, optional
            For messages.
        readonly : bool, optional
            By default as the array's own flag says.

        Returns
        -------
        int
            Device address of the first element.
        """
        if not isinstance(arr, np.ndarray):
            raise TypeError("Memory.add needs a NumPy array")
        if arr.dtype.hasobject:
            raise TypeError("object arrays have no device representation")
        ptr = arr.__array_interface__["data"][0]
        lo, hi = byte_bounds(arr) if arr.size else (ptr, ptr)
        key = (lo, hi)
        a = self.by_key.get(key) if arr.size else None
        if a is None:
            a = Alloc()
            n = hi - lo
            if n:
                a.u8 = np.frombuffer(memoryview((ctypes.c_uint8 * n).from_address(lo)), dtype=np.uint8)
            else:
                a.u8 = np.zeros(0, np.uint8)
            a.base, a.nbytes, a.views, a.keep, a.key = self.next, n, {}, arr, key
            a.name = name or f"array{len(self.allocs)}"
            a.stored, a.nc_read, a.gw = False, False, None
            a.readonly = (not arr.flags.writeable) if readonly is None else readonly
            self.next += (n + GUARD + 255) // 256 * 256
            k = bisect.bisect(self.bases, a.base)  # module variables of a launch lie in a region of their own
            self.bases.insert(k, a.base)
            self.allocs.insert(k, a)
            self.by_key[key] = a
        elif arr.flags.writeable and not readonly:
            a.readonly = False
        return a.base + (ptr - lo)

    def adopt(self, allocation: Any) -> None:
        """Let an allocation of another memory be seen in this one; its address region is its own."""
        if allocation.base not in self.bases:
            k = bisect.bisect(self.bases, allocation.base)
            self.bases.insert(k, allocation.base)
            self.allocs.insert(k, allocation)

    def find(self, addr: Any) -> Any:
        """Return the last allocation that begins at or before an address, or None."""
        k = bisect.bisect_right(self.bases, addr) - 1
        return self.allocs[k] if k >= 0 else None

    def describe(self, addr: Any) -> Any:
        """Say where an address lies relative to the nearest allocations."""
        addr = int(addr)
        if addr < 4096:
            return "null pointer dereference"
        k = bisect.bisect_right(self.bases, addr) - 1
        best = []
        if k >= 0:
            a = self.allocs[k]
            best.append(
                (
                    addr - a.base - a.nbytes,
                    f"{addr - a.base - a.nbytes} bytes past the end of {a.name!r} ({a.nbytes} bytes)"
                    if addr >= a.base + a.nbytes
                    else f"straddles the end of {a.name!r} ({a.nbytes} bytes) at offset {addr - a.base}",
                )
            )
        if k + 1 < len(self.allocs):
            a = self.allocs[k + 1]
            best.append((a.base - addr, f"{a.base - addr} bytes before {a.name!r} ({a.nbytes} bytes)"))
        return min(best)[1] if best else "no array is registered"
