"""Ordered attention on the device has the bits of NumPy: 1,000 random cases, every option, page size and split."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pagedref.attention as reference
from pagedref.attention import elementary
from pagedref.conformance import PagedCase, assert_exact, make_case
from pagedref.kv_format import KVFormat

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda  # noqa: E402

from pagedref_cuda import _runtime  # noqa: E402
from pagedref_cuda.elementary import ordered_exp, ordered_lse, ordered_tanh  # noqa: E402
from pagedref_cuda.tree import tree_sum  # noqa: E402

BATCHES, SEQUENCES, LONGEST = (6, 4, 70) if _runtime.SIMULATOR else (25, 40, 140)
FORMS = (
    *(None, KVFormat("float16"), KVFormat("bfloat16"), KVFormat("e4m3fn", "head"), KVFormat("e5m2", "tensor")),
    *(KVFormat("int8", "slot_head"), KVFormat("float16", "frame_head"), KVFormat("int4", "group", 2, zero_point=True)),
)
SPLITS: tuple[Any, ...] = (None, 1, 2, 7, [32], [40, 64, 100], np.array([0, 96]), 10**9)


def batch(number: int) -> tuple[PagedCase, Any]:
    """Draw a batch of cases with common options, and a way to split it."""
    rng = np.random.default_rng([5, number])
    lengths = rng.integers(0, LONGEST, SEQUENCES)
    lengths[: SEQUENCES // 4] %= 40
    rows = np.minimum(rng.integers(0 if number % 3 else 1, 3, SEQUENCES), lengths + 1)
    kv_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    heads = kv_heads * group
    keywords: dict[str, Any] = {}
    if rng.random() < 0.3:
        keywords["softcap"] = float(rng.choice([0.5, 3.0, 50.0, 1e39]))
    if rng.random() < 0.3:
        keywords["window"] = [int(rng.integers(1, 90)), (5, 3), (None, 2)][int(rng.integers(3))]
    if rng.random() < 0.2:
        keywords["attention_chunk"] = int(rng.integers(1, 90))
    if rng.random() < 0.3:
        keywords["alibi_slopes"] = rng.uniform(0, 1, heads).astype(np.float32)
    if rng.random() < 0.3:
        keywords["sinks"] = np.where(rng.random(heads) < 0.3, -np.inf, rng.normal(size=heads)).astype(np.float32)
    if rng.random() < 0.3:
        keywords["causal"] = bool(rng.random() < 0.5)
    if rng.random() < 0.3:
        keywords["mask"] = [rng.random((q_len, kv_len)) < 0.5 for q_len, kv_len in zip(rows, lengths, strict=True)]
    if rng.random() < 0.3:
        keywords["sm_scale"] = float(rng.normal())
    case = make_case(
        number,
        rows.tolist(),
        lengths.tolist(),
        page_size=int(rng.choice([1, 2, 3, 7, 16, 32, 50])),
        num_kv_heads=kv_heads,
        group_size=group,
        head_dim=2 * int(rng.integers(1, 9)),
        v_head_dim=2 * int(rng.integers(1, 7)),
        form=FORMS[number % len(FORMS)],
        spread=float(rng.choice([1.0, 30.0, 1000.0])),
        **keywords,
    )
    dtype = [np.float32, np.float16, ml_dtypes.bfloat16][int(rng.choice(3, p=[0.6, 0.2, 0.2]))]
    return replace(case, q=case.q.astype(dtype)), SPLITS[int(rng.integers(len(SPLITS)))]


def equal(actual: Any, expected: Any, what: str) -> None:
    assert_exact(np.asarray(actual.out), np.asarray(expected.out), f"output, {what}")
    assert_exact(np.asarray(actual.lse), np.asarray(expected.lse), f"lse, {what}")


@pytest.mark.parametrize("number", range(BATCHES))
def test_the_bits_are_those_of_numpy(number: int) -> None:
    case, splits = batch(number)
    given = case.q, case.qo_indptr, *case.pages
    expected = reference.ordered_prefill(*given, **case.keywords, **case.stored)
    actual = twin.ordered_prefill(*given, **case.keywords, **case.stored, splits=splits)
    equal(actual, expected, f"splits {splits}, {case.stored.get('kv_format')}, {sorted(case.keywords)}")


def test_decode_has_the_bits_of_numpy() -> None:
    for number, page_size in enumerate((1, 16)):
        case = make_case(number, [1] * 5, [33, 1, 0, 64, 7], page_size=page_size, window=40)
        expected = reference.ordered_decode(case.q, *case.pages, window=40)
        for splits in (None, 2):
            equal(twin.ordered_decode(case.q, *case.pages, window=40, splits=splits), expected, f"decode, {splits}")


def test_nan_and_infinity_have_the_bits_of_numpy() -> None:
    """In queries, keys and values, seen and hidden."""
    rng = np.random.default_rng(9)
    case = make_case(9, [2, 3], [40, 5], page_size=8)
    for strange in (np.nan, -np.inf, np.inf, np.float32(3e38)):
        q, k_cache, v_cache = case.q.copy(), case.k_cache.copy(), case.v_cache.copy()
        for array in (q, k_cache, v_cache):
            array.reshape(-1)[rng.integers(0, array.size, 6)] = strange
        odd = replace(case, q=q, k_cache=k_cache, v_cache=v_cache)
        given = odd.q, odd.qo_indptr, *odd.pages
        equal(twin.ordered_prefill(*given), reference.ordered_prefill(*given), f"{strange} here and there")


def _elementary(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i >= x.shape[0]:
        return
    out[0, i] = ordered_exp(x[i])
    out[1, i] = ordered_tanh(x[i])
    out[2, i] = ordered_lse(x[i], x[i])


def test_elementary_functions_have_the_bits_of_numpy() -> None:
    count = 2_000 if _runtime.SIMULATOR else 200_000
    x = np.random.default_rng(1).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    out = np.zeros((3, count), np.float32)
    kernel = _runtime.Kernel(_elementary, (("float32[:]", "float32[:, :]"),), _runtime.CompileOptions(fma=False))
    with _runtime.written(out) as lent:
        kernel.launch(count, _runtime.readable(x), *lent)
    functions = (elementary.ordered_exp, elementary.ordered_tanh, lambda x: elementary.ordered_lse(x, x))
    with np.errstate(all="ignore"):
        for row, function in zip(out, functions, strict=True):
            expected = function(x)
            number = ~np.isnan(expected)
            assert_exact(np.isnan(row), ~number, "where there is no number")
            assert_exact(row[number], expected[number], "elementary function")


def test_fused_products_are_noticed() -> None:
    """The same kernels with contraction give other bits: the comparison can fail, and the option does something."""
    if _runtime.SIMULATOR:
        pytest.skip("the simulator fuses nothing")
    from pagedref_cuda.ordered_rows import ordered_part_1

    case = make_case(3, [1] * 8, [60] * 8, spread=3.0)
    expected = reference.ordered_decode(case.q, *case.pages)
    fused = replace(ordered_part_1, options=_runtime.CompileOptions(fma=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pagedref_cuda.ordered.ordered_part_1", fused)
        actual = twin.ordered_decode(case.q, *case.pages)
    assert not np.array_equal(np.asarray(actual.lse), expected.lse)


def test_no_more_nodes_wait_than_there_is_room_for() -> None:
    """Any window of tiles, in any parts: at most two nodes of each height, which is what ``ordered`` allots."""
    from pagedref.attention.tree import Forest, Partial

    tile = Partial(np.zeros(1, np.float32), np.ones(1, np.float32), np.ones((1, 1), np.float32))
    rng = np.random.default_rng(2)
    for _ in range(300):
        first, stop = np.sort(rng.integers(0, 70, 2)).tolist()
        cuts = [first, *np.sort(rng.integers(first, stop + 1, rng.integers(0, 6))).tolist(), stop]
        room = 2 * stop.bit_length() + 2
        whole, most = Forest(), 0
        for start, end in pairwise(cuts):
            part = Forest(start)
            for number in range(start, end):
                if rng.random() < 0.8:  # a tile of which no key is seen is left out
                    part.add(number, tile)
                    most = max(most, len(part.nodes))
            part.close(end)
            for at, node in part.nodes:
                whole.add(at, node)
                most = max(most, len(whole.nodes))
        assert most <= room, (cuts, most, room)


def _sums(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i >= out.shape[0]:
        return
    out[i] = tree_sum(x, i, 0, i + 1)


def test_sums_follow_the_tree() -> None:
    from pagedref.attention.tree import tree_sum as reference_sum

    x = np.random.default_rng(4).standard_normal((40, 40)).astype(np.float32)
    expected = np.array([reference_sum(x[i, : i + 1]) for i in range(40)])
    out = np.zeros(40, np.float32)
    kernel = _runtime.Kernel(_sums, (("float32[:, :]", "float32[:]"),), _runtime.CompileOptions(fma=False))
    with _runtime.written(x, out) as lent:
        kernel.launch(40, *lent)
    assert_exact(out, expected, "sums of 1 to 40 terms")
