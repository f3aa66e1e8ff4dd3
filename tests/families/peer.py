"""transformers as the other side: random weights, and every step that it would take in float32 taken in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.bloom import modeling_bloom


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """As BLOOM's own, but with all digits of sqrt(2 / pi), of which that has eight."""
    return torch.nn.functional.gelu(x, approximate="tanh")


modeling_bloom.bloom_gelu_forward = _gelu


@contextmanager
def everything_in_float64() -> Iterator[None]:
    """Norms, softmax, rotary tables and routers ask for float32 by name: give them float64."""
    plain = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = plain  # type: ignore[misc, method-assign]
        torch.set_default_dtype(default)


def make(model_type: str, settings: dict[str, Any], folder: Path, seed: int = 0) -> Any:
    """Return a model of the peer in float64 whose weights, all float32 numbers, lie in a folder."""
    generator = torch.Generator().manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("inv_freq") or not tensor.is_floating_point() or "embed_scale" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            if "norm" in name or ".ln_" in name:
                centre = 0.0 if "gemma" in model_type or name.endswith("bias") else 1.0
                tensor.copy_(centre + 0.3 * noise)
            elif tensor.ndim == 1 or name.endswith("_bias"):
                tensor.copy_(0.5 * noise)
            else:
                embedding = "embed" in name or "wte" in name or "wpe" in name
                tensor.copy_(noise if embedding else 1.5 * noise / np.sqrt(tensor.shape[-1]))
    model.save_pretrained(folder)
    with everything_in_float64():
        exact = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
        exact.load_state_dict({name: tensor.double() for name, tensor in model.state_dict().items()}, strict=True)
        for name, buffer in exact.named_buffers():
            if "e_score_correction" in name:
                buffer.data.copy_(dict(model.named_buffers())[name].double())
    return exact.eval()


def logits(model: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what the peer expects after each token."""
    with torch.no_grad(), everything_in_float64():
        found = model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0]
    assert found.dtype == torch.float64
    return np.asarray(found.numpy())
