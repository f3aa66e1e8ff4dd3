"""Stored models through the engine: cached, chunked, batched, forked, preempted and swapped, greedy text is equal.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.engine import Engine, EngineConfig
from pagedref.models import load_model
from pagedref.models.sampling import SamplingParams

FOLDER = os.environ.get("PAGEDREF_GOLDEN")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")

WAYS: dict[str, dict[str, Any]] = {
    "cached": {"num_frames": 200, "page_size": 4},
    "chunked": {"num_frames": 200, "page_size": 4, "token_budget": 7, "max_running": 7, "prefix_cache": False},
    "preempted": {"num_frames": 36, "page_size": 4, "token_budget": 32, "max_running": 12, "watermark": 0},
    "swapped": {
        "num_frames": 36, "page_size": 4, "token_budget": 32, "max_running": 12, "watermark": 0,
        "preemption": "swap", "swap_frames": 200,
    },
    "deterministic": {"num_frames": 60, "page_size": 3, "token_budget": 16, "max_running": 8, "deterministic": True},
}  # fmt: skip


def names() -> list[str]:
    return sorted(path.parent.name for path in Path(FOLDER).glob("models/*/expected.npz")) if FOLDER else []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", names())
def test_greedy_text(name: str, way: str) -> None:
    """Each prompt three times, once with two samples: all of them give the stored continuation."""
    folder = Path(str(FOLDER)) / "models" / name
    with np.load(folder / "expected.npz", allow_pickle=False) as data:
        expected = {key: data[key] for key in data.files}
    count = sum(key.startswith("prompt_") for key in expected)
    prompts = [expected[f"prompt_{i}"].tolist() for i in range(count)] * 3
    wanted = [expected[f"greedy_{i}"].tolist() for i in range(count)] * 3
    params = [
        SamplingParams(max_tokens=len(new), ignore_eos=True, n=2 if at >= 2 * count else 1)
        for at, new in enumerate(wanted)
    ]
    engine = Engine(load_model(folder), EngineConfig(**WAYS[way], poison=True))
    found = engine.generate(prompts, params)
    for completion, new in zip(found, wanted, strict=True):
        assert completion.error is None
        assert [list(sample.token_ids) for sample in completion.samples] == [new] * len(completion.samples)
    engine.cache.audit()
    metrics = engine.metrics()
    assert metrics.frames_held == 0
    assert way != "preempted" or metrics.recomputed
    assert way != "swapped" or metrics.swapped
