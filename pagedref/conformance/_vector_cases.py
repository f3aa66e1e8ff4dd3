"""The vectors themselves: for each fault, the smallest batches that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.cache import append_kv, gather_kv
from pagedref.attention.dense import dense_attention
from pagedref.conformance._vector_forms import Expected, Vector, attention_vector, expected_state
from pagedref.conformance.cases import make_case
from pagedref.kv_format import KVFormat

__all__ = ["all_vectors"]

Array = npt.NDArray[Any]


def all_vectors() -> list[Vector]:
    """Return every vector.

    Returns
    -------
    list of Vector
    """
    return [*_addresses(), *_rows(), *_masks(), *_scores(), *_stored(), *_written(), *_merged(), *_refused()]


def _addresses() -> Iterator[Vector]:
    for page_size in (1, 3, 4, 16):
        case = make_case(page_size, [1] * 6, [1, 3, 4, 5, 16, 17], page_size=page_size)
        yield attention_vector(
            "last page counted wrongly: full taken as empty, or as partly filled", f"decode-page-size-{page_size}",
            "lengths around the ends of pages; all that is not live is NaN", case, flags=("decode", "poison"),
        )  # fmt: skip
    case = make_case(21, [3, 1, 2], [6, 9, 3], poison=float("inf"))
    fault = "0 x NaN from the tail: slots without a live token are multiplied by weight 0"
    yield attention_vector(fault, "tail-of-infinity", "Inf in the tails of last pages and in free frames", case,
                           flags=("poison",))  # fmt: skip
    case = make_case(22, [2, 1], [7, 10])
    yield attention_vector(fault, "tail-of-nan", "the same with NaN", case, flags=("poison",))
    case = make_case(23, [1, 1], [5, 8], dtype="float16")
    yield attention_vector(fault, "tail-in-float16", "the same in float16", case, flags=("decode", "poison"))
    case = make_case(24, [2, 3, 1], [5, 12, 3], spare_frames=9)
    yield attention_vector(
        "page table misread: rows swapped, frames taken in order, sequences one token apart", "scattered-frames",
        "frames in random order, some of nobody between them", case, flags=("poison",),
    )  # fmt: skip
    case = make_case(25, [2, 1], [11, 9], window=3)
    holed = case.kv_indices.copy()
    holed[[0, 3]] = -1  # pages behind the window
    yield attention_vector(
        "unmapped pages behind the window are read", "holes-behind-the-window",
        "-1 in the table where no row sees a key", replace(case, kv_indices=holed), flags=("poison", "window"),
    )  # fmt: skip


def _rows() -> Iterator[Vector]:
    fault = "rows that see no key: NaN, mean of V, +inf"
    case = make_case(31, [1, 1, 1], [0, 5, 0])
    yield attention_vector(fault, "decode-without-keys", "sequences without a key beside one with five", case,
                           flags=("decode", "empty"))  # fmt: skip
    case = make_case(32, [5, 1], [2, 4])
    yield attention_vector(fault, "more-queries-than-keys", "five queries over two keys: three see nothing", case,
                           flags=("empty",))  # fmt: skip
    case = make_case(33, [4], [9], window=(3, 0), mask=[np.arange(9) < np.array([0, 0, 2, 9])[:, None]])
    yield attention_vector(fault, "mask-hides-all", "two rows of the mask are empty", case, flags=("empty", "mask"))
    fault = "causal aligned top-left, or off by one"
    case = make_case(34, [5, 2, 3], [5, 9, 8])
    yield attention_vector(fault, "chunks-of-prompts", "row i sits at position kv_len - q_len + i", case)
    case = make_case(35, [4, 1, 0, 3, 1, 0], [4, 11, 6, 7, 1, 0], page_size=3)
    yield attention_vector(fault, "mixed-batch", "prompts, chunks, single tokens, sequences without rows", case,
                           flags=("empty",))  # fmt: skip
    case = make_case(36, [3, 2], [6, 2], causal=False)
    yield attention_vector(fault, "not-causal", "every row sees every key", case)
    fault = "kv head by modulo"
    for kv_heads, group in ((2, 3), (3, 2), (1, 4), (4, 1)):
        case = make_case(37, [2, 1], [3, 6], num_kv_heads=kv_heads, group_size=group)
        yield attention_vector(fault, f"heads-{kv_heads}-by-{group}", f"{kv_heads} kv heads for {kv_heads * group}",
                               case)  # fmt: skip
    case = make_case(38, [1, 2], [3, 4], head_dim=5, v_head_dim=3)
    yield attention_vector("head_dim of v taken for that of k", "values-of-another-size", "head size 5, values 3", case)


def _masks() -> Iterator[Vector]:
    fault = "window counts one key more or less"
    for window in (1, 2, 5):
        case = make_case(41, [4, 1], [9, 6], window=window)
        yield attention_vector(fault, f"window-of-{window}", "the own position counts", case, flags=("window",))
    for left, right in ((2, 1), (None, 0), (0, 2)):
        case = make_case(42, [3, 2], [7, 4], window=(left, right), causal=False)
        yield attention_vector(fault, f"window-{left}-{right}".lower(), "keys beside the own position", case,
                               flags=("window",))  # fmt: skip
    case = make_case(43, [5, 1], [11, 7], attention_chunk=4)
    yield attention_vector("chunk slides, or is cut one position late", "chunk-of-4", "keys of the same chunk", case,
                           flags=("chunk",))  # fmt: skip
    tree = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
    mask = [np.hstack([np.ones((4, 5), bool), tree]), np.ones((1, 3), bool)]
    case = make_case(44, [4, 1], [9, 3], mask=mask)
    fault = "mask inverted, ignored, or read column by column"
    yield attention_vector(fault, "tree-mask", "a tree of four guesses behind five keys", case, flags=("mask",))
    case = make_case(44, [4, 1], [9, 3], mask=mask, causal=True, window=6)
    yield attention_vector(fault, "mask-and-window", "joined by AND with causal and window", case,
                           flags=("mask", "window"))  # fmt: skip


def _scores() -> Iterator[Vector]:
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    for factor in (0.3, 1.0, 2.0):
        case = make_case(51, [2, 1], [5, 8], sm_scale=factor)
        yield attention_vector("sm_scale missing, twice, or divided", f"scale-{factor}", "given, not the default", case)
    fault = "softcap after the mask, without its factor, or overflowing"
    for cap, spread in ((0.7, 1.0), (30.0, 200.0), (0.05, 50.0)):
        case = make_case(52, [3, 1], [7, 5], softcap=cap, spread=spread)
        yield attention_vector(fault, f"softcap-{cap}", "cap * tanh(s / cap), far beyond 88 too", case,
                               flags=("softcap",))  # fmt: skip
    fault = "ALiBi sign or offset"
    case = make_case(53, [1, 1], [6, 9], alibi_slopes=slopes)
    yield attention_vector(fault, "alibi-decode", "slope * (key - query), lse too", case, flags=("alibi", "decode"))
    case = make_case(53, [3, 2], [7, 2], alibi_slopes=slopes, softcap=1.0)
    yield attention_vector(fault, "alibi-behind-softcap", "the bias is not capped", case, flags=("alibi", "softcap"))
    fault = "sink counted once per split, or to base 2"
    sinks = np.array([0.0, -np.inf, 3.0, -2.0], np.float32)
    case = make_case(54, [1, 1], [17, 3], sinks=sinks)
    yield attention_vector(fault, "sinks-decode", "one more logit, without a value; -inf is none", case,
                           flags=("decode", "sinks"))  # fmt: skip
    case = make_case(54, [3, 1], [2, 0], sinks=sinks)
    yield attention_vector(fault, "sinks-without-keys", "out 0, lse = sink", case, flags=("empty", "sinks"))
    fault = "running maximum: overflow, or a finite number that stands for minus infinity"
    case = make_case(55, [1, 2], [33, 20], spread=300.0)
    yield attention_vector(fault, "large-scores", "scores of hundreds", case)
    q, keys = np.full((1, 1, 1), -20_000, np.float32), np.array([1.0, 0.0], np.float32).reshape(2, 1, 1)
    values = np.array([1.0, 100.0], np.float32).reshape(2, 1, 1)
    state = dense_attention(q, keys, values, sm_scale=1.0, mask=np.array([[True, False]]), with_bound=True)
    arguments = {
        "q": q, "qo_indptr": np.array([0, 1], np.int32), "k_cache": keys[None], "v_cache": values[None],
        "kv_indptr": np.array([0, 1], np.int32), "kv_indices": np.zeros(1, np.int32),
        "kv_last_page_len": np.array([2], np.int32), "sm_scale": 1.0, "mask": np.array([True, False]),
    }  # fmt: skip
    yield Vector(fault, "visible-key-of-minus-20000", "the hidden key has the larger score", "paged_prefill",
                 arguments, expected_state(state), ("mask",))  # fmt: skip
    case = make_case(56, [4, 3, 1], [9, 2, 0], window=5, softcap=2.0, alibi_slopes=slopes, sinks=sinks, sm_scale=0.8)
    yield attention_vector("order of steps: scale, softcap, bias, mask, softmax, sink", "all-together",
                           "every variant at once", case,
                           flags=("alibi", "empty", "sinks", "softcap", "window"))  # fmt: skip


def _stored() -> Iterator[Vector]:
    fault = "cache scales not applied, exchanged, or of the wrong head"
    for kind, granularity in (("int8", "tensor"), ("int8", "head"), ("e4m3fn", "head"), ("int8", "slot_head")):
        case = make_case(61, [2, 1], [5, 9], form=KVFormat(kind, granularity))
        name = f"{kind}-by-{granularity}".replace("_", "-")
        yield attention_vector(fault, name, f"{kind}, a scale for each {granularity}", case, flags=("stored",))
    form = KVFormat("int4", "group", group_size=4, zero_point=True)
    case = make_case(62, [2, 1], [5, 9], form=form)
    yield attention_vector("int4 nibble order, zero point ignored", "int4-by-group", "low nibble first", case,
                           flags=("stored",))  # fmt: skip


def _written() -> Iterator[Vector]:
    rows = np.random.default_rng(71).standard_normal((5, 2, 4)).astype(np.float32)
    for name, slots, comment in (
        ("slot-minus-one", [5, -1, 0, -1, 11], "-1 writes nothing at all"),
        ("slots-in-any-order", [11, 3, 4, 0, 7], "each row goes to its own slot"),
    ):
        yield _append("slot -1 writes the last slot", name, comment, rows, -rows, slots, "float32", ("poison",))
    numbers = np.array([448, 464, 465, 1000, -1000, np.inf, -np.inf, 0.4375, 0.0019, -0.0], np.float32)
    numbers = numbers.reshape(-1, 1, 1)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        yield _append("fp8 write overflows to NaN, or does not round to nearest even", f"saturates-{dtype[7:]}",
                      "saturated before the cast", numbers, numbers, list(range(10)), dtype)  # fmt: skip
    nan = np.full((1, 1, 1), np.nan, np.float32)
    vector = _append("fp8 write overflows to NaN, or does not round to nearest even", "nan-stays-nan",
                     "either sign of NaN", nan, nan, [2], "float8_e4m3fn")  # fmt: skip
    both = {}
    for side, expected in vector.expected.items():
        positive, negative = expected.values[0].copy(), expected.values[0].copy()
        positive.view(np.uint8)[0, 2], negative.view(np.uint8)[0, 2] = 0x7F, 0xFF
        both[side] = Expected("either", (positive, negative))
    yield replace(vector, expected=both)
    case = make_case(72, [0, 0, 0], [6, 0, 9])
    keys, values = gather_kv(*case.pages)
    yield Vector("page table misread: rows swapped, frames taken in order, sequences one token apart", "gather",
                 "live tokens, sequence after sequence, bits unchanged", "gather_kv",
                 dict(zip(("k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len"), case.pages,
                          strict=True)),
                 {"keys": Expected("exact", (keys,)), "values": Expected("exact", (values,))}, ("poison",))  # fmt: skip
    twice = _append("one slot named twice", "duplicate-slots", "refused, or one of the two rows lands",
                    rows[:2], rows[:2], [3, 3], "float32")  # fmt: skip
    first, last = (_appended(rows[at : at + 1], rows[at : at + 1], [3], "float32") for at in (0, 1))
    either = {side: Expected("either", (first[side], last[side])) for side in ("k_cache", "v_cache")}
    yield replace(twice, expected=either, outcome="either")


def _append(
    fault: str, name: str, comment: str, k: Array, v: Array, slots: list[int], dtype: str, flags: tuple[str, ...] = ()
) -> Vector:
    """Return a write into a pool of twelve slots, and what the pool is afterwards, untouched slots too."""
    pools = {f"{side}_cache": _pool(k.shape, dtype) for side in "kv"}
    arguments = {"k": k, "v": v, **pools, "slot_mapping": np.array(slots, np.int64)}
    distinct = len({slot for slot in slots if slot >= 0}) == sum(slot >= 0 for slot in slots)
    after = _appended(k, v, slots, dtype) if distinct else {}
    expected = {side: Expected("exact", (after[side],)) for side in after}
    return Vector(fault, name, comment, "append_kv", arguments, expected, flags)


def _pool(shape: tuple[int, ...], dtype: str) -> Array:
    return np.full((3, 4, *shape[1:]), np.nan if dtype == "float32" else 1, np.float32).astype(dtype)


def _appended(k: Array, v: Array, slots: list[int], dtype: str) -> dict[str, Array]:
    caches = {f"{side}_cache": _pool(k.shape, dtype) for side in "kv"}
    append_kv(k, v, caches["k_cache"], caches["v_cache"], np.array(slots, np.int64))
    return caches


def _merged() -> Iterator[Vector]:
    fault = "merge takes one base for another, or NaN from empty states"
    parts = {
        "merge-3-keys-and-1": ([0.0, 1.0], [np.log(3.0), 0.0], "weights 3 and 1: out 1/4, lse ln 4"),
        "merge-with-empty": ([2.5, 7.0], [1.25, -np.inf], "the empty state is the identity, to the bit"),
        "merge-of-empties": ([0.0, 0.0], [-np.inf, -np.inf], "0 and -inf, not NaN"),
        "merge-of-large": ([1.0, -1.0], [900.0, 899.0], "no overflow"),
        "merge-of-four": ([1.0, 2.0, 3.0, 4.0], [0.5, -3.0, -np.inf, 2.0], "one of four is empty"),
    }
    for name, (outs, lses, comment) in parts.items():
        out, lse = np.array(outs, np.float32), np.array(lses, np.float32)
        live = np.isfinite(lse)
        q, keys = np.ones((1, 1, 1), np.float32), lse[live].reshape(-1, 1, 1)
        state = dense_attention(q, keys, out[live].reshape(-1, 1, 1), sm_scale=1.0, causal=False, with_bound=True)
        arguments = {"out": out.reshape(-1, 1, 1, 1), "lse": lse.reshape(-1, 1, 1)}
        exact = live.sum() < 2  # nothing is computed with
        expected = expected_state(state)
        if exact:
            narrow = {side: part.values[0].astype(np.float32) for side, part in expected.items()}
            expected = {side: Expected("exact", (value,)) for side, value in narrow.items()}
        yield Vector(fault, name, comment, "merge_states", arguments, expected, ("empty",) if not live.all() else ())


def _refused() -> Iterator[Vector]:
    case = make_case(91, [2, 1], [6, 4])
    longer = case.kv_last_page_len.copy()
    longer[0] = 5
    far = case.kv_indices.copy()
    far[1] = 999
    hole = case.kv_indices.copy()
    hole[0] = -1
    for name, changed, comment in (
        ("heads-that-do-not-divide", replace(case, q=case.q[:, :3]), "3 query heads over 2 kv heads"),
        ("last-page-too-long", replace(case, kv_last_page_len=longer), "5 positions in a page of 4"),
        ("frame-out-of-range", replace(case, kv_indices=far), "frame 999"),
        ("visible-hole", replace(case, kv_indices=hole), "-1 for a page with a visible key: a page fault"),
        ("window-of-nothing", case.using(window=(-1, 0)), "a negative side"),
        ("softcap-of-0", case.using(softcap=0.0), "the cap must be positive"),
    ):
        yield attention_vector("wrong input accepted", name, comment, changed, flags=("refused",), outcome="refused")
