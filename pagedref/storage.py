"""The stored form of both caches of a call: format, scales and zero points, checked (S15-S18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.errors import ContractError
from pagedref.kv_format import GRANULARITIES, KINDS, KVFormat

__all__ = ["Shape", "Storage", "storage", "unpacked"]

Float32 = npt.NDArray[np.float32]


class Shape(NamedTuple):
    """Shape and type of an array as the contract sees it: two int4 in a byte count as two."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Storage:
    """How one of the caches is stored.

    Attributes
    ----------
    form : KVFormat
        Format of the numbers.
    scale, zero : array of float32 or None
        Scales and zero points; shapes as in :meth:`pagedref.kv_format.KVFormat.scale_shape`.
    """

    form: KVFormat
    scale: Float32 | None = None
    zero: Float32 | None = None

    @property
    def plain(self) -> bool:
        """Whether stored numbers are what they are read as, up to their type."""
        return self.scale is None and self.zero is None

    @property
    def whole(self) -> Float32 | None:
        """The scale of everything, or of each kv head: shape () or (num_kv_heads,); None if there is none."""
        return self.scale if self.scale is not None and self.scale.ndim < 2 else None

    @property
    def by_token(self) -> bool:
        """Whether a scale covers a frame or a slot of one head, without zero points: one factor of a score."""
        return self.scale is not None and self.scale.ndim in (2, 3) and self.zero is None

    def check_frames(self, function: str, name: str, frames: Any) -> None:
        """Refuse scales of frames in use that are no scales; those of frames without content may hold anything.

        Parameters
        ----------
        function, name : str
            Operation and argument.
        frames : array of int64
            Frames that are read or written.

        Raises
        ------
        ContractError
            A scale is not positive and finite (S17).
        """
        if self.scale is not None and self.scale.ndim == 2 and len(frames):
            scales = np.asarray(self.scale)[frames]
            if not ((scales > 0) & np.isfinite(scales)).all():
                rule = "finite and > 0 for frames in use (S17)"
                validate.fail(function, name, "is out of range", float(scales.min()), rule)

    def of_frames(self, frames: Any) -> tuple[Any, Any]:
        """Return scales and zero points of some frames, to broadcast against (frames, page_size, num_kv_heads).

        Parameters
        ----------
        frames : array of int64
            Frames.

        Returns
        -------
        scale, zero : arrays or None
        """
        return self._pick(self.scale, frames), self._pick(self.zero, frames)

    def of_tokens(self, frames: Any, page_size: int) -> Any:
        """Return the scale of each token of some frames, for :attr:`by_token`.

        Parameters
        ----------
        frames : array of int64
            Frames.
        page_size : int
            Slots in a frame.

        Returns
        -------
        array (frames * page_size, num_kv_heads) of float32
        """
        scale = self.of_frames(frames)[0]
        if scale.shape[1] == 1 != page_size:
            scale = np.repeat(scale, page_size, axis=1)
        return scale.reshape(-1, scale.shape[-1])

    @staticmethod
    def _pick(array: Float32 | None, frames: Any) -> Any:
        if array is None or array.ndim < 2:
            return array
        return array[frames][:, None] if array.ndim == 2 else array[frames]


def unpacked(cache: Any, kv_format: object) -> Any:
    """Return what the contract sees of a cache.

    Parameters
    ----------
    cache : array
        Keys or values.
    kv_format : KVFormat, str or None
        As given to the call.

    Returns
    -------
    array or Shape
        The array itself, or its shape with the last axis doubled where a byte holds two int4.
    """
    kind = kv_format.kind if isinstance(kv_format, KVFormat) else kv_format
    if not isinstance(kind, str) or kind != "int4" or not hasattr(cache, "shape") or not cache.shape:
        return cache
    return Shape((*cache.shape[:-1], 2 * cache.shape[-1]), cache.dtype)


def storage(function: str, side: str, cache: Any, dims: Mapping[str, int], keywords: Mapping[str, Any]) -> Storage:
    """Check format, scales and zero points of one cache.

    Parameters
    ----------
    function : str
        Operation.
    side : str
        ``"k"`` or ``"v"``.
    cache : array
        ``k_cache`` or ``v_cache``.
    dims : mapping
        Sizes of the named dimensions of the contract.
    keywords : mapping
        ``kv_format``, ``k_scale``, ``v_scale``, ``k_zero``, ``v_zero`` as given.

    Returns
    -------
    Storage
        The stored form.

    Raises
    ------
    ContractError
        The type of the cache is not that of the format, scales are missing or have the wrong shape, type or range.
    """
    given = keywords.get("kv_format")
    scale = _numbers(function, f"{side}_scale", keywords.get(f"{side}_scale"))
    zero = _numbers(function, f"{side}_zero", keywords.get(f"{side}_zero"))
    granularity = None if scale is None else GRANULARITIES[scale.ndim]
    if isinstance(given, KVFormat):
        form = given
    elif given is None or isinstance(given, str):
        if given is None and cache.dtype == np.uint8:
            validate.fail(function, "kv_format", "is missing", None, "a format: uint8 says nothing by itself (S15)")
        if given is not None and given not in KINDS:
            validate.fail(function, "kv_format", "is not a kind", given, f"one of {', '.join(KINDS)} (S15)")
        kind = given or KVFormat.of(cache.dtype).kind
        if KINDS[kind].integer and scale is None:
            rule = "a scale: integers mean nothing without one (S16)"
            validate.fail(function, f"{side}_scale", "is missing", None, rule)
        dim = dims["head_dim" if side == "k" else "v_head_dim"]
        group = dim // max(scale.shape[-1], 1) if scale is not None and granularity == "group" else None
        try:
            form = KVFormat(kind, granularity, group or (1 if granularity == "group" else None), zero is not None)
        except ContractError as error:
            what, found = ("zero", "zero points") if zero is not None else ("scale", f"{granularity} scales")
            validate.fail(function, f"{side}_{what}", "does not fit the format", f"{found} for {kind}", str(error))
    else:
        validate.fail(function, "kv_format", "is not a format", repr(given), "a KVFormat, the name of a kind, or None")
    if cache.dtype != form.dtype:
        validate.fail(function, f"{side}_cache", "has the wrong type", cache.dtype, f"{form.dtype} for {form.kind}")
    dim = dims["head_dim" if side == "k" else "v_head_dim"]
    form.stored_dim(dim)
    shape = form.scale_shape(dims["num_frames"], dims["page_size"], dims["num_kv_heads"], dim)
    for name, array, wanted in ((f"{side}_scale", scale, True), (f"{side}_zero", zero, form.zero_point)):
        needed = shape if wanted else None
        if (array is None) != (needed is None) or (array is not None and array.shape != needed):
            got = None if array is None else array.shape
            rule = "None" if needed is None else f"{needed} for granularity {form.granularity} (S17)"
            validate.fail(function, name, "does not fit the format", got, rule)
        if array is not None and array.ndim < 2 and not (np.isfinite(array).all() and (array > 0).all()):
            validate.fail(function, name, "is out of range", array.min(), "finite and > 0 (S17)")
    return Storage(form, scale, zero)


def _numbers(function: str, name: str, value: Any) -> Float32 | None:
    """Read scales: a number, or an array of float32 that is kept as it is."""
    if value is None:
        return None
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            with np.errstate(over="ignore"):
                return np.asarray(float(value)).astype(np.float32)
        except OverflowError:
            validate.fail(function, name, "is out of range", value, "a number of float32 (S17)")
    if getattr(value, "dtype", None) != np.float32:
        got = getattr(value, "dtype", type(value).__name__)
        validate.fail(function, name, "has the wrong type", got, "a number or an array of float32 (S17)")
    if value.ndim >= len(GRANULARITIES):
        rule = f"at most {len(GRANULARITIES) - 1} dimensions (S17)"
        validate.fail(function, name, "has the wrong number of dimensions", value.shape, rule)
    array: Float32 = value
    return array
