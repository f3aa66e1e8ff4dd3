"""Families on disk: every weight is found where it lies (P69), and damage of every kind is one clear line."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.config import ModelConfig
from pagedref.models.families import FAMILIES
from pagedref.models.safetensors_file import SafetensorsFile, write_safetensors
from pagedref.models.weights import weight_shapes
from tests.engine.small_models import make_weights
from tests.spec.hf_layouts import SETTINGS, Weights, tensors
from tests.spec.published_models import PUBLISHED


def hf_config(name: str) -> dict[str, Any]:
    return {"model_type": name, "architectures": [FAMILIES[name].architectures[0]], **SETTINGS[name]}


def write(folder: Path, name: str, weights: Weights | None = None, formats: str = "F32") -> Weights:
    """Write a model of a family; return its weights by our names."""
    config = ModelConfig.from_hf(hf_config(name))
    weights = make_weights(config) if weights is None else weights
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(name)))
    stored = tensors(config, weights)
    if formats == "BF16":
        bits = {key: (tensor.view(np.uint32) >> 16).astype(np.uint16) for key, tensor in stored.items()}
        write_safetensors(folder / "model.safetensors", bits, formats=dict.fromkeys(bits, "BF16"))
    else:
        stored = {key: tensor.astype(np.float16) for key, tensor in stored.items()} if formats == "F16" else stored
        write_safetensors(folder / "model.safetensors", stored)
    return weights


def test_every_family_has_a_layout() -> None:
    assert set(SETTINGS) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_is_found_where_it_lies_p69(name: str, tmp_path: Path) -> None:
    """By value: a square matrix that is the wrong way round, or heads that are mixed up, have the right shape."""
    weights = write(tmp_path, name)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config.architecture == name and checkpoint.source == str(tmp_path)
    assert checkpoint.weights.keys() == weights.keys()
    for key, weight in weights.items():
        found = checkpoint.weights[key]
        assert found.dtype == np.float32 and found.flags.c_contiguous
        np.testing.assert_array_equal(found, weight, err_msg=key)


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("formats", ["F16", "BF16"])
def test_half_precision_is_widened_exactly_p70(name: str, formats: str, tmp_path: Path) -> None:
    weights = write(tmp_path, name, formats=formats)
    found = load_checkpoint(tmp_path).weights
    for key, weight in weights.items():
        if formats == "F16":
            stored = weight.astype(np.float16).astype(np.float32)
        else:
            stored = (weight.view(np.uint32) >> 16 << 16).view(np.float32)
        np.testing.assert_array_equal(found[key], stored, err_msg=key)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_is_used_or_named_p69(name: str, tmp_path: Path) -> None:
    """Leave out each tensor in turn, and add one: both are named."""
    write(tmp_path, name)
    path = tmp_path / "model.safetensors"
    file = SafetensorsFile(path)
    stored, random = {key: file.read(key) for key in file.tensors}, Random(name)
    for key in [*stored][:: max(1, len(stored) // 12)]:
        write_safetensors(path, {other: tensor for other, tensor in stored.items() if other != key})
        with pytest.raises(ContractError, match="lacks weights") as caught:
            load_checkpoint(tmp_path)
        places = key, key.replace("ln_attn.weight", "input_layernorm.weight")  # of two places the first is named
        assert any(f"no {place}," in str(caught.value) for place in places), (key, caught.value)
    extra = random.choice(list(stored))
    write_safetensors(path, {**stored, f"{extra}_scale": np.ones(1, np.float32)})
    with pytest.raises(ContractError, match="nothing uses") as caught:
        load_checkpoint(tmp_path)
    assert f"{extra}_scale" in str(caught.value)


def test_buffers_that_follow_from_the_configuration_are_harmless(tmp_path: Path) -> None:
    for name, buffers in {
        "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
        "gpt2": ["transformer.h.0.attn.bias", "h.1.attn.masked_bias"],
        "gpt_neox": ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.rotary_emb.inv_freq"],
    }.items():
        weights = write(tmp_path / name, name)
        path = tmp_path / name / "model.safetensors"
        file = SafetensorsFile(path)
        write_safetensors(path, {key: file.read(key) for key in file.tensors} | dict.fromkeys(buffers, np.ones(2)))
        assert load_checkpoint(tmp_path / name).weights.keys() == weights.keys()


@pytest.mark.parametrize("name", ["gpt2", "bloom", "opt"])
def test_files_without_the_first_part_of_the_names(name: str, tmp_path: Path) -> None:
    """Older files of these families leave out the name of the model's own module."""
    weights = write(tmp_path, name)
    path, drop = tmp_path / "model.safetensors", "model." if name == "opt" else "transformer."
    file = SafetensorsFile(path)
    write_safetensors(path, {key.removeprefix(drop): file.read(key) for key in file.tensors})
    found = load_checkpoint(tmp_path).weights
    assert all(np.array_equal(found[key], weight) for key, weight in weights.items())


def test_a_file_of_the_old_falcon_with_one_norm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**hf_config("falcon"), "new_decoder_architecture": False}))
    config = ModelConfig.from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert (config.num_kv_heads, config.norms, config.parallel) == (1, ("attn_norm",), True)
    weights = make_weights(config)
    stored = {key.replace("ln_attn", "input_layernorm"): tensor for key, tensor in
              tensors(config, weights | {f"layers.{i}.mlp_norm{b}": np.ones(8, np.float32) for i in (0, 1)
                                         for b in ("", "_bias")}).items() if "ln_mlp" not in key}  # fmt: skip
    write_safetensors(tmp_path / "model.safetensors", stored)
    found = load_checkpoint(tmp_path).weights
    assert all(np.array_equal(found[key], weight) for key, weight in weights.items())


def test_more_experts_than_tensors_are_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    (tmp_path / "config.json").write_text(json.dumps({**hf_config("mixtral"), "num_local_experts": 2**31 - 1}))
    with pytest.raises(ContractError, match=r"too few tensors, got .*, need those of 2147483647 experts"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    """Every weight that a model has, and no other, of the right size: the sum is the number that its authors state."""
    parameters, settings = PUBLISHED[name]
    config = ModelConfig.from_hf(settings)
    assert sum(math.prod(shape) for _, shape in weight_shapes(config)) == parameters


# --- damage ---------------------------------------------------------------------------------------------------------


def damage_config(folder: Path, random: Random) -> None:
    """Change some settings to what no one meant."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for _ in range(random.randint(1, 3)):
        key = random.choice([*content, "head_dim", "rope_scaling", "layer_types", "sliding_window"])
        odd: list[Any] = [None, 0, -1, 1, 2, 3, 7, 64, 2**31 - 1, 2**40, 1e300, 0.5, "x", "", [], [1], {}, True]
        content[key] = random.choice([*odd, {"rope_type": "yarn"}])
    path.write_text(json.dumps(content))


def damage_header(folder: Path, random: Random) -> None:
    """Change offsets, types, shapes or names in the header, which stays JSON of the right length."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    entry = header[random.choice(list(header))]
    match random.randrange(4):
        case 0:
            entry["data_offsets"][random.randrange(2)] = random.choice([-8, 0, 3, 2**20, 2**63, 2**70, "0", None])
        case 1:
            entry["dtype"] = random.choice(["F64", "F16", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "F99", "", None, 3])
        case 2:
            shape = entry["shape"]
            shape[random.randrange(len(shape))] = random.choice([0, 1, -1, 3, 2**31, 2**62, "8", 1.5])
        case _:
            old = random.choice(list(header))
            header[random.choice(["", "x\n", "model.norm.weight", "y" * 3000])] = header.pop(old)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def damage_bytes(folder: Path, random: Random) -> None:
    """Flip, lose and double bytes of any file."""
    path = random.choice(sorted(folder.iterdir()))
    raw = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 4)):
        at = random.randrange(min(len(raw), 3000)) if random.random() < 0.8 else random.randrange(len(raw))
        match random.randrange(4):
            case 0:
                raw[at] = random.randrange(256)
            case 1:
                raw[at : at + 8] = random.choice([0, 1, 2**31, 2**62, 2**64 - 1]).to_bytes(8, "little")
            case 2:
                del raw[at : at + random.randint(1, 30)]
            case _:
                raw[at:at] = raw[at : at + random.randint(1, 30)]
        if len(raw) < 2:
            break
    path.write_bytes(raw)


def damage_length(folder: Path, random: Random) -> None:
    """Cut the file, or say that its header is of another length."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    if random.random() < 0.5:
        path.write_bytes(raw[: random.randrange(len(raw))])
    else:
        path.write_bytes(random.choice([0, 1, 2, 2**20, 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little") + raw[8:])


def damage_index(folder: Path, random: Random) -> None:
    """Put an index in place of the one file, and get it wrong."""
    path = folder / "model.safetensors"
    names = list(SafetensorsFile(path).tensors)
    path.rename(folder / "model-00001-of-00001.safetensors")
    placed: Any = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    for _ in range(random.randint(1, 3)):
        name = random.choice(names)
        placed[name] = random.choice(["../x.safetensors", "y.safetensors", 3, None, [], "model.bin", "a/b.safetensors"])
    placed = random.choice([placed, [], None, {**placed, "more": "model-00001-of-00001.safetensors"}])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def damage_tokenizer(folder: Path, random: Random) -> None:
    """Add a tokenizer, and get it wrong."""
    sound = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}
    odd: list[Any] = [None, 3, "x", [], {}, [1], {"type": "BPE"}, {"type": "Sequence"}]
    content = json.loads(json.dumps(sound))
    match random.randrange(4):
        case 0:
            content[random.choice(["model", "post_processor", "added_tokens", "normalizer"])] = random.choice(odd)
        case 1:
            content["model"][random.choice(["vocab", "type", "unk_token"])] = random.choice(odd)
        case 2:
            (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": random.choice(odd)}))
        case _:
            (folder / "generation_config.json").write_text(json.dumps(random.choice([[], 3, {"eos_token_id": "x"}])))
    text = json.dumps(content)
    (folder / "tokenizer.json").write_text(text if random.random() < 0.7 else text[: random.randrange(len(text))])


DAMAGE = [damage_config, damage_header, damage_bytes, damage_length, damage_index, damage_tokenizer]


@pytest.mark.parametrize("name", FAMILIES)
def test_damage_is_one_clear_line(name: str, tmp_path: Path) -> None:
    """Over all families more than a thousand checkpoints: an error of ours or a sound load, at once and small."""
    write(tmp_path / "sound", name)
    random, sound = Random(name), {path.name: path.read_bytes() for path in (tmp_path / "sound").iterdir()}
    refused = 0
    for number in range(48):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, raw in sound.items():
            (folder / file).write_bytes(raw)
        DAMAGE[number % len(DAMAGE)](folder, random)
        start = time.perf_counter()
        tracemalloc.start()
        try:
            load_checkpoint(folder)
        except PagedRefError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 700, error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert time.perf_counter() - start < 1 and peak < 8 << 20, (number, peak)
    assert refused > 24
