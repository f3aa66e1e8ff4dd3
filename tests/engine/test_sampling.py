"""Sampling against slow, plain definitions; ties; noise that depends on seed and index alone; frequencies."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.models import sampling
from pagedref.models.filters import keep_min_p, keep_top_k, keep_top_p, keep_typical, penalise, weigh
from pagedref.models.noise import philox, uniform
from pagedref.models.sampling import SamplingParams, choose

Logits = np.ndarray[Any, Any]

# Few different values, so that ties are frequent; and any values.
levels = st.sampled_from([-math.inf, -3.0, -1.0, 0.0, 0.5, 2.0])
rows = st.one_of(
    st.lists(levels, min_size=1, max_size=12), st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=400)
).map(lambda row: np.array(row, np.float32))
logits_rows = rows.filter(lambda row: bool(np.isfinite(row.max())))
shares = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999]), st.floats(0, 0.9999))
ids_below = st.integers(0, 11)


def in_order(logits: Logits) -> list[int]:
    """Token ids, the larger logit first, of equal ones the smaller id."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def share_of(order: list[int], weights: Logits, share: float) -> list[int]:
    """Tokens in order, each kept if those before it hold less than the share; the first always."""
    kept, before, limit = [], 0.0, share * float(weights.sum())
    for token in order:
        if kept and not before < limit:
            break
        kept.append(token)
        before += float(weights[token])
    return sorted(kept)


def plain_choice(logits: Logits, params: SamplingParams, prompt: list[int], output: list[int], sample: int) -> int:
    """The declared order of all steps, one token at a time."""
    x = [float(value) for value in logits]
    for token in range(len(x)):
        if params.repetition_penalty != 1 and token in {*prompt, *output}:
            x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        if token in output:
            x[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
        x[token] += dict(params.logit_bias).get(token, 0.0)
    if params.temperature == 0:
        return in_order(np.array(x))[0]
    kept = in_order(np.array(x))[: params.top_k or None]
    kept.sort()
    weights = np.exp((np.array(x) - max(x)) / params.temperature)

    def narrow(inner: list[int]) -> list[int]:
        return [kept[at] for at in inner]

    if params.top_p < 1:
        kept = narrow(share_of(in_order(np.array(x)[kept]), weights[kept], params.top_p))
    if params.min_p > 0:
        kept = [token for token in kept if weights[token] >= params.min_p]
    if params.typical_p < 1:
        kept = narrow(share_of(in_order(-astonishment(weights[kept])), weights[kept], params.typical_p))
    u, total = uniform(params.seed or 0, len(output), sample), sum(float(w) for w in weights[kept])
    running = 0.0
    for token in kept:
        running += float(weights[token])
        if running > u * total:
            return token
    raise AssertionError("u is below 1")


# ---- each step against its definition


@given(logits_rows, st.integers(1, 15))
def test_top_k_keeps_the_first_k_in_order(row: Logits, k: int) -> None:
    assert keep_top_k(row.astype(np.float64), k).tolist() == sorted(in_order(row)[:k])


@given(logits_rows, shares, st.floats(0.1, 5))
def test_top_p_keeps_the_fewest_first_tokens(row: Logits, top_p: float, temperature: float) -> None:
    x = row.astype(np.float64)
    weights = weigh(x, temperature)
    assert keep_top_p(x, weights, top_p).tolist() == share_of(in_order(row), weights, top_p)


@pytest.mark.parametrize("top_p", [0.5, 0.99, 0.9999])
@pytest.mark.parametrize("width", [255, 256, 257, 5000])
def test_top_p_looks_further_where_the_first_look_does_not_reach(width: int, top_p: float) -> None:
    x = np.random.default_rng(width).standard_normal(width) * 0.01  # nearly flat: half of them are needed
    weights = weigh(x, 1.0)
    assert keep_top_p(x, weights, top_p).tolist() == share_of(in_order(x), weights, top_p)


@given(logits_rows, st.floats(0, 1))
def test_min_p_is_relative_to_the_largest(row: Logits, min_p: float) -> None:
    weights = weigh(row.astype(np.float64), 1.0)
    p = weights / weights.max()
    assert keep_min_p(weights, min_p).tolist() == [token for token in range(len(row)) if p[token] >= min_p]


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=400), shares)
def test_typical_takes_the_least_astonishing_first(given_weights: list[float], share: float) -> None:
    weights = np.array(given_weights)
    if not weights.any():
        return
    kept = keep_typical(weights, share).tolist()
    assert kept == share_of(in_order(-astonishment(weights)), weights, share)
    assert all(weights[token] > 0 for token in kept)


def astonishment(weights: Logits) -> Logits:
    """How far the surprise of each token is from the one to be expected."""
    p = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprise = -np.log(p)
    return np.abs(surprise - p[p > 0] @ surprise[p > 0])


def test_typical_leaves_out_the_obvious() -> None:
    p = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    assert keep_typical(p, 0.0).tolist() == [0]  # entropy 1.23 nat; surprise 0.51 and 2.30
    p = np.array([0.4, 0.2, 0.2, 0.1, 0.1])  # entropy 1.47; surprise 0.92, 1.61, 2.30
    assert keep_typical(p, 0.4).tolist() == [1, 2]


@given(
    st.lists(st.floats(-9, 9, width=32), min_size=12, max_size=12), st.lists(ids_below), st.lists(ids_below),
    st.floats(0.1, 4), st.floats(-2, 2), st.floats(-2, 2),
)  # fmt: skip
def test_penalties(
    row: list[float], prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    x = np.array(row)
    penalise(x, prompt, output, repetition=repetition, presence=presence, frequency=frequency)
    for token, value in enumerate(row):
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        if token in output:
            value -= presence + frequency * output.count(token)
        assert x[token] == value


@pytest.mark.parametrize(
    "penalty", [{"repetition": 1e-320}, {"presence": -1e308, "frequency": -1.7e308}, {"repetition": 1e308}]
)
def test_enormous_penalties_become_infinite_in_silence(penalty: dict[str, float]) -> None:
    """The choice that follows refuses them, or they ban a token."""
    x = np.array([20.0, -20.0])
    penalise(x, [], [0, 1], **penalty)
    assert not np.isfinite(x).all()


def test_p63_repetition_penalty_pushes_down_on_both_sides_of_zero() -> None:
    x = np.array([-2.0, 2.0])
    penalise(x, [0], [1], repetition=1.5)
    assert x.tolist() == [-3.0, 2.0 / 1.5]


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 1.0, 1e300])
def test_weights_stay_finite_at_any_temperature(temperature: float) -> None:
    weights = weigh(np.array([3.0, 2.0, -np.inf, 3.0]), temperature)
    assert weights.max() == 1
    assert weights[2] == 0
    assert weights[0] == weights[3]


# ---- P62, word for word


def test_p62_top_k_of_equal_tokens_goes_by_id() -> None:
    logits = np.log(np.float32([0.4, 0.3, 0.3, 1e-30]))
    assert keep_top_k(logits.astype(np.float64), 2).tolist() == [0, 1]


def test_p62_top_k_then_top_p_renormalises() -> None:
    """The one token that is left holds all of the probability, so 0.8 of it keeps that token."""
    logits = np.float32([1, 0.9, 0.8, 0.7])
    params = SamplingParams(temperature=1.0, top_k=1, top_p=0.8, seed=0)
    assert {choose(logits, params, [0], [0] * index) for index in range(50)} == {0}


@pytest.mark.parametrize("changes", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_p62_the_narrowest_choice_is_the_largest(changes: dict[str, float]) -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    params = SamplingParams(temperature=2.0, seed=3, **changes)  # type: ignore[arg-type]
    assert {choose(logits, params, [0], [0] * index) for index in range(50)} == {int(logits.argmax())}


def test_p62_temperature_comes_before_top_p() -> None:
    """At temperature 10 the three are nearly alike, and half of the probability needs two of them."""
    logits = np.float32([3, 2, 1])
    params = SamplingParams(temperature=10.0, top_p=0.5, seed=0)
    assert {choose(logits, params, [0], [0] * index) for index in range(100)} == {0, 1}


def test_p62_top_k_zero_is_off() -> None:
    logits = np.zeros(5, np.float32)
    params = SamplingParams(temperature=1.0, top_k=0, seed=0)
    assert {choose(logits, params, [0], [0] * index) for index in range(100)} == set(range(5))


def test_p62_min_p_does_not_keep_what_it_rejects() -> None:
    logits = np.float32([5.0, -1.0, 0.0])
    params = SamplingParams(temperature=1.0, min_p=0.5, seed=0)
    assert {choose(logits, params, [0], [0] * index) for index in range(100)} == {0}


# ---- the whole


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    off = st.booleans()
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        top_k=draw(st.integers(0, 6)),
        top_p=1.0 if draw(off) else draw(shares),
        min_p=0.0 if draw(off) else draw(st.floats(0, 1)),
        typical_p=1.0 if draw(off) else draw(shares),
        repetition_penalty=1.0 if draw(off) else draw(st.floats(0.2, 3)),
        presence_penalty=0.0 if draw(off) else draw(st.floats(-2, 2)),
        frequency_penalty=0.0 if draw(off) else draw(st.floats(-2, 2)),
        logit_bias=draw(st.dictionaries(st.integers(0, 2), st.sampled_from([-math.inf, -1.0, 0.5, 30.0]))),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@settings(max_examples=300)
@given(
    st.lists(st.floats(-9, 9, width=32), min_size=12, max_size=12), requests(), st.lists(ids_below),
    st.lists(ids_below), st.integers(0, 3),
)  # fmt: skip
def test_choice_follows_the_declared_order(
    row: list[float], params: SamplingParams, prompt: list[int], output: list[int], sample: int
) -> None:
    logits = np.float32(row)
    before = logits.copy()
    assert choose(logits, params, prompt, output, sample=sample) == plain_choice(logits, params, prompt, output, sample)
    assert (logits == before).all()


def test_greedy_takes_the_first_of_equals() -> None:
    assert choose(np.float32([1, 7, 7, 0]), SamplingParams(), [0], []) == 1
    assert choose(np.float32([1, 7, 7, 0]), SamplingParams(logit_bias={1: -0.5}), [0], []) == 2


def test_a_banned_token_never_comes() -> None:
    params = SamplingParams(temperature=1.0, seed=1, logit_bias={0: -math.inf})
    drawn = {choose(np.float32([50, 0, 0]), params, [0], [1] * index) for index in range(200)}
    assert drawn == {1, 2}


@pytest.mark.parametrize(
    ("row", "bias"),
    [
        ([0.0, math.nan], {}),
        ([0.0, math.inf], {}),
        ([-math.inf, -math.inf], {}),
        ([0.0, 1.0], {0: -math.inf, 1: -math.inf}),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_largest_are_refused(row: list[float], bias: dict[int, float], temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logit_bias=bias, seed=0)
    with pytest.raises(ContractError, match=r"^choose: logits have no largest one"):
        choose(np.float32(row), params, [0], [])


@pytest.mark.parametrize(
    ("u", "row", "token"),
    [(0.0, [-math.inf, 1, 1], 1), (0.5, [1, 1], 1), (0.25, [1, 1, 1, 1], 1), (1 - 2.0**-53, [1, 1, -math.inf], 1)],
)
def test_draw_at_the_edges(monkeypatch: pytest.MonkeyPatch, u: float, row: list[float], token: int) -> None:
    """The first token whose running sum *exceeds* u times the sum; what has no probability never comes."""
    monkeypatch.setattr(sampling, "uniform", lambda *_: u)
    assert choose(np.float32(row), SamplingParams(temperature=1.0, seed=0), [0], []) == token


# ---- noise


def test_philox_gives_the_published_answers() -> None:
    """Known answers of the authors' library, random123 (kat_vectors, philox4x64 10)."""
    ones = 2**64 - 1
    assert philox((0, 0, 0, 0), (0, 0)) == (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    )  # fmt: skip
    assert philox((ones,) * 4, (ones, ones)) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    )  # fmt: skip


words = st.integers(0, 2**64 - 1)


@given(st.tuples(st.integers(0, 2**64 - 2), words, words, words), st.tuples(words, words))
def test_philox_is_that_of_numpy(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    given_words = {"counter": np.array(counter, np.uint64), "key": np.array(key, np.uint64)}
    theirs = np.random.Philox(**given_words).random_raw(4)  # it counts up before it encrypts
    assert philox((counter[0] + 1, *counter[1:]), key) == tuple(theirs.tolist())


@given(words, st.integers(0, 2**31), st.integers(0, 65_535))
def test_noise_lies_below_one_and_has_53_bits(seed: int, index: int, sample: int) -> None:
    u = uniform(seed, index, sample)
    assert 0 <= u < 1
    assert float(u * 2**53).is_integer()


def test_noise_differs_with_seed_index_and_sample() -> None:
    drawn = {uniform(seed, index, sample) for seed in range(9) for index in range(9) for sample in range(9)}
    assert len(drawn) == 9**3


def test_same_request_gives_same_tokens_whatever_was_drawn_before() -> None:
    """Nothing is remembered: any order of tokens, samples and other requests gives the same."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20, 300)).astype(np.float32)
    jobs = [(seed, sample, index) for seed in (1, 2) for sample in range(3) for index in range(20)]

    def run(order: list[int]) -> dict[tuple[int, int, int], int]:
        result = {}
        for at in order:
            seed, sample, index = jobs[at]
            params = SamplingParams(temperature=1.0, seed=seed)
            result[jobs[at]] = choose(logits[index], params, [0], [0] * index, sample=sample)
        return result

    assert run(list(range(len(jobs)))) == run(rng.permutation(len(jobs)).tolist())


def test_sample_of_several_is_the_single_one() -> None:
    """The first text of n is that of n = 1: the number of texts does not enter."""
    logits = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    one, four = (SamplingParams(temperature=1.0, seed=5, n=n) for n in (1, 4))
    assert choose(logits, one, [0], []) == choose(logits, four, [0], [], sample=0)
    assert len({choose(logits, four, [0], [], sample=sample) for sample in range(4)}) > 1


# ---- frequencies, with fixed seeds: a chi-square far inside what a right sampler gives


def chi_square(counts: Logits, p: Logits) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("changes", "p"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"min_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [4 / 7, 3 / 7, 0, 0]),  # of 9/10: 0.45 is not reached by 0.4 alone
        ({"logit_bias": {3: math.log(4)}}, [4 / 13, 3 / 13, 2 / 13, 4 / 13]),
    ],
)
@pytest.mark.parametrize("seed", [1, 2**63])
def test_frequencies(changes: dict[str, Any], p: list[float], seed: int) -> None:
    logits = np.log(np.float32([0.4, 0.3, 0.2, 0.1]))
    params = SamplingParams(**{"temperature": 1.0, "seed": seed, **changes})
    output: list[int] = []
    counts = np.zeros(4)
    for _ in range(4000):
        counts[choose(logits, params, [0], output)] += 1
        output.append(0)
    expected = np.array(p)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    quantile = {2: 10.8, 3: 13.8, 4: 16.3}[int(possible.sum())]  # of chi-square at 0.999; the seeds are fixed
    assert chi_square(counts[possible], expected[possible]) < quantile


# ---- parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("max_tokens", True), ("max_tokens", 2.0), ("temperature", -0.1), ("temperature", math.nan),
        ("temperature", math.inf), ("temperature", "1"), ("temperature", True), ("temperature", 10**400),
        ("top_k", -1), ("top_k", 2**31), ("top_p", -0.1), ("top_p", 1.1), ("top_p", math.nan), ("min_p", 2),
        ("typical_p", -1), ("repetition_penalty", 0), ("repetition_penalty", -1.0), ("presence_penalty", math.inf),
        ("frequency_penalty", None), ("logit_bias", {-1: 0.0}), ("logit_bias", {0: math.nan}),
        ("logit_bias", {0: math.inf}), ("logit_bias", {"0": 1.0}), ("logit_bias", 7), ("logit_bias", [(1, 2, 3)]),
        ("seed", -1), ("seed", 2**64), ("seed", 1.5), ("n", 0), ("best_of", 0), ("stop", ""), ("stop", ["a", ""]),
        ("stop", [3]), ("stop", 3), ("stop", b"a"), ("stop_token_ids", [-1]), ("stop_token_ids", "12"),
        ("stop_token_ids", 5), ("include_stop", 1), ("ignore_eos", "yes"), ("logprobs", -1), ("prompt_logprobs", 1.5),
        ("beam_width", 0), ("length_penalty", math.nan), ("length_penalty", 1e308), ("length_penalty", -33.0),
    ],
)  # fmt: skip
def test_fields_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ContractError, match=rf"^SamplingParams: {field} .*, got .*, need "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 3, "best_of": 2, "temperature": 1.0}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "temperature": 1.0}, "temperature"),
        ({"beam_width": 2, "top_k": 5}, "top_k"),
        ({"beam_width": 2, "stop": "x"}, "stop"),
        ({"beam_width": 2, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"beam_width": 2, "logit_bias": {1: 1.0}}, "logit_bias"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ContractError, match=rf"^SamplingParams: {named} "):
        SamplingParams(**fields)


def test_fields_have_one_form() -> None:
    loose = SamplingParams(
        logit_bias={5: 1, 2: np.float32(0.5)}, stop=["b", "a"], stop_token_ids=[3, 3, np.int64(4)], top_k=np.int32(7),
        temperature=1, seed=np.uint64(2**63),
    )  # fmt: skip
    strict = SamplingParams(
        logit_bias=[(2, 0.5), (5, 1.0)], stop=("b", "a"), stop_token_ids=frozenset({3, 4}), top_k=7, temperature=1.0,
        seed=2**63,
    )  # fmt: skip
    assert loose == strict
    assert hash(loose) == hash(strict)
    assert pickle.loads(pickle.dumps(loose)) == strict
    assert replace(loose, top_k=1).logit_bias == strict.logit_bias


def test_what_a_model_lacks_is_refused() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9], stop="x", logprobs=10).check_model(10, True)
    for params in (SamplingParams(logit_bias={10: 1.0}), SamplingParams(stop_token_ids=[10]),
                   SamplingParams(logprobs=11), SamplingParams(prompt_logprobs=11)):  # fmt: skip
        with pytest.raises(ContractError, match=r"^SamplingParams: "):
            params.check_model(10, True)
    with pytest.raises(ContractError, match=r"^SamplingParams: stop needs a tokenizer"):
        SamplingParams(stop="x").check_model(10, False)


def test_seeds_are_drawn_where_noise_enters() -> None:
    assert SamplingParams().seeded().seed is None
    assert SamplingParams(temperature=1.0, seed=0).seeded().seed == 0
    drawn = {SamplingParams(temperature=1.0).seeded().seed for _ in range(5)}
    assert len(drawn) == 5
    with pytest.raises(ContractError, match=r"^choose: params has no seed"):
        choose(np.zeros(3, np.float32), SamplingParams(temperature=1.0), [0], [])


def test_properties_tell_how_a_request_is_run() -> None:
    assert SamplingParams().is_plain
    assert not SamplingParams(presence_penalty=0.1).is_plain
    assert not SamplingParams(logit_bias={0: 1.0}).is_plain
    assert not SamplingParams(temperature=0.1).is_greedy
    assert [SamplingParams(n=2).num_samples, SamplingParams(beam_width=3, n=2).num_samples] == [2, 3]
    assert SamplingParams(n=2, best_of=5, temperature=1.0).num_samples == 5


@pytest.mark.parametrize("eos", [{5}, {6}, {7}, {5, 6, 7}])
def test_p65_any_token_that_ends_a_text_ends_it(eos: set[int]) -> None:
    for token in eos:
        assert SamplingParams(max_tokens=9).finish_reason(token, 1, eos) == "stop"
        assert SamplingParams(max_tokens=9, ignore_eos=True).finish_reason(token, 1, eos) is None
    assert SamplingParams(ignore_eos=True, stop_token_ids=[5]).finish_reason(5, 1, {5}) == "stop"


def test_p58_length_counts_new_tokens() -> None:
    params = SamplingParams(max_tokens=4)
    assert [params.finish_reason(0, number, ()) for number in (1, 2, 3, 4)] == [None, None, None, "length"]
    assert params.finish_reason(0, 2, (), max_tokens=2) == "length"
    assert params.finish_reason(0, 4, (), max_tokens=9) == "length"
