"""The transformer over pages equals a dense float64 one, however its tokens are spread over steps and frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.models.config import ModelConfig, RopeScaling
from pagedref.models.layers import rms_norm, rotary_tables, rotate, silu_gate
from pagedref.models.transformer import Transformer
from pagedref.numerics import gamma
from tests.engine.small_models import dense_logits, make_config, make_weights, rounding

RNG = np.random.default_rng(0)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_embeddings": True, "num_qo_heads": 2},
    "llama3_rope": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16)},
    "linear_rope": {"rope_scaling": RopeScaling("linear", 4.0), "num_qo_heads": 4, "num_kv_heads": 4},
    "qwen2": {"architecture": "qwen2", "qkv_bias": True, "tie_embeddings": True},
    "mistral": {"architecture": "mistral", "window": 5, "num_kv_heads": 1},
}


def make(config: ModelConfig, page_size: int = 4) -> tuple[Transformer, PagedKVCache]:
    transformer = Transformer(config, make_weights(config))
    order = np.random.default_rng(1).permutation(64)
    return transformer, PagedKVCache(transformer.cache_spec(page_size), 64, frame_order=order, poison=True)


def run(transformer: Transformer, cache: PagedKVCache, pieces: dict[int, Any]) -> list[np.ndarray]:
    step = cache.begin(list(pieces), [len(piece) for piece in pieces.values()])
    logits = transformer.forward(cache, step, np.concatenate([np.asarray(p, np.int64) for p in pieces.values()]))
    cache.commit(step)
    return np.split(logits, np.cumsum([len(piece) for piece in pieces.values()])[:-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_one_prompt_at_once(family: str) -> None:
    config = make_config(**FAMILIES[family])
    transformer, cache = make(config)
    ids = RNG.integers(0, config.vocab_size, 23)
    exact = dense_logits(config, make_weights(config), ids)
    (found,) = run(transformer, cache, {cache.add(): ids})
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= rounding(config, exact)
    cache.audit()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_ragged_steps_that_mix_prefill_and_decode(family: str, page_size: int) -> None:
    config = make_config(**FAMILIES[family])
    transformer, cache = make(config, page_size)
    texts = [RNG.integers(0, config.vocab_size, n) for n in (9, 17, 4, 1)]
    sequences = [cache.add() for _ in texts]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    for counts in ([5, 1, 0, 1], [1, 9, 3, 0], [3, 1, 1, 0], [0, 6, 0, 0]):
        at = [sum(map(len, rows)) for rows in found]
        pieces = {s: text[a : a + n] for s, text, a, n in zip(sequences, texts, at, counts, strict=True)}
        for rows, logits in zip(found, run(transformer, cache, pieces), strict=True):
            rows.append(logits)
    for text, rows in zip(texts, found, strict=True):
        exact = dense_logits(config, make_weights(config), text)
        assert np.abs(np.concatenate(rows) - exact).max() <= rounding(config, exact)
    cache.audit()


def test_only_the_rows_asked_for() -> None:
    transformer, cache = make(make_config())
    ids = RNG.integers(0, 70, 12)
    (everything,) = run(transformer, cache, {cache.add(): ids})
    for rows in ([11], [3, 0], [5, 5], []):
        step = cache.begin([cache.add()], [12])
        some = transformer.forward(cache, step, ids, rows)
        assert some.shape == (len(rows), 70)
        bound = rounding(transformer.config, everything)
        assert np.abs(some - everything[rows]).max(initial=0.0) <= bound
        cache.commit(step)
    cache.audit()


def test_weights_exist_once() -> None:
    """The dictionary is emptied, and a tied output layer is the embedding itself."""
    size = {}
    for tied in (True, False):
        config = make_config(tie_embeddings=tied)
        weights = make_weights(config)
        transformer = Transformer(config, weights)
        assert weights == {}
        size[tied] = transformer.num_bytes
    assert size[False] - size[True] == 70 * 40 * 4


def test_weights_that_do_not_fit_are_refused() -> None:
    config = make_config()
    weights = make_weights(config)
    del weights["layers.1.up"]
    with pytest.raises(ContractError, match=r"weights of layers\.1\.up do not fit, got nothing, need \(72, 40\)"):
        Transformer(config, weights)
    weights = {**make_weights(config), "layers.0.o": np.zeros((40, 40), np.float32)}
    with pytest.raises(ContractError, match=r"layers\.0\.o do not fit, got \(40, 40\), need \(40, 48\)"):
        Transformer(config, weights)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([1, 70], "out of range, got 70"), ([-1, 3], "out of range, got -1"), ([1], "do not fit"), ([1.0, 2.0], "fit")],
)
def test_wrong_tokens_are_refused_before_anything_is_written(ids: list[Any], message: str) -> None:
    transformer, cache = make(make_config())
    step = cache.begin([cache.add()], [2])
    with pytest.raises(ContractError, match=message):
        transformer.forward(cache, step, ids)
    assert np.isnan(cache.arrays(0)[0]).all()
    cache.abort(step)
    cache.audit()


def test_window_goes_to_the_backend_as_it_is() -> None:
    """S5: the window counts the own position, in the configuration and in `attend` alike."""
    seen: list[dict[str, Any]] = []

    class Spy(PagedKVCache):
        def attend(self, step: Any, q: Any, *, layer: int = 0, **variants: Any) -> Any:
            seen.append(variants)
            return super().attend(step, q, layer=layer, **variants)

    for changes, expected in ((FAMILIES["mistral"], {"window": 5}), ({}, {})):
        seen.clear()
        transformer = Transformer(make_config(**changes), make_weights(make_config(**changes)))
        cache = Spy(transformer.cache_spec(4), 8)
        run(transformer, cache, {cache.add(): [1, 2, 3]})
        assert seen == [expected] * 2


def test_rotation_depends_on_distance_alone() -> None:
    inv_freq = make_config(head_dim=64).inv_freq
    q, k = RNG.standard_normal((2, 1, 1, 64), dtype=np.float32)
    products = []
    for shift in (0, 1, 17, 3000):
        turned = []
        for x, position in ((q, 40 + shift), (k, shift)):
            y = x.copy()
            rotate(y, *rotary_tables(inv_freq, np.array([position])))
            assert abs(np.linalg.norm(y) - np.linalg.norm(x)) <= gamma(64, "float32") * np.linalg.norm(x)
            turned.append(y.ravel())
        products.append(float(turned[0] @ turned[1]))
    assert np.ptp(products) <= gamma(4 * 64, "float32") * np.linalg.norm(q) * np.linalg.norm(k)


def test_rotary_tables_are_the_same_for_prefill_and_decode() -> None:
    inv_freq = make_config().inv_freq
    together = rotary_tables(inv_freq, np.arange(1000))
    alone = rotary_tables(inv_freq, np.array([742]))
    assert all(np.array_equal(a[742:743], b) for a, b in zip(together, alone, strict=True))


def test_norm_and_gate_at_their_limits() -> None:
    x, out = np.zeros((1, 4), np.float32), np.empty((1, 4), np.float32)
    rms_norm(x, np.ones(4, np.float32), 1e-5, out)
    assert not out.any()
    gate = np.array([[-1e4, -90.0, 0.0, 1e4]], np.float32)
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        silu_gate(gate, np.ones((1, 4), np.float32), out)
    assert out[0, 0] == 0 and -np.finfo(np.float32).tiny < out[0, 1] <= 0 and out[0, 2] == 0 and out[0, 3] == 1e4
