"""The arrays of a cache: keys, values and scales of every layer, frame by frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError

__all__ = ["FramePool"]

Array = npt.NDArray[Any]
_INTEGER_POISON = 0x77  # the largest code of int4 twice, and a large int8: integers have no NaN


class FramePool:
    """Hold what lies in the frames of a pool.

    Parameters
    ----------
    spec : CacheSpec
        Geometry and format.
    num_frames : int
        Frames.
    scales : mapping of str to float or array of float32
        ``k_scale`` and ``v_scale`` where the format takes them as input: of the shape of one layer, or with an axis of
        layers before it.
    poison : bool
        Fill everything with NaN (the largest codes in integers).

    Raises
    ------
    ContractError
        Scales are missing, not wanted, or of the wrong shape.
    """

    def __init__(self, spec: CacheSpec, num_frames: int, scales: dict[str, Any], *, poison: bool) -> None:
        self._spec = spec
        form = spec.form
        heads = (num_frames, spec.page_size, spec.num_kv_heads)
        self._numbers: dict[str, Array] = {}
        self._scales: dict[str, Array] = {}
        for side, dim in (("k", spec.head_dim), ("v", spec.value_dim)):
            # memory is taken when a frame is first written
            self._numbers[side] = np.zeros((spec.num_layers, *heads, form.stored_dim(dim)), form.dtype)
            shape, given = form.scale_shape(*heads, dim), scales.get(f"{side}_scale")
            if shape is None or form.computed:
                if given is not None:
                    raise ContractError(
                        f"PagedKVCache: {side}_scale is not wanted, got a value, need None for {form.kind} "
                        f"with granularity {form.granularity} (S17)"
                    )
                if shape is not None:
                    self._scales[f"{side}_scale"] = np.zeros((spec.num_layers, *shape), np.float32)
                    if form.zero_point:
                        self._scales[f"{side}_zero"] = np.zeros((spec.num_layers, *shape), np.float32)
                continue
            with np.errstate(over="ignore"):
                whole = np.asarray(np.nan if given is None else given).astype(np.float32)
            sound = np.isfinite(whole).all() and (whole > 0).all()
            if whole.shape not in (shape, (spec.num_layers, *shape), ()) or not sound:
                raise ContractError(
                    f"PagedKVCache: {side}_scale is wrong, got {'None' if given is None else whole.shape}, "
                    f"need positive finite numbers {shape} for granularity {form.granularity} (S17)"
                )
            self._scales[f"{side}_scale"] = np.broadcast_to(whole, (spec.num_layers, *shape)).copy()
        if poison:
            self.poison(slice(None))

    def layer(self, layer: int) -> tuple[Array, Array]:
        """Return keys and values of a layer: views (num_frames, page_size, num_kv_heads, dim)."""
        return self._numbers["k"][layer], self._numbers["v"][layer]

    def stored(self, layer: int) -> dict[str, Any]:
        """Return the keywords that tell an operation how a layer is stored; none for plain numbers."""
        if self._spec.form.granularity is None:
            return {}
        return {"kv_format": self._spec.form, **{name: array[layer] for name, array in self._scales.items()}}

    def frame_arrays(self) -> list[Array]:
        """Return every array whose first axis is the frame: what moves when a frame moves (S18)."""
        arrays = [array for whole in self._numbers.values() for array in whole]
        if self._spec.form.granularity in ("frame_head", "slot_head", "group"):
            arrays += [array for whole in self._scales.values() for array in whole]
        return arrays

    def parts(self) -> dict[str, tuple[str, Array]]:
        """Return every array by name, layers first, with what it has an entry for: "slot", "frame" or "cache"."""
        covers = {"tensor": "cache", "head": "cache", "frame_head": "frame"}
        axis = covers.get(self._spec.form.granularity or "", "slot")
        numbers = {side: ("slot", array) for side, array in self._numbers.items()}
        return {**numbers, **{name: (axis, array) for name, array in self._scales.items()}}

    def poison(self, frames: Any) -> None:
        """Fill frames with what must never be read."""
        for numbers in self._numbers.values():
            numbers[:, frames] = _INTEGER_POISON if self._spec.form.integer else np.nan
        if self._spec.form.computed:
            for scales in self._scales.values():
                scales[:, frames] = np.nan
