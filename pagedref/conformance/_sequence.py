"""One sequence of a case under some steps: read, score, average, bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.quantize import dequantize
from pagedref.conformance.cases import PagedCase
from pagedref.numerics import EXP_ULPS, TANH_ULPS, tiny, unit_roundoff
from pagedref.options import AttentionOptions, attention_options

__all__ = ["SequenceSteps"]

Array = npt.NDArray[Any]


class SequenceSteps:
    """One sequence under some steps."""

    def __init__(self, steps: Any, case: PagedCase, sequence: int, q: Array, decode: bool) -> None:
        self.steps, self.case, self.q = steps, case, q.astype(np.float64)
        self.page_size = case.k_cache.shape[1]
        self.frames = case.kv_indices[case.kv_indptr[sequence] : case.kv_indptr[sequence + 1]]
        last = int(case.kv_last_page_len[sequence])
        count = len(self.frames)
        self.kv_len = (count - 1) * self.page_size + int(steps.live(last, self.page_size)) if count else 0
        given = {name: x for name, x in case.keywords.items() if name not in ("mask", "causal", "rotary")}
        mask, causal = case.keywords.get("mask"), case.keywords.get("causal")
        self.mask = None if mask is None else mask[sequence]
        causal = decode or (mask is None if causal is None else causal)
        self.given = case.keywords.get("sm_scale") is not None
        name, dim = "steps", case.q.shape[2]
        self.options: AttentionOptions = attention_options(name, dim, np.float64, causal=causal, **given)

    def read(self, cache: Array, side: str, positions: Array) -> Array:
        """Return stored numbers of some positions: (positions, num_kv_heads, dim)."""
        frames, offsets = self.frames[positions // self.page_size], positions % self.page_size
        rows, stored = cache[frames, offsets], self.case.stored
        form = stored.get("kv_format")
        scale, zero = stored.get(f"{side}_scale"), stored.get(f"{side}_zero")
        if form is None:
            numbers = rows.astype(np.float64)
            return np.asarray(numbers if scale is None else numbers * np.asarray(scale, np.float64)[..., None])
        scale, zero = (
            x if x is None or x.ndim < 2 else x[frames, offsets] if form.computed else x[frames]
            for x in (None if x is None else np.asarray(x) for x in (scale, zero))
        )
        return np.asarray(dequantize(rows, form, scale, zero)).astype(np.float64)

    def attend(self) -> tuple[Array, Array, Array, Array]:
        """Return output, lse and their bounds."""
        steps, heads = self.steps, self.q.shape[1]
        keys, values = (
            self.read(cache, side, np.arange(self.kv_len))
            for cache, side in ((self.case.k_cache, "k"), (self.case.v_cache, "v"))
        )
        num_kv_heads = self.case.k_cache.shape[2]
        of = steps.kv_head(np.arange(heads), heads // num_kv_heads, num_kv_heads) % num_kv_heads
        k, v = keys[:, of], steps.values(keys, values)[:, of]
        scale = float(steps.scale(self.options.sm_scale, self.given, k.shape[2], v.shape[2]))
        scores, seen, error = self.scores(k, scale)
        sinks = self.options.sinks
        sinks = None if sinks is None else np.asarray(steps.sink(sinks.astype(np.float64), scale))
        with np.errstate(all="ignore"):
            out, lse = self.softmax(scores, v, seen, sinks)
            if steps.empty is not None:
                blind = ~seen.any(axis=1)
                found = steps.empty(v, self.kv_len) if blind.any() else None
                if found is not None and sinks is None:
                    out[blind], lse[blind] = found
            if steps.tail and self.kv_len:
                out, lse = self.with_tail(out, lse, of)
        return out, lse, *self.bounds(scores, seen, error, v, lse)

    def scores(self, k: Array, scale: float) -> tuple[Array, Array, Array]:
        """Return final scores (rows, heads, keys), what each row sees (rows, keys), and errors of the scores."""
        steps, options = self.steps, self.options
        q_len, kv_len = len(self.q), self.kv_len
        positions = np.asarray(steps.position(np.arange(q_len), q_len, kv_len)).reshape(-1, 1)
        at = np.arange(kv_len)[None]
        distance = at - positions
        seen = np.ones((q_len, kv_len), bool)
        if options.causal:
            seen &= steps.causal(distance, kv_len - q_len)
        if options.window_left is not None:
            seen &= steps.left(distance, options.window_left)
        if options.window_right is not None:
            seen &= steps.right(distance, options.window_right)
        if options.attention_chunk is not None:
            seen &= steps.chunk(at, positions, options.attention_chunk)
        if self.mask is not None:
            mask = np.zeros((q_len, kv_len), bool)
            mask[:, : self.mask.shape[1]] = self.mask[:, :kv_len]
            seen = np.asarray(steps.mask(mask, seen))
        scores = np.einsum("rhd,khd->rhk", self.q, k)
        units = unit_roundoff("float32")
        sizes = np.einsum("rhd,khd->rhk", np.abs(self.q), np.abs(np.nan_to_num(k)))
        error = units * (k.shape[2] + 4) * abs(scale) * sizes
        for name in steps.order:
            if name == "scale":
                scores = scores * scale
            elif name == "cap" and options.softcap is not None:
                scores = np.asarray(steps.cap(scores, options.softcap))
                error = error + (2 * TANH_ULPS + 4) * units * options.softcap
            elif name == "bias" and options.alibi_slopes is not None:
                slopes = options.alibi_slopes.astype(np.float64)[None, :, None]
                bias = np.asarray(steps.bias(slopes, at[:, None], positions[:, None], kv_len))
                scores, error = scores + bias, error + 4 * units * np.abs(bias)
            elif name == "mask":
                scores = np.where(seen[:, None], scores, steps.hidden(options.softcap))
        return scores, seen, error + 2 * units * np.abs(np.where(np.isfinite(scores), scores, 0))

    def tiles(self) -> Iterator[slice]:
        """Yield the keys that enter at a time."""
        width = self.kv_len if self.steps.tile is None else int(self.steps.tile(self.page_size))
        for start in range(0, self.kv_len, max(width, 1)):
            yield slice(start, min(start + width, self.kv_len))

    def softmax(self, scores: Array, v: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
        """Return output and lse of all rows, by running sums over tiles."""
        steps = self.steps
        q_len, heads, _ = scores.shape
        top = np.full((q_len, heads), -np.inf)
        total, mean = np.zeros((q_len, heads)), np.zeros((q_len, heads, v.shape[2]))
        for tile in self.tiles():
            new = np.maximum(top, steps.top(scores[:, :, tile].max(axis=-1)))
            shift = np.where(np.isneginf(new), 0, new)
            factor = np.where(np.isneginf(top), 0, steps.exp(top - shift))
            weights = np.where(np.isneginf(scores[:, :, tile]), 0, steps.exp(scores[:, :, tile] - shift[..., None]))
            total = (total * factor if steps.rescale_total else total) + weights.sum(axis=-1)
            mean = (mean * factor[..., None] if steps.rescale_mean else mean) + _select(weights, v[tile])
            top = new
        if sinks is not None:
            height = np.broadcast_to(sinks, (q_len, heads))
            new = np.maximum(top, height)
            shift = np.where(np.isneginf(new), 0, new)
            factor = np.where(np.isneginf(top), 0, steps.exp(top - shift))
            count = np.asarray(steps.sink_count(seen.sum(axis=1), self.page_size))[:, None]
            weight = np.where(count == 0, 0, steps.exp(height - shift)) * count
            total, mean = total * factor + weight, mean * factor[..., None]
            top = np.where((count == 0) & (total == 0), -np.inf, new)
        divisor = steps.total(total)
        out = mean / np.where(total == 0, 1, divisor)[..., None]
        lse = np.where(total == 0, -np.inf, steps.lse(np.where(np.isneginf(top), 0, top), total))
        return np.where((total == 0)[..., None], 0, out), lse

    def with_tail(self, out: Array, lse: Array, of: Array) -> tuple[Array, Array]:
        """Add the slots behind the last token with weight 0."""
        size = len(self.frames) * self.page_size
        tail = np.arange(self.kv_len, size)
        v = self.read(self.case.v_cache, "v", tail)[:, of]
        out = out + (0 * v).sum(axis=0)
        if "k" in self.steps.tail:
            k = self.read(self.case.k_cache, "k", tail)[:, of]
            dead = (0 * np.einsum("rhd,khd->rhk", self.q, k)).sum(axis=-1)
            out, lse = out + dead[..., None], lse + dead
        return out, lse

    def bounds(self, scores: Array, seen: Array, error: Array, v: Array, lse: Array) -> tuple[Array, Array]:
        """Bound output and lse of a float32 backend from the largest error of a score."""
        units, shape = unit_roundoff("float32"), (*scores.shape[:2], v.shape[2])
        if not self.kv_len:
            return np.zeros(shape), 8 * units * np.where(np.isfinite(lse), np.abs(lse), 0)
        shown = np.where(seen[:, None] & np.isfinite(error), error, 0).max(axis=-1)
        used = np.where(seen[:, None] & np.isfinite(scores), scores, np.nan)
        spread = np.fmax.reduce(used, axis=-1) - np.fmin.reduce(used, axis=-1)
        spread = np.where(np.isfinite(spread), spread, 0)
        relative = np.expm1(2 * shown + units * (4 * spread + (4 * EXP_ULPS + 8) * (self.kv_len + 8)))
        largest = np.abs(np.nan_to_num(v, nan=0, posinf=0, neginf=0)).max(initial=0.0)
        out_bound = np.broadcast_to((2 * relative * largest + tiny("float32"))[..., None], shape)
        return out_bound, relative + 8 * units * np.where(np.isfinite(lse), np.abs(lse) + 1, 0)


def _select(weights: Array, v: Array) -> Array:
    """Return sums over keys; a weight of 0 selects nothing, whatever the value is (S7)."""
    if np.isfinite(v).all():
        return np.asarray(np.einsum("rhk,khd->rhd", weights, v))
    terms = np.where(weights[..., None] == 0, 0, weights[..., None] * v.transpose(1, 0, 2)[None])
    return np.asarray(terms.sum(axis=2))
