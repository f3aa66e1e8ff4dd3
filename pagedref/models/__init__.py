"""Small models on paged memory: files, configuration, tokenizer, transformer.

The names below are loaded when they are first used, so that ``import pagedref`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedref.models.checkpoint import Checkpoint as Checkpoint
    from pagedref.models.checkpoint import load_checkpoint as load_checkpoint
    from pagedref.models.config import ModelConfig as ModelConfig
    from pagedref.models.draft import Speculation as Speculation
    from pagedref.models.generate import Generation as Generation
    from pagedref.models.generate import Token as Token
    from pagedref.models.model import Model as Model
    from pagedref.models.model import load_model as load_model
    from pagedref.models.sampling import SamplingParams as SamplingParams
    from pagedref.models.transformer import Transformer as Transformer

_HOME = {
    "Checkpoint": "checkpoint",
    "Generation": "generate",
    "Model": "model",
    "ModelConfig": "config",
    "SamplingParams": "sampling",
    "Speculation": "draft",
    "Token": "generate",
    "Transformer": "transformer",
    "load_checkpoint": "checkpoint",
    "load_model": "model",
}

__all__ = [
    *("Checkpoint", "Generation", "Model", "ModelConfig", "SamplingParams", "Speculation", "Token", "Transformer"),
    *("load_checkpoint", "load_model"),
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'pagedref.models' has no attribute {name!r}")
    value = getattr(import_module(f"pagedref.models.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
