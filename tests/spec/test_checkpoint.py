"""HF directories: names, shapes, shards, stop tokens (P65), and everything that must be named (P69, P70)."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.safetensors_file import write_safetensors
from pagedref.models.weights import half_split, weight_shapes

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 20,
    "hidden_size": 12,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "eos_token_id": 7,
    "dtype": "float32",
}
LAYER = {
    "input_layernorm.weight": (12,),
    "post_attention_layernorm.weight": (12,),
    "self_attn.q_proj.weight": (24, 12),
    "self_attn.k_proj.weight": (12, 12),
    "self_attn.v_proj.weight": (12, 12),
    "self_attn.o_proj.weight": (12, 24),
    "self_attn.q_proj.bias": (24,),
    "self_attn.k_proj.bias": (12,),
    "self_attn.v_proj.bias": (12,),
    "mlp.gate_proj.weight": (10, 12),
    "mlp.up_proj.weight": (10, 12),
    "mlp.down_proj.weight": (12, 10),
}
Tensors = dict[str, npt.NDArray[Any]]


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (20, 12), "lm_head.weight": (20, 12), "model.norm.weight": (12,)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in LAYER.items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(folder: Path, config: dict[str, Any] | None = None, weights: Tensors | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    write_safetensors(folder / "model.safetensors", tensors() if weights is None else weights)
    return folder


def write_shards(folder: Path, weights: Tensors) -> dict[str, str]:
    """Write every second tensor to the second shard; return the index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    placed = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(weights))}
    for shard in set(placed.values()):
        write_safetensors(folder / shard, {n: w for n, w in weights.items() if placed[n] == shard})
    write_index(folder, placed)
    return placed


def write_index(folder: Path, placed: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ContractError) as caught:
        load_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    assert all(word in text for word in words), text


def test_weights_have_our_names_and_the_values_of_the_file(tmp_path: Path) -> None:
    stored = tensors()
    checkpoint = load_checkpoint(write_model(tmp_path / "m"))
    weights, config = checkpoint.weights, checkpoint.config
    assert {name: array.shape for name, array in weights.items()} == dict(weight_shapes(config))
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in weights.values())
    hf = {"attn_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight"}
    hf |= {kind: f"self_attn.{kind}_proj.weight" for kind in "qkvo"}
    hf |= {f"{kind}_bias": f"self_attn.{kind}_proj.bias" for kind in "qkv"}
    hf |= {kind: f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")}
    for layer in range(2):
        for ours, theirs in hf.items():
            np.testing.assert_array_equal(weights[f"layers.{layer}.{ours}"], stored[f"model.layers.{layer}.{theirs}"])
    np.testing.assert_array_equal(weights["embed"], stored["model.embed_tokens.weight"])
    np.testing.assert_array_equal(weights["final_norm"], stored["model.norm.weight"])
    np.testing.assert_array_equal(weights["lm_head"], stored["lm_head.weight"])
    assert checkpoint.tokenizer is None and "tokenizer.json" in checkpoint.tokenizer_note
    assert "array" not in repr(checkpoint)


def test_shards_say_the_same_as_one_file(tmp_path: Path) -> None:
    one = load_checkpoint(write_model(tmp_path / "one")).weights
    write_shards(tmp_path / "two", tensors())
    two = load_checkpoint(tmp_path / "two").weights
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_half_precision_is_widened_exactly(tmp_path: Path) -> None:
    half = {name: array.astype(np.float16) for name, array in tensors().items()}
    weights = load_checkpoint(write_model(tmp_path / "m", weights=half)).weights
    np.testing.assert_array_equal(weights["embed"], half["model.embed_tokens.weight"].astype(np.float32))


def test_another_configuration_may_be_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").rename(folder / "config_legacy.json")
    assert load_checkpoint(folder / "config_legacy.json").config.vocab_size == 20
    refused(folder, "config.json")


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_checkpoint(write_model(tmp_path / "m"), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 27) for i in range(1, 28)]


def test_missing_weights_are_named(tmp_path: Path) -> None:
    stored = tensors()
    del stored["model.layers.1.self_attn.v_proj.bias"], stored["lm_head.weight"]
    refused(write_model(tmp_path / "m", weights=stored), "layers.1.self_attn.v_proj.bias", "lm_head.weight")


def test_unused_tensors_are_named(tmp_path: Path) -> None:
    extra = {f"model.layers.0.self_attn.{name}": np.zeros(6, np.float32) for name in ("q_norm.weight", "o_proj.bias")}
    refused(write_model(tmp_path / "m", weights=tensors() | extra), "nothing uses", "q_norm.weight", "o_proj.bias")
    third = {name.replace("layers.1", "layers.2"): array for name, array in tensors().items() if "layers.1" in name}
    refused(write_model(tmp_path / "m", weights=tensors() | third), "layers.2", "and 8 more")


def test_rotary_tables_of_old_files_are_harmless(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3, np.float32)}
    assert "embed" in load_checkpoint(write_model(tmp_path / "m", weights=tensors() | extra)).weights


def test_wrong_shapes_show_both(tmp_path: Path) -> None:
    stored = tensors()
    stored["model.layers.1.mlp.up_proj.weight"] = stored["model.layers.1.mlp.up_proj.weight"].T.copy()
    refused(write_model(tmp_path / "m", weights=stored), "layers.1.mlp.up_proj.weight", "(12, 10)", "(10, 12)")
    refused(write_model(tmp_path / "m", {**CONFIG, "head_dim": 4}), "q_proj.weight", "(24, 12)", "(16, 12)")


def test_a_tied_output_projection_may_be_stored_again(tmp_path: Path) -> None:
    tied, stored = {**CONFIG, "tie_word_embeddings": True}, tensors()
    refused(write_model(tmp_path / "m", tied, stored), "lm_head.weight", "differs")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    assert "lm_head" not in load_checkpoint(write_model(tmp_path / "m", tied, stored)).weights
    del stored["lm_head.weight"]
    assert "lm_head" not in load_checkpoint(write_model(tmp_path / "m", tied, stored)).weights


def test_stop_tokens_are_the_union_of_all_files_p65(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": [5]}')
    assert load_checkpoint(folder).config.eos_token_ids == {5, 7}
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"word{i}": i for i in range(6)} | {"</s>": 6}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="word0")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.eos_token_ids == {5, 6, 7}
    assert checkpoint.tokenizer is not None and checkpoint.tokenizer.eos_token_ids == {6}


def test_missing_and_misplaced_shards_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    placed = write_shards(folder, tensors())
    first, second = sorted(set(placed.values()))
    name = next(n for n, shard in placed.items() if shard == first)
    write_index(folder, {**placed, name: second})
    refused(folder, name, "index")
    write_index(folder, {**placed, "more": second})
    refused(folder, "'more'", "index")
    write_index(folder, placed)
    write_safetensors(folder / second, {name: np.zeros(1)})
    refused(folder, name, "two shards")
    (folder / second).unlink()
    refused(folder, second, "missing")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "model.bin", "a\n.safetensors", 3, None])
def test_an_index_names_plain_files_only(tmp_path: Path, shard: object) -> None:
    folder = tmp_path / "m"
    write_shards(folder, tensors())
    write_index(folder, {"model.norm.weight": shard})
    refused(folder, "impossible file")
    write_index(folder, [])
    refused(folder, "weight_map")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere")
    refused(tmp_path, "config.json")
    refused(Path("x" * 5000), "path")
    folder = write_model(tmp_path / "m")
    refused(folder / "model.safetensors", "HF directory")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that is never opened")
    refused(folder, "no weights", "model.safetensors")
    for bad in (b"{", b"[]", b"\xff", b"[" * 10_000):
        (folder / "config.json").write_bytes(bad)
        refused(folder, "config.json")


def test_a_layer_count_beyond_the_file_is_refused_at_once(tmp_path: Path) -> None:
    start = time.perf_counter()
    refused(write_model(tmp_path / "m", {**CONFIG, "num_hidden_layers": 2**31 - 1}), "num_hidden_layers")
    refused(write_model(tmp_path / "n", {**CONFIG, "num_hidden_layers": 4000}), "too few tensors", "4000 layers")
    assert time.perf_counter() - start < 1


def test_half_split_puts_pairs_half_a_head_apart_p67() -> None:
    interleaved = np.arange(2 * 4 * 3, dtype=np.float32).reshape(8, 3)  # 2 heads of 4 rows
    split = half_split(interleaved, 2)
    for head in (0, 4):
        for pair in range(2):
            np.testing.assert_array_equal(split[head + pair], interleaved[head + 2 * pair])
            np.testing.assert_array_equal(split[head + pair + 2], interleaved[head + 2 * pair + 1])


FILES = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=1000)
@given(st.data())
def test_damaged_files_never_surprise(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "m"
    write_shards(folder, tensors())
    path = folder / data.draw(st.sampled_from(FILES))
    raw = bytearray(path.read_bytes())
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        raw[place % len(raw)] = byte
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    tracemalloc.start()
    try:
        load_checkpoint(folder)
    except PagedRefError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
    finally:
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()
