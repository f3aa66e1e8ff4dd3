"""Prefill by tiles of rows, and by rows where no tiles are built, agrees with the oracle in every combination."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.kv_format import KVFormat
from pagedref_cuda.fast.prefill import tiles_of
from pagedref_cuda.fast.prefill_mma import ROWS
from tests.kernels.fast_runs import COMPILED, agrees, make_case, pairwise, same_bits, tiles, twin

pytestmark = COMPILED

AXES: dict[str, tuple[Any, ...]] = {
    "dtype": ("bfloat16", "float16"),
    "page_size": (1, 3, 16, 64),
    "group_size": (1, 3, 8),
    "causal": (None, False),
    "window": (None, 1, 20, (9, 4)),
    "attention_chunk": (None, 16),
    "softcap": (None, 5.0),
    "alibi": (False, True),
    "sinks": (False, True),
    "mask": (None, 0.2, 0.8),
    "num_kv_heads": (1, 2),
    "lens": (((40, 17, 1, 0, 9), (40, 50, 1, 7, 4)), ((1, 1, 30), (90, 64, 30)), ((5, 33), (133, 33))),
}
CASES = pairwise(AXES, 1)


def masks(rng: np.random.Generator, lens: Any, share: float) -> list[Any]:
    return [rng.random(shape) < share for shape in zip(*lens, strict=True)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_pair_of_options_agrees(number: int) -> None:
    wanted = CASES[number]
    rng = np.random.default_rng(number)
    heads = wanted["num_kv_heads"] * wanted["group_size"]
    keywords = {name: wanted[name] for name in ("causal", "window", "attention_chunk", "softcap")}
    if wanted["alibi"]:
        keywords["alibi_slopes"] = rng.uniform(0.01, 0.5, heads).astype(np.float32)
    if wanted["sinks"]:
        keywords["sinks"] = rng.standard_normal(heads).astype(np.float32)
    if wanted["mask"] is not None:
        keywords["mask"] = masks(rng, wanted["lens"], wanted["mask"])
    geometry = {name: wanted[name] for name in ("page_size", "group_size", "num_kv_heads", "dtype")}
    q_lens, kv_lens = wanted["lens"]
    case = make_case(number, q_lens, kv_lens, head_dim=64, **geometry, **keywords)
    agrees(case, tiles(case))


def test_heads_of_128() -> None:
    case = make_case(1, [70, 3], [70, 100], head_dim=128, group_size=2, dtype="bfloat16", page_size=16, spread=2.0)
    agrees(case, tiles(case))


@pytest.mark.parametrize(("dtype", "form"), [("float32", None), ("float32", KVFormat("e4m3fn", "slot_head"))])
def test_rows_without_tiles_go_through_the_kernels_of_decode(dtype: str, form: KVFormat | None) -> None:
    case = make_case(
        2, [20, 3, 0], [33, 40, 5], head_dim=64, group_size=4, dtype=dtype, form=form, page_size=4, window=30
    )
    with twin.counting() as counts:
        agrees(case, case.prefill(twin))
    assert any(name.startswith("decode_") for name in counts)


def test_paged_prefill_takes_the_tiles() -> None:
    case = make_case(3, [20, 3], [33, 40], head_dim=64, group_size=4, dtype="float16", page_size=4)
    assert same_bits(case.prefill(twin), tiles(case))


def test_neighbours_change_no_bit() -> None:
    """L2."""
    case = make_case(4, [20, 40, 3], [33, 40, 80], head_dim=64, group_size=2, dtype="bfloat16", page_size=4)
    state = tiles(case)
    for sequence in range(3):
        rows = slice(*case.qo_indptr[sequence : sequence + 2])
        assert same_bits(tiles(case.only(sequence)), [part[rows] for part in state])


def test_chunks_agree_with_one_shot() -> None:
    """L4: queries at the end of a longer sequence are rows of the whole."""
    whole = make_case(5, [80], [80], head_dim=64, group_size=2, dtype="float16", page_size=16)
    agrees(whole, tiles(whole))
    chunk = make_case(5, [13], [80], head_dim=64, group_size=2, dtype="float16", page_size=16)
    agrees(chunk, tiles(chunk))


@pytest.mark.parametrize(("side", "value"), [("k", np.nan), ("v", np.nan), ("v", np.inf), ("k", -np.inf)])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_not_finite_stays_with_those_who_see_it(side: str, value: float, masked: bool) -> None:
    """S7: a key that some rows see may hold NaN; the rows that do not see it keep their numbers."""
    q_lens, kv_lens = [30, 10], [40, 10]
    keywords: dict[str, Any] = {"mask": masks(np.random.default_rng(0), (q_lens, kv_lens), 0.5)} if masked else {}
    case = make_case(6, q_lens, kv_lens, head_dim=64, group_size=2, dtype="bfloat16", page_size=4, **keywords)
    pool, live = (case.k_cache, case.keys) if side == "k" else (case.v_cache, case.values)
    pool[case.kv_indices[25 // 4], 25 % 4, 1, 7] = value
    live[0][25, 1, 7] = value
    agrees(case, tiles(case))


def test_unmapped_pages_behind_a_mask_are_not_read() -> None:
    """S21: a page that the mask hides from every row may be unmapped."""
    mask = np.ones((8, 40), bool)
    mask[:, 8:16] = False
    case = make_case(7, [8], [40], head_dim=64, group_size=2, dtype="float16", page_size=4, mask=[mask])
    case.kv_indices[2:4] = -1
    agrees(case, tiles(case))


def test_tiles_cover_every_row_once_and_no_hidden_key() -> None:
    """Causal tiles end at the diagonal: a block reads what its last row sees, and no more."""
    rng = np.random.default_rng(0)
    for group_size in (1, 3, 8):
        q_lens = rng.integers(0, 50, 6)
        kv_lens = q_lens + rng.integers(0, 50, 6)
        sequence = np.repeat(np.arange(6), q_lens)
        first = np.cumsum(q_lens) - q_lens
        stop = np.arange(len(sequence)) - first[sequence] + (kv_lens - q_lens)[sequence] + 1
        start = np.maximum(stop - 20, 0)
        found = tiles_of(q_lens, group_size, start, stop)
        rows = {(int(s), int(r) + i) for s, r, _, _ in found for i in range(ROWS) if r + i < q_lens[s] * group_size}
        assert rows == {(s, r) for s in range(6) for r in range(q_lens[s] * group_size)}
        for s, r, low, high in found:
            tokens = first[s] + np.arange(r // group_size, min((r + ROWS - 1) // group_size, q_lens[s] - 1) + 1)
            assert (low, high) == (start[tokens].min(), stop[tokens].max())


def test_causal_tiles_are_skipped() -> None:
    """Half of the products are never made."""
    products = {}
    for causal in (True, False):
        case = make_case(8, [256], [256], head_dim=64, group_size=1, num_kv_heads=1, dtype="float16", causal=causal)
        with twin.counting() as counts:
            tiles(case)
        products[causal] = sum(sum(stats.mma.values()) for name in counts for stats in counts[name])
    assert products[True] <= 0.6 * products[False]
