"""GGUF files: the container, block formats, rotary layout (P67), settings, tokenizers, and files that are damaged."""

from __future__ import annotations

import dataclasses
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.checkpoint import Checkpoint, load_checkpoint
from pagedref.models.config import ModelConfig
from pagedref.models.gguf_file import GGUFFile
from pagedref.models.gguf_model import config_from_gguf
from pagedref.models.rope import RopeScaling
from tests.engine.small_models import make_weights

gguf = pytest.importorskip("gguf")

HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB = 4, 2, 8, 32, 64, 24
Format = gguf.GGMLQuantizationType
Weights = dict[str, npt.NDArray[Any]]


def hf_weights(bias: bool = False) -> Weights:
    """One layer, by our names and in our order."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (VOCAB, HIDDEN),
        "final_norm": (HIDDEN,),
        "layers.0.attn_norm": (HIDDEN,),
    }
    shapes |= {"layers.0.q": (HEADS * DIM, HIDDEN), "layers.0.k": (KV_HEADS * DIM, HIDDEN)}
    shapes |= {"layers.0.v": (KV_HEADS * DIM, HIDDEN), "layers.0.o": (HIDDEN, HEADS * DIM)}
    shapes |= {"layers.0.mlp_norm": (HIDDEN,), "layers.0.gate": (INNER, HIDDEN), "layers.0.up": (INNER, HIDDEN)}
    shapes |= {"layers.0.down": (HIDDEN, INNER)}
    if bias:
        shapes |= {f"layers.0.{kind}_bias": (shapes[f"layers.0.{kind}"][0],) for kind in "qkv"}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


NAMES = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
NAMES |= {"layers.0.attn_norm": "blk.0.attn_norm.weight", "layers.0.mlp_norm": "blk.0.ffn_norm.weight"}
NAMES |= {f"layers.0.{kind}": f"blk.0.attn_{kind}.weight" for kind in "qkv"} | {
    "layers.0.o": "blk.0.attn_output.weight"
}
NAMES |= {f"layers.0.{kind}_bias": f"blk.0.attn_{kind}.bias" for kind in "qkv"}
NAMES |= {f"layers.0.{kind}": f"blk.0.ffn_{kind}.weight" for kind in ("gate", "up", "down")}


def interleave(array: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """What the converters of GGUF do to q and k of a Llama: pair i of a head becomes rows 2i and 2i + 1."""
    half = array.shape[0] // heads // 2
    rows = [head * 2 * half + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
    return array[rows]


def write(
    path: Path,
    weights: Weights | None = None,
    arch: str = "llama",
    change: Callable[[Any], None] = lambda writer: None,
    format_: Any = None,
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    change(writer)
    for name, array in (hf_weights() if weights is None else weights).items():
        if arch == "llama" and name.startswith(("layers.0.q", "layers.0.k")):
            array = interleave(array, HEADS if ".q" in name else KV_HEADS)
        if format_ is not None and array.ndim == 2:
            writer.add_tensor(NAMES.get(name, name), gguf.quants.quantize(array, format_), raw_dtype=format_)
        else:
            writer.add_tensor(NAMES.get(name, name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ContractError) as caught:
        load_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    assert all(word in text for word in words), text


def assert_equal(checkpoint: Checkpoint, expected: Weights) -> None:
    assert checkpoint.weights.keys() == expected.keys()
    for name, array in expected.items():
        assert checkpoint.weights[name].dtype == np.float32 and checkpoint.weights[name].flags.c_contiguous
        np.testing.assert_array_equal(checkpoint.weights[name], array, err_msg=name)


def test_llama_rows_are_put_back_per_head_p67(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write(tmp_path / "m.gguf"))
    assert_equal(checkpoint, hf_weights())
    config = checkpoint.config
    assert (config.num_qo_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (
        HEADS,
        KV_HEADS,
        DIM,
        VOCAB,
    )
    assert (config.norm_eps, config.rope_theta, config.max_model_len) == (1e-5, 500.0, 128)
    assert config.tie_embeddings and not config.qkv_bias and config.dtype == "F32"
    assert load_checkpoint(tmp_path).config == config  # a folder with one file


def test_llama_biases_are_permuted_too(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write(tmp_path / "m.gguf", hf_weights(bias=True)))
    assert checkpoint.config.qkv_bias
    assert_equal(checkpoint, hf_weights(bias=True))


def test_qwen2_rows_are_left_alone(tmp_path: Path) -> None:
    weights = {**hf_weights(bias=True), "lm_head": np.ones((VOCAB, HIDDEN), np.float32)}
    checkpoint = load_checkpoint(write(tmp_path / "m.gguf", weights, "qwen2"))
    assert checkpoint.config.qkv_bias and not checkpoint.config.tie_embeddings
    assert_equal(checkpoint, weights)
    refused(write(tmp_path / "m.gguf", None, "qwen2"), "attn_q.bias")


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_formats_expand_as_the_gguf_package_does(tmp_path: Path, name: str) -> None:
    format_ = Format[name]
    checkpoint = load_checkpoint(write(tmp_path / "m.gguf", format_=format_))
    assert checkpoint.config.dtype == name
    for ours, array in hf_weights().items():
        stored = gguf.quants.dequantize(gguf.quants.quantize(array, format_), format_) if array.ndim == 2 else array
        np.testing.assert_array_equal(checkpoint.weights[ours], stored, err_msg=ours)


def test_block_formats_against_their_definition(tmp_path: Path) -> None:
    """Q8_0: value = d * q. Q4_1: value = d * q + m, low halves of the bytes first."""
    q8 = struct.pack("<e", 0.5) + np.arange(-16, 16, dtype=np.int8).tobytes()
    q4 = struct.pack("<ee", 0.25, -1.0) + bytes((15 - i) << 4 | i for i in range(16))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("q8", np.frombuffer(q8, np.uint8)[None], raw_dtype=Format.Q8_0)
    writer.add_tensor("q4", np.frombuffer(q4, np.uint8)[None], raw_dtype=Format.Q4_1)
    writer.add_tensor("wide", np.array([1.5, 1e300]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "m.gguf")
    np.testing.assert_array_equal(file.read_float32("q8"), 0.5 * np.arange(-16, 16)[None])
    np.testing.assert_array_equal(
        file.read_float32("q4"), [[*(np.arange(16) / 4 - 1), *(np.arange(15, -1, -1) / 4 - 1)]]
    )
    np.testing.assert_array_equal(file.read_float32("wide"), np.array([1.5, np.inf], np.float32))


def test_integers_do_not_expand(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {**hf_weights(), "final_norm": np.ones(HIDDEN, np.int32)})
    refused(path, "output_norm.weight", "I32")


def test_metadata_of_every_type(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_uint8("a.u8", 255)
        writer.add_int64("a.i64", -(2**62))
        writer.add_float32("a.f32", 1e-5)
        writer.add_float64("a.f64", 0.1)
        writer.add_bool("a.bool", True)
        writer.add_string("a.text", "é")
        writer.add_array("a.floats", [0.5, 2.0])
        writer.add_array("a.texts", ["x", ""])

    data = GGUFFile(write(tmp_path / "m.gguf", change=change)).metadata
    found = [data[f"a.{key}"] for key in ("u8", "i64", "f32", "f64", "bool", "text", "floats", "texts")]
    assert found == [255, -(2**62), 1e-5, 0.1, True, "é", [0.5, 2.0], ["x", ""]]


def test_stop_tokens_are_a_union(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(3)

    config = load_checkpoint(write(tmp_path / "m.gguf", change=change)).config
    assert config.bos_token_id == 1 and config.eos_token_ids == {2, 3}


def test_rotary_scaling(tmp_path: Path) -> None:
    def linear(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)

    path = tmp_path / "m.gguf"
    assert load_checkpoint(write(path, change=linear)).config.rope_scaling == RopeScaling("linear", factor=4.0)
    refused(write(path, change=yarn), "rope.scaling.type", "yarn")
    factors = {"rope_freqs.weight": np.array([1, 1, 2, 8], np.float32)}
    config = load_checkpoint(write(path, hf_weights() | factors)).config
    np.testing.assert_allclose(config.inv_freq, 500.0 ** -(np.arange(4) / 4) / [1, 1, 2, 8], rtol=1e-15)
    for bad in ([1, 1, 2], [1, 1, 2, 0], [1, 1, 2, np.nan]):
        refused(write(path, hf_weights() | {"rope_freqs.weight": np.array(bad, np.float32)}), "rope")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda writer: writer.add_expert_count(8), ["expert_count", "8"]),
        (lambda writer: writer.add_rope_dimension_count(4), ["rope.dimension_count", "4"]),
        (lambda writer: writer.add_value_length(4), ["attention.value_length", "4"]),
        (lambda writer: writer.add_logit_scale(0.5), ["logit_scale"]),
        (lambda writer: writer.add_key_length(16), ["attn_q.weight", "(32, 32)", "(64, 32)"]),
    ],
)
def test_settings_that_would_be_misread_are_named(tmp_path: Path, change: Any, words: list[str]) -> None:
    refused(write(tmp_path / "m.gguf", change=change), *words)


def test_missing_unused_and_unknown_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    refused(write(path, arch="gpt2"), "gpt2", "llama or qwen2")
    weights = hf_weights()
    refused(write(path, {**weights, "blk.0.attn_sinks.weight": np.ones(4, np.float32)}), "blk.0.attn_sinks.weight")
    del weights["layers.0.v"]
    refused(write(path, weights), "blk.0.attn_v.weight")
    path.write_bytes(b"not a model at all, but long enough to hold a header")
    refused(path, "not a GGUF file")
    path.unlink()
    refused(path, "m.gguf")


def test_the_tokenizer_of_the_file_comes_along(tmp_path: Path) -> None:
    small_file(tmp_path / "m.gguf")
    tokenizer = load_checkpoint(tmp_path / "m.gguf").tokenizer
    if tokenizer is not None:  # the package tokenizers is installed
        assert tokenizer.encode("<s>ab") == [0, 3]
    checkpoint = load_checkpoint(write(tmp_path / "m.gguf"))
    assert checkpoint.tokenizer is None and "None" in checkpoint.tokenizer_note


def test_window_of_the_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", change=lambda writer: writer.add_sliding_window(16))
    assert config_from_gguf(GGUFFile(path)).window == 16


def small_file(path: Path) -> bytes:
    """A model with a vocabulary of three pieces."""

    def change(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(["<s>", "a", "b", "ab"])
        writer.add_token_types([3, 1, 1, 1])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)

    return write(path, change=change, format_=Format.Q4_1).read_bytes()


def loads_or_is_refused(path: Path) -> None:
    """Load a damaged file: nothing but our own errors, within a second, and without large allocations."""
    start = time.perf_counter()
    tracemalloc.start()
    try:
        load_checkpoint(path)
    except PagedRefError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20 and time.perf_counter() - start < 1


@pytest.mark.parametrize("place", [4, 8, 16, 24])
@pytest.mark.parametrize("value", [0, 2**31, 2**60, 2**64 - 1])
def test_absurd_counts_are_refused_at_once(tmp_path: Path, place: int, value: int) -> None:
    path = tmp_path / "m.gguf"
    raw = small_file(path)
    path.write_bytes(raw[:place] + value.to_bytes(8, "little") + raw[place + 8 :])
    loads_or_is_refused(path)
    refused(path)


def test_a_dimension_or_an_offset_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    raw = small_file(path)
    name = b"blk.0.ffn_up.weight"
    dims = raw.index(name) + len(name) + 4
    for place, values in ((dims, (0, 2**40, 2**63, 33)), (dims + 20, (1, 32, 2**40, 2**64 - 32))):
        for value in values:
            path.write_bytes(raw[:place] + value.to_bytes(8, "little") + raw[place + 8 :])
            loads_or_is_refused(path)
            refused(path, "ffn_up.weight" if place == dims or value > 2**39 else "tensor")


def test_truncations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    raw = small_file(path)
    header = raw.index(b"token_embd.weight")
    for size in [*range(40), *range(40, header, 97), *range(header, header + 200, 7), len(raw) // 2, len(raw) - 40]:
        path.write_bytes(raw[:size])
        refused(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_never_surprise(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.gguf"
    if not path.exists():
        (tmp_path / "raw").write_bytes(small_file(path))
    raw = bytearray((tmp_path / "raw").read_bytes())
    places = st.integers(0, 600) | st.integers(0, len(raw) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        raw[place] = byte
    path.write_bytes(raw)
    loads_or_is_refused(path)


@pytest.mark.parametrize("name", ["embed", "final_norm", "layers.0.v", "layers.0.down"])
def test_a_tensor_without_an_axis_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "m.gguf", {**hf_weights(), name: np.array(1.0, np.float32)})
    refused(path, NAMES[name], "()") if name == "embed" else refused(path, NAMES[name])


@pytest.mark.parametrize("seed", range(8))
def test_bytes_flipped_lost_and_doubled_never_surprise(tmp_path: Path, seed: int) -> None:
    """Pieces that are missing or twice shift all that follows, which single bytes do not."""
    path, random = tmp_path / "m.gguf", Random(seed)
    raw = small_file(path)
    front = raw.index(b"token_embd.weight") + 1200
    for _ in range(25):
        damaged = bytearray(raw)
        for _ in range(random.randint(1, 6)):
            at = random.randrange(front if random.random() < 0.8 else len(damaged)) % len(damaged)
            match random.randrange(5):
                case 0:
                    damaged[at] ^= 1 << random.randrange(8)
                case 1:
                    number = random.choice([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1])
                    damaged[at : at + 8] = number.to_bytes(8, "little")
                case 2:
                    del damaged[at : at + random.randint(1, 40)]
                case 3:
                    damaged[at:at] = damaged[random.randrange(len(damaged)) :][: random.randint(1, 64)]
                case _:
                    damaged[at] = random.randrange(256)
        if random.random() < 0.1:
            del damaged[random.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        loads_or_is_refused(path)


ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # architecture: family, settings of HF, entries of GGUF
    "qwen3": ("qwen3", {}, {}),
    "gemma": ("gemma", {"tie_word_embeddings": True}, {}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 9, "query_pre_attn_scalar": DIM, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0},
        {"attention.sliding_window": 9, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 9, "query_pre_attn_scalar": DIM, "rope_local_base_freq": 20000.0,
         "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"attention.sliding_window": 9, "rope.freq_base_swa": 20000.0, "rope.scaling.type": "linear",
         "rope.scaling.factor": 8.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_both_formats_say_the_same(tmp_path: Path, arch: str) -> None:
    """The model of a GGUF file is that of the HF directory that it was made from, numbers and choices alike."""
    family, settings, entries = ARCHITECTURES[arch]
    hf = ModelConfig.from_hf({
        "model_type": family, "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "head_dim": DIM,
        "num_hidden_layers": 7, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128, "rope_theta": 500.0, "rms_norm_eps": 1e-5, "dtype": "F32", **settings,
    })  # fmt: skip
    weights = make_weights(hf)
    names = {"embed": "token_embd", "final_norm": "output_norm", "lm_head": "output"}
    kinds = {f"{kind}_norm": f"attn_{kind}_norm" for kind in "qk"} | {kind: f"attn_{kind}" for kind in "qkv"}
    kinds |= {"o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "attn_norm": "attn_norm"}
    kinds |= {"mlp_norm": "ffn_norm", "attn_post_norm": "post_attention_norm", "mlp_post_norm": "post_ffw_norm"}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", arch)
    sizes = {"block_count": 7, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": INNER}
    sizes |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": DIM}
    for key, value in {**sizes, **entries}.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        (writer.add_float32 if isinstance(value, float) else add)(f"{arch}.{key}", value)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    stored = {}
    for name, weight in weights.items():
        layer, kind = name.split(".")[1:] if "." in name else ("", name)
        stored[name] = weight + np.float32(1) if hf.norm_offset and kind.endswith("norm") else weight
        writer.add_tensor((f"blk.{layer}.{kinds[kind]}" if layer else names[kind]) + ".weight", stored[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config == dataclasses.replace(hf, norm_offset=0.0)
    assert_equal(checkpoint, stored)
