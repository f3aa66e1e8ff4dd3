"""Ordered arithmetic: the same bits in every batch, page size, chunk and split; and how wrong it is, and mutants."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref import backends
from pagedref.addressing import last_page_len, num_pages
from pagedref.attention import AttentionState, ordered, ordered_rows, paged_prefill, tree
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import dense_attention
from pagedref.attention.ordered import ordered_decode, ordered_prefill
from pagedref.attention.ordered_textbook import ordered_row
from pagedref.attention.tree import TILE, Forest, tree_sum
from pagedref.conformance import CHECKS, PagedCase, assert_exact, assert_state, checks, make_case, oracle
from pagedref.contract import EXTENDED_OPERATIONS, OPERATIONS, Agreement
from pagedref.errors import ContractError, PageFault
from pagedref.kv_format import KVFormat
from pagedref.options import attention_options

Array = Any
CASES = int(os.environ.get("PAGEDREF_ORDERED_CASES", "200"))  # tox -e exhaustive: 10,000
EVERY = bool(os.environ.get("PAGEDREF_EXHAUSTIVE"))  # tox -e exhaustive: all 45 combinations, else nine of them
SETTINGS = settings(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck), database=None)
FEW = settings(deadline=None, max_examples=max(40, CASES // 20), suppress_health_check=list(HealthCheck), database=None)
PAGE_SIZES = (1, 3, 16, 32, 100)
CHUNKINGS = ("one shot", "two chunks", "row by row")
SPLITS: tuple[Any, ...] = (None, 3, (5, 32, 40, 70, 97, 200))


def same(actual: Any, expected: Any, what: str) -> None:
    assert_exact(np.asarray(actual.out), np.asarray(expected.out), f"{what}: out")
    assert_exact(np.asarray(actual.lse), np.asarray(expected.lse), f"{what}: lse")


def run(case: PagedCase, splits: Any = None) -> AttentionState:
    return ordered_prefill(case.q, case.qo_indptr, *case.pages, **case.keywords, **case.stored, splits=splits)


@st.composite
def keywords(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    """Draw causal variants, alone and together."""
    words: dict[str, Any] = {}
    if draw(st.booleans()):
        words["window"] = draw(st.one_of(st.integers(1, 150), st.tuples(st.integers(0, 80), st.integers(0, 9))))
    if draw(st.integers(0, 3)) == 0:
        words["attention_chunk"] = draw(st.integers(1, 150))
    if draw(st.integers(0, 3)) == 0:
        words["softcap"] = draw(st.sampled_from([0.1, 1.0, 30.0]))
    if draw(st.integers(0, 3)) == 0:
        words["alibi_slopes"] = np.linspace(0.01, 0.7, heads).astype(np.float32)
    if draw(st.integers(0, 3)) == 0:
        words["sinks"] = np.linspace(-2, 3, heads).astype(np.float32)
    return words


@st.composite
def batches(draw: st.DrawFn) -> Callable[..., PagedCase]:
    """Draw a batch of one to three sequences; what is returned lays it out in pages of a size."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    lens = draw(st.lists(st.integers(0, 230), min_size=1, max_size=3))
    q_lens = [draw(st.integers(0, 4)) for _ in lens]
    seed, words = draw(st.integers(0, 2**32 - 1)), draw(keywords(kv_heads * group))
    sizes = {"head_dim": draw(st.integers(1, 24)), "v_head_dim": draw(st.integers(1, 12))}
    spread = draw(st.sampled_from([0.0, 1.0, 20.0]))

    def lay_out(page_size: int, **changes: Any) -> PagedCase:
        geometry = {"page_size": page_size, "num_kv_heads": kv_heads, "group_size": group, "spread": spread}
        return make_case(seed, q_lens, lens, **{**geometry, **sizes, **words, **changes})

    return lay_out


def rows_of(case: PagedCase, low: Array, high: Array) -> dict[str, Any]:
    """Return the call that has only the rows ``low .. high - 1`` of each sequence, and only the keys up to them."""
    page_size = case.k_cache.shape[1]
    q_lens = np.diff(case.qo_indptr)
    kv_lens = np.maximum(np.array([len(keys) for keys in case.keys]) - q_lens + high, 0)
    pages = np.asarray(num_pages(kv_lens, page_size)).reshape(-1)
    begin = case.qo_indptr[:-1]
    runs = zip(begin, low, high, strict=True)
    starts = zip(case.kv_indptr[:-1], pages, strict=True)
    return {
        "rows": np.concatenate([np.arange(b + lo, b + hi) for b, lo, hi in runs]).astype(int),
        "qo_indptr": np.concatenate([[0], np.cumsum(high - low)]),
        "pages": (
            case.k_cache,
            case.v_cache,
            np.concatenate([[0], np.cumsum(pages)]),
            np.concatenate([case.kv_indices[at : at + count] for at, count in starts]).astype(np.int32),
            np.asarray(last_page_len(kv_lens, page_size)).reshape(-1),
        ),
    }


def chunks(case: PagedCase, chunking: str) -> Iterator[tuple[Array, Array]]:
    q_lens = np.diff(case.qo_indptr)
    if chunking == "two chunks":
        yield np.zeros_like(q_lens), q_lens // 2
        yield q_lens // 2, q_lens
    else:
        for row in range(int(q_lens.max())):
            yield np.minimum(row, q_lens), np.minimum(row + 1, q_lens)


def in_chunks(case: PagedCase, chunking: str, splits: Any) -> AttentionState:
    """Attend in chunks, each before the later tokens exist; single rows by ``ordered_decode``."""
    if chunking == "one shot":
        return run(case, splits)
    shape = (*case.q.shape[:2], case.v_cache.shape[3])
    whole = AttentionState(np.full(shape, np.nan, np.float32), np.full(shape[:2], np.nan, np.float32))
    for low, high in chunks(case, chunking):
        part = rows_of(case, low, high)
        q = case.q[part["rows"]]
        if (high - low == 1).all():
            state = ordered_decode(q, *part["pages"], **case.keywords, splits=splits)
        else:
            state = ordered_prefill(q, part["qo_indptr"], *part["pages"], **case.keywords, splits=splits)
        whole.out[part["rows"]], whole.lse[part["rows"]] = state
    return whole


@SETTINGS
@given(lay_out=batches())
def test_no_bit_depends_on_pages_chunks_splits_or_frames(lay_out: Callable[..., PagedCase]) -> None:
    """L1, L3, L4, L5, L10, L11: 5 page sizes x 3 chunkings x 3 splits, other frames and other poison each time."""
    expected = run(lay_out(16))
    for at, (page_size, chunking, splits) in enumerate(product(PAGE_SIZES, CHUNKINGS, SPLITS)):
        if at % 5 != 0 and not EVERY:  # each page size, and each chunking with each of the splits
            continue
        case = lay_out(page_size, spare_frames=at + 1, poison=float(("nan", "inf", "0")[at % 3]))
        same(in_chunks(case, chunking, splits), expected, f"pages of {page_size}, {chunking}, splits {splits}")


@FEW
@given(lay_out=batches())
def test_no_bit_depends_on_the_batch(lay_out: Callable[..., PagedCase]) -> None:
    """L2: every sequence alone, and the batch in another order."""
    case = lay_out(7)
    together = run(case)
    for sequence in range(len(case.keys)):
        own = slice(*(int(at) for at in case.qo_indptr[sequence : sequence + 2]))
        same(run(case.only(sequence)), AttentionState(together.out[own], together.lse[own]), f"sequence {sequence}")


@FEW
@given(lay_out=batches(), causal=st.sampled_from([None, True, False]), masked=st.booleans(), seed=st.integers(0, 99))
def test_masks_and_futures(lay_out: Callable[..., PagedCase], causal: bool | None, masked: bool, seed: int) -> None:
    """Every page size and split with a mask or without causality; rows may see nothing or lie before the first key."""
    words: dict[str, Any] = {"causal": causal}
    if masked:
        q_lens = np.diff(lay_out(16).qo_indptr)
        rng = np.random.default_rng(seed)
        words["mask"] = [rng.random((q, len(k))) < 0.4 for q, k in zip(q_lens, lay_out(16).keys, strict=True)]
    expected = run(lay_out(16, **words))
    assert_state(expected, oracle(lay_out(16, **words)))
    for page_size, splits in product((1, 33), SPLITS):
        same(run(lay_out(page_size, **words), splits), expected, f"pages of {page_size}, splits {splits}")


def textbook(case: PagedCase) -> AttentionState:
    """Attend row by row, head by head and number by number."""
    words = dict(case.keywords)
    slopes, sinks, masks = words.pop("alibi_slopes", None), words.pop("sinks", None), words.pop("mask", None)
    causal = words.pop("causal", None)
    options = attention_options(
        "textbook", case.q.shape[2], np.float32, causal=masks is None if causal is None else causal, **words
    )
    heads, group = case.q.shape[1], case.q.shape[1] // case.k_cache.shape[2]
    out = np.zeros((*case.q.shape[:2], case.v_cache.shape[3]), np.float32)
    lse = np.zeros(case.q.shape[:2], np.float32)
    for sequence, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        begin, end = (int(at) for at in case.qo_indptr[sequence : sequence + 2])
        for row in range(begin, end):
            position = len(keys) - end + row
            start, stop = options.intervals(np.array([position]), len(keys))
            seen = np.arange(start[0], stop[0])
            if masks is not None:
                seen = seen[masks[sequence][row - begin, seen]]
            for head in range(heads):
                out[row, head], lse[row, head] = ordered_row(
                    case.q[row, head],
                    keys[:, head // group],
                    values[:, head // group],
                    position,
                    seen.tolist(),
                    sm_scale=options.sm_scale,
                    softcap=options.softcap,
                    slope=None if slopes is None else slopes[head],
                    sink=None if sinks is None else sinks[head],
                )
    return AttentionState(out, lse)


def small_cases(count: int, page_size: int | None = None) -> Iterator[PagedCase]:
    """Yield cases that are small enough for the textbook, each variant among them."""
    heads = {"alibi_slopes": np.float32([0.3, 0.07]), "sinks": np.float32([0.5, -np.inf])}
    variants: list[dict[str, Any]] = [{}, {"window": 40}, {"softcap": 2.0}, {"attention_chunk": 48}, heads]
    for seed in range(count):
        words = variants[seed % len(variants)]
        lens = [[150, 3], [65, 33], [97, 0]][seed % 3]
        sizes = {"num_kv_heads": 1, "head_dim": 5, "v_head_dim": 3, "page_size": page_size or 1 + 7 * seed}
        yield make_case(seed, [1, 2], lens, **sizes, **words)


def test_fast_path_equals_the_textbook() -> None:
    for case in small_cases(10):
        same(run(case), textbook(case), str(case.keywords))
    masked = make_case(3, [2], [70], num_kv_heads=1, head_dim=5, mask=[np.random.default_rng(0).random((2, 70)) < 0.2])
    same(run(masked), textbook(masked), "mask")


def test_not_a_number_and_infinity_as_in_the_textbook() -> None:
    """NaN and Inf in keys and values that are seen, and in some that are not: as in the oracle, and one NaN of many."""
    for seed, value in enumerate((np.nan, np.inf, -np.inf, -np.float32(np.nan))):
        case = make_case(seed, [3], [70], num_kv_heads=1, page_size=128, head_dim=3)
        keys, values = case.keys[0], case.values[0]
        values[40, 0, 1] = value
        keys[68, 0, 0] = value
        frame = case.kv_indices[0]
        case.k_cache[frame, :70], case.v_cache[frame, :70] = keys, values
        state = run(case)
        same(state, textbook(case), f"{value}")
        assert set(state.lse.view(np.uint32)[np.isnan(state.lse)].tolist()) <= {0x7FC00000}
        assert_state(state, oracle(case))


def test_scores_of_minus_infinity_have_no_weight() -> None:
    case = make_case(0, [1], [40], num_kv_heads=1, head_dim=1, page_size=64)
    case.k_cache[...], case.q[...] = -np.inf, 1.0
    state = run(case)
    assert (state.out == 0).all() and not np.signbit(state.out).any() and np.isneginf(state.lse).all()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "e4m3fn", "int8", "float64"])
def test_storage_types(kind: str) -> None:
    """What is stored is widened, or scaled, to float32; then the bits are those of a float32 cache."""
    form = KVFormat(kind, "slot_head") if kind in ("int8", "e4m3fn") else KVFormat(kind)
    case = make_case(5, [1, 3], [70, 45], form=form, page_size=16)
    plain = make_case(5, [1, 3], [70, 45], page_size=64)
    for sequence, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        frames = plain.kv_indices[plain.kv_indptr[sequence] : plain.kv_indptr[sequence + 1]]
        for at in range(len(keys)):
            plain.k_cache[frames[at // 64], at % 64] = keys[at]
            plain.v_cache[frames[at // 64], at % 64] = values[at]
    same(run(case, splits=2), run(plain), kind)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_queries_are_rounded_once_in_the_end(dtype: Any) -> None:
    case = make_case(6, [2], [50])
    narrow = case.q.astype(dtype)
    state = ordered_prefill(narrow, case.qo_indptr, *case.pages)
    wide = ordered_prefill(narrow.astype(np.float32), case.qo_indptr, *case.pages)
    assert_exact(state.out, wide.out.astype(dtype))
    assert_exact(state.lse, wide.lse)


def test_many_rows_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are attended in runs, nodes of the tree in steps: neither their size nor threads change a bit."""
    case = make_case(7, [70, 5], [130, 260], num_kv_heads=1, page_size=16)
    expected = run(case)
    for products in (1, 1 << 12, 1 << 24):
        monkeypatch.setattr(ordered, "_PRODUCTS", products)
        same(run(case), expected, f"{products} products")
    for threads in ("1", "3"):
        monkeypatch.setenv("PAGEDREF_THREADS", threads)
        monkeypatch.setattr(ordered.parallel, "_LARGE", 0)
        same(run(case), expected, f"{threads} threads")


def test_scaling_by_powers_of_two() -> None:
    """L14 to the bit."""
    case = make_case(8, [3], [90], poison=0.0)
    plain = run(case.using(sm_scale=0.3))
    moved = ordered_prefill(case.q * 8, case.qo_indptr, *case.pages, sm_scale=0.3 / 8)
    same(moved, plain, "q * 8, sm_scale / 8")
    k_cache, v_cache, *table = case.pages
    scaled = ordered_prefill(case.q, case.qo_indptr, k_cache, v_cache * np.float32(0.25), *table, sm_scale=0.3)
    assert_exact(scaled.out, plain.out * np.float32(0.25))


def test_bits_are_those_of_every_machine() -> None:
    """Stored bits of one row: 100 keys in four tiles, made of integers."""
    grid = np.arange(100 * 3).reshape(100, 1, 3)
    keys = ((grid * 37 % 101 - 50) / 16).astype(np.float32).reshape(1, 100, 1, 3)
    values = ((grid * 53 % 97 - 40) / 8).astype(np.float32).reshape(1, 100, 1, 3)
    q = np.float32([[[1.5, -0.7, 0.3]]])
    state = ordered_decode(q, keys, values, np.array([0, 1]), np.array([0]), np.array([100]))
    assert [f"{pattern:08x}" for pattern in state.out.view(np.uint32).ravel().tolist()] == STORED_OUT.split()
    assert f"{int(state.lse.view(np.uint32)[0, 0]):08x}" == STORED_LSE


STORED_OUT = "3f9128d5 3f48024b 3faa7831"
STORED_LSE = "40c92ce9"


# --- how wrong it is ---------------------------------------------------------------------------------------------


def tight(kv_len: int) -> Arithmetic:
    """Return the arithmetic as far as its bound depends on it: a partial sum is rescaled once a level above tiles."""
    return Arithmetic(rescales=max(kv_len // TILE, 1).bit_length() + 1, merges=1)


def populations(count: int) -> Iterator[PagedCase]:
    """Yield the cases over which errors are averaged."""
    for seed in range(count):
        rng = np.random.default_rng([seed, 9])
        words: dict[str, Any] = {}
        if seed % 5 == 1:
            words["softcap"] = 5.0
        if seed % 5 == 2:
            words["alibi_slopes"] = np.linspace(0.02, 0.5, 4).astype(np.float32)
        if seed % 5 == 3:
            words["window"] = int(rng.integers(1, 200))
        length, size = int(rng.integers(1, 600)), int(rng.choice([16, 64, 80, 128]))
        spread = float(rng.choice([1.0, 1.0, 4.0]))
        yield make_case(seed, [2], [length], head_dim=size, page_size=16, spread=spread, **words)


def errors(attend: Callable[[PagedCase], Any], count: int) -> tuple[float, float]:
    """Return the root mean square errors of output and lse, in parts of the bound of each element."""
    squares: tuple[list[Array], list[Array]] = ([], [])
    for case in populations(count):
        exact = oracle(case)
        state = attend(case)
        for at in range(2):
            bound = np.asarray(exact[at + 2])
            with np.errstate(invalid="ignore"):  # -inf on both sides
                part = (np.asarray(state[at]) - np.asarray(exact[at])) / np.where(bound > 0, bound, 1)
            squares[at].append(np.square(np.where(np.isfinite(part), part, 0)).ravel())
    out, lse = (float(np.sqrt(np.concatenate(parts).mean())) for parts in squares)
    return out, lse


def test_at_most_as_wrong_as_the_plain_path() -> None:
    count = 200 if CASES < 1000 else 2000

    def plain(case: PagedCase) -> Any:
        return paged_prefill(case.q, case.qo_indptr, *case.pages, **case.keywords)

    ours, theirs = errors(run, count), errors(plain, count)
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    print(f"error of ordered in parts of that of plain: out {ratios[0]:.3f}, lse {ratios[1]:.3f}, {count} cases")
    assert max(ratios) <= 1.0


def test_within_its_own_bound() -> None:
    """The oracle's bound for this arithmetic, in which a sum is rescaled only once a level of the tree."""
    for seed, length in enumerate((1, 31, 33, 500, 3000)):
        case = make_case(seed, [1], [length], page_size=16, spread=3.0, sinks=np.float32([0, 1, -2, 3]))
        exact = dense_attention(
            case.q, case.keys[0], case.values[0], with_bound=True, arithmetic=tight(length), **case.keywords
        )
        assert_state(run(case), exact, f"{length} keys")


# --- mutants: each is a mistake of a real system, and each must be seen ------------------------------------------


def caught(check: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        check()


def laws() -> None:
    for case, other in zip(small_cases(4), small_cases(4, page_size=13), strict=True):
        same(run(other), run(case), "pages of 13")
        for splits in SPLITS:
            same(run(case, splits), run(case), f"splits {splits}")
        same(in_chunks(case, "row by row", None), run(case), "row by row")


def definition() -> None:
    for case in small_cases(4):
        same(run(case), textbook(case), "textbook")


def test_mutants_have_something_to_break() -> None:
    laws()
    definition()


def test_a_tree_for_each_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split-KV as usual: each part is reduced to one state, wherever it begins."""

    def close(self: Any, stop: int) -> None:
        while len(self.nodes) > 1:
            self._join()

    monkeypatch.setattr(Forest, "close", close)
    caught(laws)


def tiles_as_wide_as(width: Callable[[Any], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call choose the width of its tiles."""
    attend = ordered.ordered_attention

    def wrong(function: str, call: Any, *arguments: Any, **words: Any) -> AttentionState:
        for module in (ordered, ordered_rows):
            monkeypatch.setattr(module, "TILE", width(call))
        return attend(function, call, *arguments, **words)

    monkeypatch.setattr(ordered, "ordered_attention", wrong)


def test_tiles_chosen_by_the_chunk_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide tiles for many rows, narrow ones for a single row, as decode and prefill kernels have."""
    tiles_as_wide_as(lambda call: 64 if np.diff(call.qo_indptr).max() > 1 else 32, monkeypatch)
    caught(laws)


def test_tiles_as_wide_as_a_page_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles_as_wide_as(lambda call: call.dims["page_size"], monkeypatch)
    caught(laws)


def test_a_running_maximum_across_tiles_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Online softmax from left to right: each tile is merged into what came before it."""

    def close(self: Any, stop: int) -> None:
        while len(self.nodes) > 1:
            self._join()

    monkeypatch.setattr(Forest, "close", close)
    monkeypatch.setattr(ordered, "_PRODUCTS", 1)  # one tile at a time
    caught(definition)


def test_fused_multiply_add_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that contracts ``a * b + c``: the second product of each pair is not rounded."""

    def fused(left: Array, right: Array) -> Array:
        left, right = np.broadcast_arrays(left, right)
        pairs = left[0::2] * right[0::2]
        odd = left[1::2].astype(np.float64) * right[1::2]
        pairs[: len(odd)] = (pairs[: len(odd)] + odd).astype(np.float32)
        return tree_sum(pairs)

    monkeypatch.setattr(ordered_rows, "tree_products", fused)
    laws()  # it is as regular as ours, and yet not the same
    caught(definition)


def test_another_exp_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ordered_rows, tree):
        monkeypatch.setattr(module, "ordered_exp", np.exp)
    caught(definition)


def test_a_sum_in_another_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves instead of neighbours: as good a tree, and another one."""

    def halves(left: Array, right: Array) -> Array:
        terms = left * right
        while len(terms) > 1:
            half = -(-len(terms) // 2)
            top = terms[half:]
            terms = np.concatenate([terms[: len(top)] + top, terms[len(top) : half]])
        return terms[0]

    monkeypatch.setattr(ordered_rows, "tree_products", halves)
    caught(definition)


# --- contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ordered_decode", "ordered_prefill"])
def test_arguments_are_those_of_the_table(name: str) -> None:
    operation = EXTENDED_OPERATIONS[name]
    parameters = inspect.signature(getattr(backends.get("numpy"), name)).parameters
    assert set(parameters) == {*operation.by_name, *operation.options}
    assert operation.agreement is Agreement.ORDERED


def own(name: str, check: Any) -> bool:
    """Tell whether a check is about attention, and not about an error text that names the plain operation."""
    return check.__module__ == checks.__name__ and name != "holes_are_not_read"


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if own(name, check)])
def test_conformance(name: str) -> None:
    """The suite that judges every backend, with ordered arithmetic in the place of the plain one."""
    names = {operation: getattr(backends.get("numpy"), operation) for operation in OPERATIONS}
    plain = {**names, "paged_decode": ordered_decode, "paged_prefill": ordered_prefill}
    CHECKS[name](SimpleNamespace(**plain), "float32")


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [0, -1, True, 1.5, "two", [40, 3], [-1]])
def test_splits_that_cut_nothing(splits: Any) -> None:
    case = make_case(0, [1], [40])
    with pytest.raises(ContractError, match="ordered_prefill: splits"):
        run(case, splits)


def test_errors_name_the_operation() -> None:
    case = make_case(0, [1], [40])
    with pytest.raises(ContractError, match="ordered_decode: q has the wrong type, got float64"):
        ordered_decode(case.q.astype(np.float64), *case.pages)
    case.kv_indices[2] = -1
    with pytest.raises(PageFault, match="ordered_prefill: kv_indices"):
        run(case)
    same(run(case.using(window=3)), run(make_case(0, [1], [40], window=3)), "a hole that no row sees")
