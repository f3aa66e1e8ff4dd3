"""Every family against transformers, random weights, both sides in float64: logits at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="tox -e families installs it")

from transformers import AutoConfig

from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.config import ModelConfig
from pagedref.models.families import FAMILIES
from pagedref.models.model import Model
from pagedref.models.transformer import Transformer
from tests.engine.small_models import rounding
from tests.families.hf_cases import CASES
from tests.families.peer import logits, make

LENGTH = 41


def run(transformer: Transformer, ids: np.ndarray[Any, Any], pieces: list[int]) -> np.ndarray[Any, Any]:
    """Read a text in pieces, over scattered frames; return all logits."""
    order = np.random.default_rng(3).permutation(40)
    cache = PagedKVCache(transformer.cache_spec(4), 40, frame_order=order, poison=True)
    sequence, found, at = cache.add(), [], 0
    for count in pieces:
        step = cache.begin([sequence], [count])
        found.append(transformer.forward(cache, step, ids[at : at + count]))
        cache.commit(step)
        at += count
    cache.audit()
    return np.concatenate(found)


@pytest.mark.parametrize("case", CASES)
def test_logits_at_every_position(case: str, tmp_path: Path) -> None:
    model_type, settings = CASES[case]
    peer = make(model_type, settings, tmp_path)
    ids = np.random.default_rng(7).integers(3, 61, LENGTH)
    exact = logits(peer, ids)
    checkpoint = load_checkpoint(tmp_path, max_model_len=LENGTH if "dynamic" in case or "beyond" in case else None)
    config = checkpoint.config
    weights = dict(checkpoint.weights)
    wide = Transformer(config, {name: weight.copy() for name, weight in weights.items()}, dtype="float64")
    for pieces in ([LENGTH], [1] * LENGTH, [17, 1, 1, 9, 13]):
        apart = np.abs(run(wide, ids, pieces) - exact).max()
        assert apart <= rounding(config, exact, "float64"), f"{case}, {pieces}: {apart:.3g}"
    narrow = Transformer(config, weights)
    apart = np.abs(run(narrow, ids, [20, 1, 20]) - exact).max()
    assert apart <= rounding(config, exact), f"{case}, float32: {apart:.3g}"


@pytest.mark.parametrize("case", [name for name in CASES if "," not in name])
def test_greedy_text(case: str, tmp_path: Path) -> None:
    model_type, settings = CASES[case]
    peer = make(model_type, settings, tmp_path, seed=1)
    checkpoint = load_checkpoint(tmp_path)
    prompt = np.random.default_rng(8).integers(3, 61, 9)
    text = prompt.tolist()
    margins = []
    for _ in range(12):
        last = logits(peer, np.asarray(text))[-1]
        best = np.sort(last)[-2:]
        margins.append(best[1] - best[0])
        text.append(int(last.argmax()))
    model = Model(checkpoint.config, checkpoint.weights)
    found = model.generate([prompt.tolist(), prompt[:4].tolist()], 12, page_size=4, ignore_eos=True)[0].token_ids
    sure = int(np.argmax(np.append(np.asarray(margins) < 1e-3, True)))
    assert sure >= 6 and found[:sure] == text[9 : 9 + sure]


def test_every_family_has_a_case() -> None:
    assert {model_type for model_type, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_a_file_leaves_out_means_what_it_means_to_the_peer(model_type: str) -> None:
    """Without any one entry a configuration says the same, or is refused because a size is missing."""
    full = AutoConfig.for_model(model_type).to_dict()
    config = ModelConfig.from_hf(full)
    for key in full:
        less = {name: value for name, value in full.items() if name != key}
        try:
            found = ModelConfig.from_hf(less)
        except ContractError as error:
            assert "is missing" in str(error) or key == "model_type", (key, error)
            continue
        if key not in ("bos_token_id", "eos_token_id", "dtype", "torch_dtype"):
            assert found == config, (key, full[key])
