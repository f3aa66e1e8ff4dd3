"""The fast rungs of decode agree with the oracle in every combination, and keep the laws to the bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat
from tests.kernels.fast_runs import (
    COMPILED,
    agrees,
    call_of,
    decode,
    decode_choice,
    make_case,
    pairwise,
    same_bits,
    twin,
)

pytestmark = COMPILED

# What a combination is made of. Any two values meet in one of the cases below.
AXES: dict[str, tuple[Any, ...]] = {
    "stored": (
        *(("bfloat16", None, None), ("float16", None, None), ("float32", "e4m3fn", "slot_head")),
        *(("bfloat16", "e5m2", "tensor"), ("float16", "int8", "head"), ("bfloat16", "int4", "frame_head")),
    ),
    "page_size": (1, 3, 16, 64),
    "group_size": (1, 4, 7, 8),
    "window": (None, 1, 33, (9, 0)),
    "attention_chunk": (None, 8, 50),
    "softcap": (None, 1.0, 30.0),
    "alibi": (False, True),
    "sinks": (False, True),
    "split": (32, 64, 512),
    "num_kv_heads": (1, 3),
}


CASES = pairwise(AXES, 0)


def test_pairs_are_complete() -> None:
    for a, b in combinations(AXES, 2):
        met = {(case[a], case[b]) for case in CASES}
        assert met == set(product(AXES[a], AXES[b]))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_pair_of_options_agrees(number: int) -> None:
    wanted = CASES[number]
    rng = np.random.default_rng(number)
    dtype, kind, granularity = wanted["stored"]
    heads = wanted["num_kv_heads"] * wanted["group_size"]
    keywords = {name: wanted[name] for name in ("window", "attention_chunk", "softcap")}
    if wanted["alibi"]:
        keywords["alibi_slopes"] = rng.uniform(0.01, 0.5, heads).astype(np.float32)
    if wanted["sinks"]:
        keywords["sinks"] = rng.standard_normal(heads).astype(np.float32)
    lens = [int(n) for n in rng.choice([0, 1, 15, 16, 17, 31, 33, 64, 90, 130], 4)]
    case = make_case(
        number,
        [1] * 4,
        lens,
        head_dim=64,
        dtype=dtype,
        form=kind and KVFormat(kind, granularity),
        poison=(float("nan"), float("inf"))[number % 2],
        **{name: wanted[name] for name in ("page_size", "group_size", "num_kv_heads")},
        **keywords,
    )
    agrees(case, decode(case, split=wanted["split"]))


@pytest.mark.parametrize(("dtype", "rung"), [("float32", 2), ("bfloat16", 2), ("float32", 3), ("float16", 3)])
@pytest.mark.parametrize("group_size", [1, 3])
def test_rungs_of_the_ladder_agree(dtype: str, rung: int, group_size: int) -> None:
    sinks = np.linspace(-1, 1, 2 * group_size, dtype=np.float32)
    lens = [1, 0, 40, 77]
    keywords: dict[str, Any] = {"sinks": sinks, "window": 50, "softcap": 5.0}
    case = make_case(rung, [1] * 4, lens, head_dim=64, group_size=group_size, dtype=dtype, page_size=5, **keywords)
    agrees(case, decode(case, rung))


@pytest.mark.parametrize(("head_dim", "group_size"), [(128, 8), (128, 16), (96, 2)])
def test_geometries_agree(head_dim: int, group_size: int) -> None:
    case = make_case(
        3, [1] * 3, [100, 17, 48], head_dim=head_dim, group_size=group_size, dtype="bfloat16", page_size=16, spread=3.0
    )
    agrees(case, decode(case, split=64))


def test_many_splits_of_a_sequence_agree_and_sinks_count_once() -> None:
    """P25: a sink enters the denominator once, however the keys are cut."""
    sinks = np.full(8, 3.0, np.float32)
    case = make_case(4, [1, 1], [400, 33], head_dim=64, group_size=4, dtype="bfloat16", page_size=16, sinks=sinks)
    whole = decode(case)
    for split in (32, 96, 512):
        cut = decode(case, split=split)
        agrees(case, cut, f"split {split}")
    assert np.abs(whole.lse - cut.lse).max() < np.abs(whole.lse).max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_neighbours_frames_and_layout_change_no_bit(dtype: str) -> None:
    """L1, L2, L3, L9, and P73: the cuts of a sequence come from its own length."""
    case = make_case(5, [1] * 3, [150, 40, 77], head_dim=64, group_size=4, dtype=dtype, page_size=4)
    state = decode(case, split=32)
    for sequence in range(3):
        alone = decode(case.only(sequence), split=32)
        assert same_bits(alone, [part[sequence : sequence + 1] for part in state])
    moved = np.random.default_rng(0).permutation(len(case.k_cache))
    pools = []
    for pool in (case.k_cache, case.v_cache):
        wide = np.full((len(pool), 3, *pool.shape[1:]), np.nan, pool.dtype)  # a layer in a buffer of three
        wide[moved, 1] = pool
        pools.append(wide[:, 1])
        odd = np.zeros((*pool.shape[:-1], pool.shape[-1] + 1), pool.dtype)  # rows that begin at no whole piece
        odd[..., :-1] = pool
        pools.append(odd[..., :-1])
    frames = moved[case.kv_indices].astype(np.int32)
    assert same_bits(state, decode(replace(case, k_cache=pools[0], v_cache=pools[2], kv_indices=frames), split=32))
    assert same_bits(state, decode(replace(case, k_cache=pools[1], v_cache=pools[3]), split=32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_not_finite_stays_with_those_who_see_it(value: float, side: str, dtype: str) -> None:
    """A visible Inf or NaN gives what the formula gives; other numbers of the row, heads and sequences keep theirs."""
    case = make_case(6, [1] * 3, [45, 20, 70], head_dim=64, group_size=4, dtype=dtype, page_size=4, window=40)
    page, offset = 8, 3  # position 35 of the first sequence: visible
    hidden = 0  # position 0: outside its window
    pool = case.k_cache if side == "k" else case.v_cache
    live = case.keys if side == "k" else case.values
    for position in (page * 4 + offset, hidden):
        pool[case.kv_indices[position // 4], position % 4, 1, 7] = value
        live[0][position, 1, 7] = value
    agrees(case, decode(case, split=32))
    agrees(case, decode(case))


def test_keys_far_apart_keep_the_only_visible_one() -> None:
    """P07: no finite sentinel stands for -inf."""
    case = make_case(
        7, [1], [64], head_dim=64, group_size=1, num_kv_heads=1, dtype="bfloat16", page_size=16, sm_scale=1.0
    )
    case.q[:] = -200
    for live, pool in ((case.keys, case.k_cache),):
        live[0][:] = 5
        for position in range(64):
            pool[case.kv_indices[position // 16], position % 16] = 5
    agrees(case, decode(case))


def test_calls_without_a_fast_kernel_are_left_to_rung_1() -> None:
    def chosen(**keywords: Any) -> object:
        case = make_case(8, [1], [5], **{"head_dim": 64, "dtype": "bfloat16", **keywords})
        return decode_choice(call_of(case), case.q.dtype)

    assert chosen() is not None
    assert chosen(head_dim=8) is None
    assert chosen(form=KVFormat("int8", "group", 16)) is None
    assert chosen(form=KVFormat("int4", "slot_head", None, True)) is None
    assert chosen(form=KVFormat("float16")) is None


def test_paged_decode_takes_the_fast_rung() -> None:
    case = make_case(9, [1] * 2, [70, 20], head_dim=64, group_size=4, dtype="bfloat16", page_size=16)
    assert same_bits(case.decode(twin), decode(case))


def test_two_launches_make_a_step() -> None:
    case = make_case(10, [1] * 2, [600, 20], head_dim=64, group_size=4, dtype="bfloat16", page_size=16)
    with twin.counting() as counts:
        decode(case)
    assert [len(launches) for launches in counts.values()] == [1, 1]


def test_metadata_on_the_device_is_not_waited_for() -> None:
    """The list of work is made there, and cuts at the same keys."""
    keywords: dict[str, Any] = {"sinks": np.linspace(-1, 1, 8, dtype=np.float32), "window": 600}
    case = make_case(11, [1] * 3, [1100, 0, 20], head_dim=64, group_size=4, dtype="bfloat16", page_size=16, **keywords)
    there: Any = [twin.to_device(array) for array in (case.q, *case.pages)]
    with twin.counting() as counts:
        state = twin.paged_decode(*there, **keywords)
    assert "plan_units" in counts
    assert sum(len(launches) for launches in counts.values()) == 5
    assert same_bits([np.asarray(part) for part in state], case.decode(twin))


def test_wrong_metadata_on_the_device_is_refused_at_the_next_synchronisation() -> None:
    case = make_case(12, [1] * 2, [70, 20], head_dim=64, group_size=4, dtype="bfloat16", page_size=16)
    case.kv_last_page_len[1] = 17
    with pytest.raises(ContractError, match="kv_last_page_len"):
        case.decode(twin)
    there: Any = [twin.to_device(array) for array in (case.q, *case.pages)]
    with pytest.raises(ContractError, match="kv_last_page_len"):
        np.asarray(twin.paged_decode(*there).out)
