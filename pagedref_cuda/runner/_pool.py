"""A cache whose pool lies on the device; books and steps are those of the reference."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

import pagedref_cuda
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.memory.stores import ArrayFrames
from pagedref_cuda import _runtime
from pagedref_cuda.fast.words import CacheWords, cache_words
from pagedref_cuda.runner._frames import DeviceFrames

__all__ = ["DIRECT", "DeviceCache"]

DIRECT = True
"""Whether the host's arrays serve where there is no GPU; a test turns it off to walk the route of a GPU."""


class DeviceCache(PagedKVCache):
    """Hold keys and values of float32 where kernels can reach them without a copy.

    Parameters
    ----------
    spec : CacheSpec
        Geometry; stored as float32.
    num_frames : int
        Frames of the pool.
    frame_order : array (num_frames,) of int, optional
        Order in which fresh frames are handed out.
    poison : bool
        Fill frames with NaN before use and after.

    Attributes
    ----------
    lent : list of pair of arrays
        Keys and values of each layer as kernels take them.
    words : list of pair of CacheWords
        The same as words; None where they cannot be read so.

    Notes
    -----
    On a GPU, ``arrays`` gives :class:`pagedref_cuda.DeviceArray`, pages are swapped through pinned buffers, and saving
    is refused. Where there is no GPU, the host's arrays are the device's, and this is a plain cache.
    """

    def __init__(self, spec: CacheSpec, num_frames: int, *, frame_order: Any = None, poison: bool = False) -> None:
        super().__init__(spec, num_frames, backend=pagedref_cuda, frame_order=frame_order, poison=poison)
        self._geometry = super().geometry
        if _runtime.mode() == "gpu" or not DIRECT:
            self._pool: Any = _DevicePool(self._pool, spec.num_layers)
        pairs = [self.arrays(layer) for layer in range(spec.num_layers)]
        self.lent = [(_runtime.readable(keys), _runtime.readable(values)) for keys, values in pairs]
        self.words: list[tuple[CacheWords | None, CacheWords | None]] = [
            (cache_words(keys), cache_words(values)) for keys, values in pairs
        ]


    @property
    def geometry(self) -> dict[str, Any]:
        """What the bytes of a page mean, as on the host."""
        return self._geometry

    def frame_store(self) -> ArrayFrames:
        """Return the frames of this cache as bytes, for swapping (S33).

        Returns
        -------
        ArrayFrames
            Of the same bytes as on the host; writing to it writes the cache.
        """
        return self._pool.frame_store() if isinstance(self._pool, _DevicePool) else super().frame_store()


class _DevicePool:
    """The arrays of a pool, layer by layer, on the device."""

    def __init__(self, pool: Any, num_layers: int) -> None:
        self._layers = [tuple(map(pagedref_cuda.to_device, pool.layer(layer))) for layer in range(num_layers)]

    def layer(self, layer: int) -> Any:
        """Return keys and values of a layer."""
        return self._layers[layer]

    def stored(self, layer: int) -> dict[str, Any]:
        """Return no keywords: plain numbers."""
        return {}

    def frame_arrays(self) -> list[Any]:
        """Return every array whose first axis is the frame."""
        return [array for pair in self._layers for array in pair]

    def frame_store(self) -> DeviceFrames:
        """Return the frames as bytes."""
        keys, values = zip(*self._layers, strict=True)
        return DeviceFrames({"k": list(keys), "v": list(values)})

    def parts(self) -> NoReturn:
        """Refuse what reads and writes the pool from the host."""
        raise ContractError("DeviceCache: pool lies on the device, got a call that saves, need PagedKVCache")

    def poison(self, frames: Any) -> None:
        """Fill frames with NaN."""
        for array in self.frame_arrays():
            for frame in np.arange(array.shape[0])[frames].tolist():
                array[frame] = np.nan
