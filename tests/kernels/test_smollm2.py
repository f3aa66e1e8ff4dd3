"""SmolLM2 wholly in kernels says what it says on NumPy; only where ``PAGEDREF_SMOLLM2=1`` asks for it."""

from __future__ import annotations

import os
import time

import pytest

from pagedref.models.model import load_model

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda
from pagedref_cuda.runner import Runner

PROMPT = "What is the capital of France?"


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PAGEDREF_SMOLLM2") != "1", reason="tox -e smollm2-emulator sets PAGEDREF_SMOLLM2")
def test_sixteen_tokens_of_the_readme_prompt() -> None:
    expected = load_model("smollm2").generate(PROMPT, 16, ignore_eos=True)[0]
    model = load_model("smollm2", "cuda")
    assert isinstance(model.transformer, Runner)
    times = [time.perf_counter()]
    answer = model.generate(PROMPT, 16, ignore_eos=True, on_token=lambda _: times.append(time.perf_counter()))[0]
    first, rest = times[1] - times[0], (times[-1] - times[1]) / max(1, len(times) - 2)
    read = len(answer.prompt_ids)
    print(f"\n{pagedref_cuda.device()}: {first:.1f} s to the first token ({read} read), then {rest:.1f} s each")
    print(answer.text)
    assert len(answer.token_ids) == 16 and answer.token_ids == expected.token_ids
