"""The transformer over pages equals a dense float64 one, however its tokens are spread over steps and frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.layers.turn import rotary_tables, rotate
from pagedref.models.config import NORMS, Experts, Latent, ModelConfig
from pagedref.models.rope import RopeScaling
from pagedref.models.transformer import Transformer
from pagedref.models.weights import weight_shapes
from pagedref.numerics import gamma
from tests.engine.small_models import dense_logits, make_config, make_weights, rounding

RNG = np.random.default_rng(0)
ALL = frozenset({"q", "k", "v", "o", "gate", "up", "down", "norm"})
GPT: dict[str, Any] = {"norm": "layer", "biases": ALL, "gated": False, "activation": "gelu", "num_kv_heads": 6}
EXPERTS = Experts(6, 2, 20, shared_size=24, dense_layers=1, scale=1.6)
LATENT = Latent(rank=12, nope_dim=5, rope_dim=4, v_dim=7, q_rank=9)
MLA: dict[str, Any] = {"latent": LATENT, "head_dim": 9, "num_kv_heads": 1, "sm_scale": 0.4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_embeddings": True, "num_qo_heads": 2},
    "llama3_rope": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16)},
    "linear_rope": {"rope_scaling": RopeScaling("linear", 4.0), "num_qo_heads": 4, "num_kv_heads": 4},
    "yarn_rope": {"rope_scaling": RopeScaling("yarn", 4.0, original_max_position_embeddings=64)},
    "dynamic_rope": {"rope_scaling": RopeScaling("dynamic", 3.0, original_max_position_embeddings=16)},
    "long_rope": {"rope_scaling": RopeScaling(
        "longrope", 4.0, original_max_position_embeddings=16, factors=(1.0, 1.0, 1.0, 1.0),
        long_factors=(1.0, 2.0, 3.0, 9.0))},
    "qwen2": {"architecture": "qwen2", "biases": frozenset("qkv"), "tie_embeddings": True},
    "mistral": {"architecture": "mistral", "window": 5, "num_kv_heads": 1},
    "some biases": {"biases": frozenset({"k", "up"})},
    "windows in turn": {"window": 4, "full_layers": frozenset({1})},
    "two rotary bases": {"window": 4, "full_layers": frozenset({1}), "local_rope_theta": 7.0},
    "partial rotary": {"rotary_dim": 4},
    "no rotary": {"rotary_dim": 0},
    "a layer without rotary": {"unrotated_layers": frozenset({0})},
    "learned positions": {**GPT, "rotary_dim": 0, "learned_positions": 2},
    "alibi": {**GPT, "rotary_dim": 0, "alibi": 8.0, "embed_norm": True},
    "steep alibi": {"rotary_dim": 0, "alibi": 4.0, "norm": "layer"},
    "side by side": {**GPT, "parallel": True},
    "side by side, one norm": {**GPT, "parallel": True, "norms": ("attn_norm",)},
    "norms behind": {"norms": ("attn_post_norm", "mlp_post_norm"), "qk_norm": "width"},
    "norms all around": {"norms": NORMS, "norm_offset": 1.0, "embed_scale": 6.0, "activation": "gelu_tanh"},
    "norm of heads": {"qk_norm": "head", "norm_offset": 1.0},
    "soft caps": {"softcap": 1.5, "logit_softcap": 4.0, "sm_scale": 0.5},
    "sinks": {"sinks": True, "window": 6},
    "relu": {"gated": False, "activation": "relu"},
    "experts": {"experts": EXPERTS},
    "experts, renormalised": {"experts": replace(EXPERTS, renormalise=True, dense_layers=0, shared_size=0)},
    "experts of gpt-oss": {
        "experts": Experts(5, 3, 20, scoring="softmax_chosen", limit=0.7),
        "biases": frozenset({"router", "experts_gate", "experts_up", "experts_down"})},
    "experts in groups": {"experts": replace(EXPERTS, groups=3, groups_per_token=2)},
    "experts of deepseek": {"experts": replace(
        EXPERTS, scoring="sigmoid", correction=True, groups=3, groups_per_token=2, group_score="top2",
        renormalise=True)},
    "latents": MLA,
    "latents in halves": {**MLA, "latent": replace(LATENT, q_rank=None, interleaved=False),
                          "biases": frozenset({"kv_a", "o"})},
}  # fmt: skip


def make(config: ModelConfig, page_size: int = 4, dtype: str = "float32") -> tuple[Transformer, PagedKVCache]:
    transformer = Transformer(config, make_weights(config), dtype=dtype)
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
def test_the_exact_layers_agree_with_the_dense_model(family: str) -> None:
    """Two derivations in float64: one line of a formula in the wrong place shows at once."""
    config = make_config(**FAMILIES[family])
    transformer, cache = make(config, dtype="float64")
    ids = RNG.integers(0, config.vocab_size, 23)
    exact = dense_logits(config, make_weights(config), ids)
    sequence = cache.add()
    found = np.concatenate([run(transformer, cache, {sequence: piece})[0] for piece in np.split(ids, [9, 10, 11])])
    assert found.dtype == np.float64
    assert np.abs(found - exact).max() <= rounding(config, exact, "float64")
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


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("llama3_rope", {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.1, 16)}),
    ("yarn_rope", {"rope_scaling": RopeScaling("yarn", 4.0, original_max_position_embeddings=64, truncate=False)}),
    ("yarn_rope", {"rope_scaling": RopeScaling("yarn", 4.0, original_max_position_embeddings=64, magnitude=1.0)}),
    ("dynamic_rope", {"max_model_len": 23}),
    ("long_rope", {"max_model_len": 16}),
    ("qwen2", {"biases": frozenset("qk")}),
    ("mistral", {"window": 6}),
    ("windows in turn", {"full_layers": frozenset({0})}),
    ("two rotary bases", {"local_rope_theta": None}),
    ("partial rotary", {"rotary_dim": None}),
    ("no rotary", {"rotary_dim": None}),
    ("a layer without rotary", {"unrotated_layers": frozenset({1})}),
    ("learned positions", {"learned_positions": 1, "max_model_len": 65}),
    ("alibi", {"alibi": 7.9}),
    ("alibi", {"embed_norm": False}),
    ("steep alibi", {"norm": "rms"}),
    ("side by side", {"parallel": False}),
    ("side by side", {"norms": ("attn_norm",)}),
    ("side by side", {"biases": ALL - {"norm"}}),
    ("side by side", {"activation": "gelu_tanh"}),
    ("norms behind", {"norms": ("attn_post_norm",)}),
    ("norms behind", {"qk_norm": None}),
    ("norms all around", {"norm_offset": 0.0}),
    ("norms all around", {"embed_scale": 1.0}),
    ("norms all around", {"norms": ("attn_norm", "attn_post_norm", "mlp_norm")}),
    ("soft caps", {"softcap": None}),
    ("soft caps", {"logit_softcap": None}),
    ("soft caps", {"sm_scale": None}),
    ("sinks", {"sinks": False}),
    ("experts", {"experts": replace(EXPERTS, scale=1.0)}),
    ("experts", {"experts": replace(EXPERTS, per_token=1)}),
    ("experts", {"experts": replace(EXPERTS, shared_size=0)}),
    ("experts", {"experts": replace(EXPERTS, renormalise=True)}),
    ("experts, renormalised", {"experts": replace(EXPERTS, dense_layers=0, shared_size=0, renormalise=True,
                                                  scoring="sigmoid")}),
    ("experts of gpt-oss", {"experts": Experts(5, 3, 20, scoring="softmax_chosen", limit=0.8)}),
    ("experts of gpt-oss", {"biases": frozenset({"router", "experts_gate", "experts_down"})}),
    ("experts in groups", {"experts": replace(EXPERTS, groups=3, groups_per_token=1)}),
    ("experts of deepseek", {"experts": replace(
        EXPERTS, scoring="sigmoid", groups=3, groups_per_token=2, group_score="top2", renormalise=True)}),
    ("latents", {"latent": replace(LATENT, interleaved=False)}),
    ("latents", {"sm_scale": 0.41}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "change"), CHANGES, ids=[f"{name}-{next(iter(c))}" for name, c in CHANGES])
def test_every_feature_shows_in_the_logits(family: str, change: dict[str, Any]) -> None:
    """With the same weights and one setting changed, logits move more than any test above lets rounding move them."""
    config = make_config(**FAMILIES[family])
    other = make_config(**{**FAMILIES[family], **change})
    weights, ids = make_weights(config), np.random.default_rng(3).integers(0, config.vocab_size, 23)
    rows = []
    for seen in (config, other):
        needed = {name: weights[name] for name, _ in weight_shapes(seen)}
        transformer = Transformer(seen, needed, dtype="float64")
        cache = PagedKVCache(transformer.cache_spec(4), 8)
        rows += run(transformer, cache, {cache.add(): ids})
    assert np.abs(rows[0] - rows[1]).max() > rounding(config, rows[0])


def test_positions_beyond_the_learned_ones_are_refused() -> None:
    config = make_config(**{**FAMILIES["learned positions"], "max_model_len": 5})
    transformer = Transformer(config, make_weights(config))
    cache = PagedKVCache(transformer.cache_spec(4), 8)
    step = cache.begin([cache.add()], [6])
    with pytest.raises(ContractError, match=r"positions are beyond the learned ones, got 5, need 0\.\.4"):
        transformer.forward(cache, step, [1] * 6)


def test_latents_go_into_a_cache_of_their_own() -> None:
    config = make_config(**MLA)
    transformer = Transformer(config, make_weights(config))
    spec = transformer.cache_spec(16)
    assert (spec.num_kv_heads, spec.head_dim, spec.value_dim) == (1, 12, 4)
    assert spec.bytes_per_token == 2 * (12 + 4) * 4
    with pytest.raises(ContractError, match="kv_format is not supported for latents"):
        transformer.cache_spec(16, "int8")
    cache = PagedKVCache(spec, 4)
    step, rows = cache.begin([cache.add()], [1]), np.ones((1, 6, 5), np.float32)
    with pytest.raises(ContractError, match="attend_latent: queries do not fit the cache"):
        cache.attend_latent(step, rows, rows, sm_scale=1.0)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ContractError, match="dtype is not a type of models, got 'float16', need float32 or float64"):
        Transformer(make_config(), make_weights(make_config()), dtype="float16")


def test_features_name_what_a_runner_must_be_able_to_do() -> None:
    assert make_config(tie_embeddings=True, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)).features == set()
    assert make_config(**FAMILIES["windows in turn"]).features == {"window", "layer windows"}
    assert make_config(**FAMILIES["side by side"]).features == {
        "layer_norm", "biases", "plain mlp", "activation", "parallel"
    }  # fmt: skip
    assert make_config(**MLA).features == {"latent", "sm_scale", "partial rotary"}
    assert make_config(**FAMILIES["yarn_rope"]).features == {"rotary magnitude"}
    seen = frozenset().union(*(make_config(**changes).features for changes in FAMILIES.values()))
    assert len(seen) == 25, sorted(seen)
