"""Slips of movement and merging: append, gather, copy and merge with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention.quantize import pack_int4
from pagedref.attention.state import AttentionState
from pagedref.contract import OPERATIONS
from pagedref.kv_format import KINDS, KVFormat

__all__ = ["MOVE_SLIPS", "MoveSlip"]

Array = npt.NDArray[Any]
Codes = Callable[[Array, KVFormat, Any], Array]


@dataclass(frozen=True)
class MoveSlip:
    """A declared mistake of an operation beside attention.

    Attributes
    ----------
    name : str
        One word.
    text : str
        What a diagnosis says.
    rule : str
        The rule that it breaks.
    operation : str
        The operation that has it.
    function : callable
        The wrong operation.
    dialect : bool
        Whether it is a convention of others.
    """

    name: str
    text: str
    rule: str
    operation: str
    function: Callable[..., Any]
    dialect: bool = False

    @property
    def backend(self) -> SimpleNamespace:
        """All operations of the contract, one of them wrong."""
        right = {name: getattr(reference, name) for name in OPERATIONS}
        return SimpleNamespace(**{**right, self.operation: self.function})


def _append(change: Callable[..., Any]) -> Callable[..., None]:
    """Return an append that hands changed arguments to the right one."""

    def append_kv(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **stored: Any) -> None:
        reference.append_kv(*change(k, v, k_cache, v_cache, slot_mapping), **stored)

    return append_kv


def _last_slot(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    last = k_cache.shape[0] * k_cache.shape[1] - 1
    skipped = np.flatnonzero(slots == -1)
    kept = np.concatenate([np.flatnonzero(slots != -1), skipped[-1:]])
    return k[kept], v[kept], k_cache, v_cache, np.where(slots == -1, last, slots)[kept]


def _first_slot(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    kept = np.concatenate([np.flatnonzero(slots > 0), np.flatnonzero(slots <= 0)[-1:]])
    return k[kept], v[kept], k_cache, v_cache, np.maximum(slots, 0)[kept]


def _stops(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    stop = int(np.argmax(slots == -1)) if (slots == -1).any() else len(slots)
    return k[:stop], v[:stop], k_cache, v_cache, slots[:stop]


def _closes_up(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    live = slots[slots >= 0]
    return k[: len(live)], v[: len(live)], k_cache, v_cache, live


def _offset_first(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    frames, page_size = k_cache.shape[:2]
    turned = (slots % frames) * page_size + slots // frames
    return k, v, k_cache, v_cache, np.where(slots >= 0, turned, -1)


def _in_order(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    return k, v, k_cache, v_cache, np.arange(len(slots))


def _keys_alone(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    return k, v, k_cache, v_cache.copy(), slots


def _exchanged(k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Array) -> Any:
    return (v, k, k_cache, v_cache, slots) if k.shape == v.shape else (k, v, k_cache, v_cache, slots)


def _codes(codes: Codes) -> Callable[..., None]:
    """Return an append that computes other codes from the right scales."""

    def append_kv(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **stored: Any) -> None:
        reference.append_kv(k, v, k_cache, v_cache, slot_mapping, **stored)
        form = stored.get("kv_format") or KVFormat.of(k_cache.dtype)
        live = slot_mapping >= 0
        frames, offsets = np.divmod(slot_mapping[live], k_cache.shape[1])
        for rows, cache, side in ((k, k_cache, "k"), (v, v_cache, "v")):
            scale, zero = (
                None if x is None else _of_rows(np.asarray(x, np.float32), form, frames, offsets, rows.shape[-1])
                for x in (stored.get(f"{side}_scale"), stored.get(f"{side}_zero"))
            )
            with np.errstate(all="ignore"):
                ratio = rows[live] if scale is None else rows[live] / scale
                cache[frames, offsets] = codes(ratio if zero is None else ratio + zero, form, scale)

    return append_kv


def _of_rows(numbers: Array, form: KVFormat, frames: Array, offsets: Array, dim: int) -> Array:
    """Return scales or zero points of rows, as they multiply: (rows, num_kv_heads, dim) or less."""
    if numbers.ndim < 2:
        return numbers[..., None]
    rows = numbers[frames, offsets] if form.computed else numbers[frames]
    return np.repeat(rows, dim // rows.shape[-1], axis=-1) if form.granularity == "group" else rows[..., None]


def _range(form: KVFormat) -> tuple[float, float]:
    if form.kind == "int4":
        return (0.0, 15.0) if form.zero_point else (-8.0, 7.0)
    largest = KINDS[form.kind].largest
    return -largest, largest


def _store(numbers: Array, form: KVFormat) -> Array:
    """Return numbers on the grid of a format as they are stored."""
    if form.kind == "int4":
        return pack_int4(numbers.astype(np.int8).view(np.uint8) & np.uint8(15))
    return numbers.astype(form.dtype)


def _toward_zero(ratio: Array, form: KVFormat, scale: Any) -> Array:
    low, high = _range(form)
    if form.integer:
        return _store(np.trunc(np.clip(ratio, low, high)), form)
    near = np.clip(ratio, low, high).astype(form.dtype)
    step = np.abs(near.astype(np.float64)) > np.abs(ratio)
    down = (near.view(f"u{near.itemsize}") - step.astype(f"u{near.itemsize}")).view(form.dtype)
    return np.asarray(np.where(step, down, near))


def _unsaturated(ratio: Array, form: KVFormat, scale: Any) -> Array:
    if form.integer:
        whole = np.rint(np.nan_to_num(ratio, nan=0, posinf=2.0**62, neginf=-(2.0**62))).astype(np.int64)
        return _store(whole & 15 if form.kind == "int4" else whole.astype(np.int8), form)
    return ratio.astype(form.dtype)


def _right(ratio: Array, form: KVFormat) -> Array:
    low, high = _range(form)
    clipped = np.clip(ratio, low, high)
    return _store(np.rint(clipped) if form.integer else clipped.astype(np.float32), form)


def _nibbles(ratio: Array, form: KVFormat, scale: Any) -> Array:
    stored = _right(ratio, form)
    return (stored << 4) | (stored >> 4) if form.kind == "int4" else stored


def _plain_alone(wrong: Callable[..., None]) -> Callable[..., None]:
    """Return an append that is wrong where the call names no format."""

    def append_kv(*arrays: Array, **stored: Any) -> None:
        (wrong if stored.get("kv_format") is None else reference.append_kv)(*arrays, **stored)

    return append_kv


def _times(power: int) -> Codes:
    """Return codes of numbers that are multiplied by a power of their scale once more."""
    return lambda ratio, form, scale: _right(ratio if scale is None else ratio * scale**power, form)


def _merge(weigh: Callable[[Array], Array], finish: Callable[[Array, Array], Array], guarded: bool = True) -> Any:
    """Return a merge with other weights or another lse."""

    def merge_states(out: Array, lse: Array, *, out_state: Any = None) -> AttentionState:
        with np.errstate(all="ignore"):
            wide = lse.astype(np.float64)
            top = wide.max(axis=0, initial=-np.inf)
            shift = np.where(np.isneginf(top), 0, top) if guarded else top
            weights = weigh(wide - shift)
            total = weights.sum(axis=0)
            mean = (weights[..., None] * out).sum(axis=0) / np.where(guarded & (total == 0), 1, total)[..., None]
            state = AttentionState(mean.astype(out.dtype), np.asarray(finish(shift, total)).astype(lse.dtype))
        if out_state is None:
            return state
        out_state.out[...], out_state.lse[...] = state
        return AttentionState(*out_state)

    return merge_states


def _natural(top: Array, total: Array) -> Array:
    return np.asarray(top + np.log(total))


def _unshifted(out: Array, lse: Array, *, out_state: Any = None) -> AttentionState:
    weights = np.exp(lse.astype(np.float32))
    total = weights.sum(axis=0)
    mean = (weights[..., None] * out).sum(axis=0) / np.where(total == 0, 1, total)[..., None]
    state = AttentionState(mean.astype(out.dtype), np.log(total).astype(lse.dtype))
    if out_state is None:
        return state
    out_state.out[...], out_state.lse[...] = state
    return AttentionState(*out_state)


def _copy_first(arrays: Any, src: Array, dst: Array) -> None:
    reference.copy_frames(arrays[:1], src, dst)


def _copy_back(arrays: Any, src: Array, dst: Array) -> None:
    for array in arrays:
        array[src] = array[dst]


def _copy_half(arrays: Any, src: Array, dst: Array) -> None:
    for array in arrays:
        rows = array.reshape(len(array), -1)
        half = max(rows.shape[1] // 2, 1)
        rows[dst, :half] = rows[src, :half]


MOVE_SLIPS: tuple[MoveSlip, ...] = (
    MoveSlip("slot_minus_1_writes", "slot -1 writes the last slot", "S22", "append_kv", _append(_last_slot)),
    MoveSlip("slot_minus_1_is_0", "slot -1 writes slot 0", "S22", "append_kv", _append(_first_slot)),
    MoveSlip("slot_minus_1_ends", "the first slot -1 ends the write", "S22", "append_kv", _append(_stops)),
    MoveSlip("slot_minus_1_shifts", "slot -1 is dropped and later rows move up", "S22", "append_kv",
             _append(_closes_up)),
    MoveSlip("slots_turned", "slots count offsets first: slot % num_frames is the frame", "S19", "append_kv",
             _append(_offset_first)),
    MoveSlip("slots_ignored", "rows are written one after the other, slots are ignored", "S22", "append_kv",
             _append(_in_order)),
    MoveSlip("values_not_written", "values are not written", "S22", "append_kv", _append(_keys_alone)),
    MoveSlip("keys_in_values", "keys and values are exchanged at the write", "S22", "append_kv", _append(_exchanged)),
    MoveSlip("rounds_toward_zero", "stored numbers are rounded toward zero", "S16", "append_kv", _codes(_toward_zero)),
    MoveSlip("no_saturation", "no saturation: numbers out of range become NaN, infinite or wrap", "S16", "append_kv",
             _codes(_unsaturated)),
    MoveSlip("no_saturation_plain", "no saturation in caches without a declared format", "S16", "append_kv",
             _plain_alone(_codes(_unsaturated))),
    MoveSlip("append_nibbles", "int4 nibble order: the first number goes to the high nibble", "S16", "append_kv",
             _codes(_nibbles)),
    MoveSlip("append_scale_ignored", "the write does not divide by the cache scale", "S16", "append_kv",
             _codes(_times(1))),
    MoveSlip("append_scale_twice", "the write divides by the cache scale twice", "S16", "append_kv",
             _codes(_times(-1))),
    MoveSlip("append_scale_times", "the write multiplies by the cache scale", "S16", "append_kv", _codes(_times(2))),
    MoveSlip("merge_base_2", "a natural lse is merged as base 2", "S10", "merge_states",
             _merge(np.exp2, lambda top, total: top + np.log2(total)), True),
    MoveSlip("merge_nan_for_empty", "merging nothing with nothing is NaN: -inf minus -inf", "S10", "merge_states",
             _merge(np.exp, _natural, guarded=False)),
    MoveSlip("merge_unshifted", "merge takes exp(lse) without subtracting the maximum", "S10", "merge_states",
             _unshifted),
    MoveSlip("merge_plain_mean", "merge is the plain mean of the outputs", "S10", "merge_states",
             _merge(lambda x: np.where(np.isneginf(x), 0.0, 1.0), _natural)),
    MoveSlip("merge_plain_mean_lse", "merge is the plain mean of the outputs (lse is right)", "S10", "merge_states",
             lambda out, lse, out_state=None: AttentionState(out.mean(axis=0), reference.merge_states(out, lse).lse)),
    MoveSlip("merge_lse_maximum", "the merged lse is the largest lse", "S10", "merge_states",
             _merge(np.exp, lambda top, total: np.where(total == 0, -np.inf, top))),
    MoveSlip("merge_lse_without_maximum", "the merged lse lacks the largest lse", "S10", "merge_states",
             _merge(np.exp, lambda top, total: np.log(total))),
    MoveSlip("copy_first_array", "only the first array is copied", "S18", "copy_frames", _copy_first),
    MoveSlip("copy_backwards", "src and dst are exchanged", "S27", "copy_frames", _copy_back),
    MoveSlip("copy_half", "half of each frame is copied", "S27", "copy_frames", _copy_half),
)  # fmt: skip
"""Slips of append, merge and copy; those of gather are the slips of attention that change what is read."""
