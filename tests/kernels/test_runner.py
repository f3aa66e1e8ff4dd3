"""A model wholly in kernels: the logits of exact arithmetic within rounding, the text of NumPy, every kind of cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pagedref.errors import BackendUnavailable, ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.models.model import Model, load_model
from pagedref.models.rope import RopeScaling
from pagedref.models.tiny_text import decode, encode
from pagedref.models.transformer import Transformer
from tests.engine.small_models import dense_logits, make_config, make_weights, rounding

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda as twin
from pagedref_cuda import _runtime
from pagedref_cuda.runner import DeviceCache, Runner, _pool, _rows, lacking, transformer

try:
    MODE = _runtime.mode()
except BackendUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

only_compiled = pytest.mark.skipif(MODE == "simulator", reason="the simulator has no warps: the runner is not used")

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
STORY = "the colour of heron is amber teal . what is the colour of heron ?"
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied, heads of 20, wide": {"tie_embeddings": True, "num_qo_heads": 2, "head_dim": 20, "hidden_size": 96},
    "llama3_rope": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16), "max_model_len": 512},
    "qwen2": {"architecture": "qwen2", "biases": frozenset("qkv"), "tie_embeddings": True},
    "all biases": {"biases": frozenset(["q", "o", "gate", "down"])},
    "mistral": {"architecture": "mistral", "window": 5, "num_kv_heads": 1},
    "gemma": {
        "norm_offset": 1.0, "norms": ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"),
        "activation": "gelu_tanh", "embed_scale": 6.5, "softcap": 5.0, "logit_softcap": 3.0, "sm_scale": 0.3,
        "window": 4, "full_layers": frozenset([1]), "local_rope_theta": 30.0, "qk_norm": "head",
    },
    "partial": {"rotary_dim": 4, "unrotated_layers": frozenset([1])},
}  # fmt: skip


def run(runner: Any, cache: PagedKVCache, pieces: dict[int, Any], rows: Any = None) -> Any:
    step = cache.begin(list(pieces), [len(piece) for piece in pieces.values()])
    ids = np.concatenate([np.asarray(piece, np.int64) for piece in pieces.values()])
    logits = runner.forward(cache, step, ids, rows)
    cache.commit(step)
    return logits if rows is not None else np.split(logits, np.cumsum([len(piece) for piece in pieces.values()])[:-1])


@only_compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_steps_that_mix_prefill_and_decode(family: str) -> None:
    config = make_config(**FAMILIES[family])
    runner = Runner(config, make_weights(config))
    rng = np.random.default_rng(0)
    cache = runner.make_cache(runner.cache_spec(3), 32, frame_order=rng.permutation(32), poison=True)
    texts = [rng.integers(0, config.vocab_size, n) for n in (9, 13, 4)]
    sequences = [cache.add() for _ in texts]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    with twin.emulator_options(races=True, global_races=True):
        for counts in ([5, 1, 0], [1, 9, 3], [3, 1, 1], [0, 2, 0]):
            at = [sum(map(len, rows)) for rows in found]
            pieces = {s: text[a : a + n] for s, text, a, n in zip(sequences, texts, at, counts, strict=True)}
            for rows, logits in zip(found, run(runner, cache, pieces), strict=True):
                rows.append(logits)
    for text, rows in zip(texts, found, strict=True):
        exact = dense_logits(config, make_weights(config), text)
        assert np.abs(np.concatenate(rows) - exact).max() <= rounding(config, exact)
    cache.audit()


@only_compiled
@pytest.mark.parametrize("window", [None, 7])
def test_keys_of_a_long_text_are_shared_among_warps(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single tokens behind 30, 3 and 8 others, in parts of 4: exact within rounding, and neighbours change no bit."""
    monkeypatch.setattr(_rows, "SPLIT", 4)
    config = make_config(window=window)
    runner, rng = Runner(config, make_weights(config)), np.random.default_rng(0)
    texts = [rng.integers(0, 70, n) for n in (31, 4, 9)]
    cache = runner.make_cache(runner.cache_spec(3), 40, poison=True)
    first = [cache.add() for _ in texts]
    run(runner, cache, {s: text[:-1] for s, text in zip(first, texts, strict=True)})
    alone = [cache.fork(sequence) for sequence in first]
    pieces = {s: text[-1:] for s, text in zip(first, texts, strict=True)} | {cache.add(): texts[0][:5]}
    with twin.emulator_options(races=True, global_races=True):
        together = run(runner, cache, pieces)
    for sequence, text, found in zip(alone, texts, together, strict=False):
        exact = dense_logits(config, make_weights(config), text)
        assert np.abs(found - exact[-1]).max() <= rounding(config, exact)
        assert np.array_equal(run(runner, cache, {sequence: text[-1:]})[0], found)


@only_compiled
@pytest.mark.parametrize("kind", ["of another class", "int8"])
def test_other_caches_are_served_through_their_operations(kind: str) -> None:
    """A pool that is not of float32, and a cache that changes what attention is asked: both by ``attend``."""
    config = make_config(window=6, num_kv_heads=3)
    runner = Runner(config, make_weights(config))
    asked = []

    class Spy(PagedKVCache):
        def attend(self, step: Any, q: Any, *, layer: int = 0, **variants: Any) -> Any:
            asked.append(variants)
            return super().attend(step, q, layer=layer, **variants)

    ids = np.random.default_rng(1).integers(0, 70, 11)
    if kind == "int8":
        spec = runner.cache_spec(4, "int8")
        made, other = runner.make_cache(spec, 8), PagedKVCache(spec, 8)
        assert not isinstance(made, DeviceCache)
        (exact,) = run(Transformer(config, make_weights(config)), other, {other.add(): ids})
    else:
        made, exact = Spy(runner.cache_spec(4), 8, backend=twin), dense_logits(config, make_weights(config), ids)
    (found,) = run(runner, made, {made.add(): ids})
    assert np.abs(found - exact).max() <= (2 if kind == "int8" else 1) * rounding(config, exact)
    assert asked == ([] if kind == "int8" else [{"window": 6}] * 2)


@only_compiled
def test_a_pool_that_the_host_cannot_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The route of a GPU: pages that are copied before they are written, poison, and refusals."""
    monkeypatch.setattr(_pool, "DIRECT", False)
    config = make_config()
    runner, rng = Runner(config, make_weights(config)), np.random.default_rng(0)
    cache = runner.make_cache(runner.cache_spec(4), 16, poison=True)
    assert isinstance(cache.arrays(0)[0], twin.DeviceArray)
    ids, parent = rng.integers(0, 70, 12), cache.add()
    run(runner, cache, {parent: ids[:6]})
    child = cache.fork(parent)  # its last page is copied when it goes on
    found = run(runner, cache, {parent: ids[6:], child: ids[5:2:-1]})
    for rows, text in ((found[0], ids), (found[1], np.concatenate([ids[:6], ids[5:2:-1]]))):
        exact = dense_logits(config, make_weights(config), text)
        assert np.abs(rows - exact[6:]).max() <= rounding(config, exact)
    cache.free([parent, child])
    assert np.isnan(np.asarray(cache.arrays(0)[0])).all()
    with pytest.raises(ContractError, match="DeviceCache: pool lies on the device"):
        cache.save(cache.add(), tmp_path / "one")
    cache.audit()


@only_compiled
@pytest.mark.parametrize("on_host", ["written", "read", "neither"])
def test_pages_of_a_pool_on_the_device_have_the_bytes_of_the_host(on_host: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(_pool, "DIRECT", False)
    config, rng = make_config(), np.random.default_rng(0)
    runner = Runner(config, make_weights(config))
    device, host = runner.make_cache(runner.cache_spec(4), 6), PagedKVCache(runner.cache_spec(4), 6)
    first, last = {"written": (host, device), "read": (device, host), "neither": (device, device)}[on_host]
    source, target = first.frame_store(), last.frame_store()
    assert first.geometry == last.geometry
    assert (source.layout, source.bytes_per_frame) == (target.layout, target.bytes_per_frame)
    pages = rng.integers(0, 64, (3, source.bytes_per_frame)).astype(np.uint8)
    source.write([4, 0, 2], pages)
    source.copy([4, 2], [5, 3])
    source.copy([5, 3, 0], [3, 0, 5])  # in a ring
    source.copy([3, 0, 5], [5, 3, 0])
    target.write([1, 2, 3, 4], source.read([0, 5, 3, 0]))
    assert (target.read([1, 2, 3, 4]) == pages[[1, 0, 2, 1]]).all()
    keys = np.asarray(last.arrays(1)[0])[2].tobytes()
    start = len(keys)  # behind the keys of layer 0
    assert keys == pages[0, start : 2 * start].tobytes()
    with pytest.raises(ContractError, match="write: pages have the wrong form"):
        target.write([1], pages)
    with pytest.raises(ContractError, match="frames"):
        target.read([6])


@only_compiled
def test_only_the_rows_asked_for_and_their_best_tokens() -> None:
    config = make_config()
    runner = Runner(config, make_weights(config))
    cache = runner.make_cache(runner.cache_spec(4), 32)
    ids = np.random.default_rng(0).integers(0, 70, 12)
    (everything,) = run(runner, cache, {cache.add(): ids})
    for rows in ([11], [3, 0], [5, 5], []):
        some = run(runner, cache, {cache.add(): ids}, rows)
        assert some.shape == (len(rows), 70)
        assert np.abs(some - everything[rows]).max(initial=0.0) <= rounding(config, everything)
        sequence = cache.add()
        step = cache.begin([sequence], [12])
        assert runner.greedy(cache, step, ids, rows).tolist() == some.argmax(axis=1).tolist()
        cache.free(sequence)


@only_compiled
def test_narrow_weights_are_those_of_numpy_rounded() -> None:
    config = make_config()
    for dtype in ("float16", "bfloat16"):
        runner = Runner(config, make_weights(config), weight_dtype=dtype)
        rounded = {
            name: weight.astype(TYPES[dtype]).astype(np.float32) if weight.ndim == 2 else weight
            for name, weight in make_weights(config).items()
        }
        ids = np.random.default_rng(0).integers(0, 70, 9)
        exact = dense_logits(config, rounded, ids)
        cache = runner.make_cache(runner.cache_spec(4), 16)
        (found,) = run(runner, cache, {cache.add(): ids})
        assert np.abs(found - exact).max() <= rounding(config, exact)
        assert runner.num_bytes < Runner(config, make_weights(config)).num_bytes


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_tiny_model_says_what_it_says_on_numpy(page_size: int) -> None:
    """On the emulator (or a GPU) wholly in kernels; in the simulator attention alone."""
    model, plain = load_model("tiny", "cuda"), load_model("tiny")
    assert isinstance(model.transformer, Transformer if MODE == "simulator" else Runner)
    texts = [STORY] if MODE == "simulator" else [STORY, "the mood of lynx is calm . the mood of lynx is"]
    prompts = [encode(text) for text in texts]
    expected = plain.generate(prompts, 4)
    for answer, wanted in zip(model.generate(prompts, 4, page_size=page_size), expected, strict=True):
        assert answer.token_ids == wanted.token_ids
    assert decode(expected[0].token_ids) == "amber teal."


@only_compiled
def test_what_the_kernels_lack_is_named_and_left_to_numpy() -> None:
    config = make_config(norm="layer", biases=frozenset(["norm"]), sinks=True, head_dim=6)
    named = ["layer_norm", "sinks", "norms with a bias", "heads that are no multiple of 4"]
    assert lacking(config) == named
    with pytest.raises(ContractError, match=f"Runner: config is not supported, got {', '.join(named)}, need"):
        Runner(config, make_weights(config))
    assert isinstance(transformer(config, make_weights(config)), Transformer)
    weights = make_weights(make_config())
    del weights["layers.1.up"]
    with pytest.raises(ContractError, match=r"Runner: weights of layers\.1\.up do not fit, got nothing"):
        Runner(make_config(), weights)
    with pytest.raises(ContractError, match="Runner: weight_dtype is unknown, got 'int8'"):
        Runner(make_config(), make_weights(make_config()), weight_dtype="int8")
    weights = make_weights(make_config())
    Runner(make_config(), weights)
    assert weights == {}


@only_compiled
def test_wrong_tokens_are_refused_before_anything_is_written() -> None:
    runner = Runner(make_config(), make_weights(make_config()))
    cache = runner.make_cache(runner.cache_spec(4), 4, poison=True)
    step = cache.begin([cache.add()], [2])
    wrong = ([1, 70], "out of range, got 70"), ([-1, 3], "got -1"), ([1], "do not fit"), ([1.0, 2.0], "fit")
    for ids, message in wrong:
        with pytest.raises(ContractError, match=message):
            runner.forward(cache, step, ids)
    assert np.isnan(np.asarray(cache.arrays(0)[0])).all()
    cache.abort(step)
    cache.audit()


@only_compiled
def test_a_decode_step_is_few_launches() -> None:
    """One for the embedding, eight for each layer, four for the row that was asked for, norm, logits and best token."""
    model = load_model("tiny", "cuda")
    assert isinstance(model, Model)
    cache = model.cache(8)
    sequence = cache.add()
    for tokens in (5, 1):
        step = cache.begin([sequence], [tokens])
        with twin.counting() as counts:
            model.transformer.greedy(cache, step, [7] * tokens, [tokens - 1])
        cache.commit(step)
        launches = sum(map(len, counts.values()))
        assert MODE != "emulator" or launches == 1 + 8 * model.config.num_layers + 4
