"""pagedref: the executable specification of paged key-value caches and attention over pages.

The names below are loaded when they are first used, so that ``import pagedref`` stays cheap.

Examples
--------
>>> import pagedref
>>> pagedref.SPEC_VERSION
1
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedref.attention import AttentionState as AttentionState
    from pagedref.attention import dense_attention as dense_attention
    from pagedref.cache_spec import CacheSpec as CacheSpec
    from pagedref.engine import Engine as Engine
    from pagedref.engine import EngineConfig as EngineConfig
    from pagedref.kv_cache import PagedKVCache as PagedKVCache
    from pagedref.memory import FrameAllocator as FrameAllocator
    from pagedref.memory import KVManager as KVManager
    from pagedref.memory import PageTable as PageTable
    from pagedref.models import Model as Model
    from pagedref.models import load_model as load_model
    from pagedref.models.sampling import SamplingParams as SamplingParams

__version__ = "0.1.0"

SPEC_VERSION = 1
"""Counts changes of meaning in the specification."""

_HOME = {
    "AttentionState": "pagedref.attention",
    "dense_attention": "pagedref.attention",
    "CacheSpec": "pagedref.cache_spec",
    "Engine": "pagedref.engine",
    "EngineConfig": "pagedref.engine",
    "PagedKVCache": "pagedref.kv_cache",
    "FrameAllocator": "pagedref.memory",
    "KVManager": "pagedref.memory",
    "PageTable": "pagedref.memory",
    "Model": "pagedref.models",
    "load_model": "pagedref.models",
    "SamplingParams": "pagedref.models.sampling",
}
_MODULES = (
    "addressing",
    "attention",
    "backends",
    "cache_spec",
    "conformance",
    "contract",
    "engine",
    "errors",
    "kv_cache",
    "memory",
    "models",
    "numerics",
    "options",
    "ragged",
    "scheduling",
    "validate",
)

__all__ = ["SPEC_VERSION", "__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Load a public name or module on first use."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"pagedref.{name}")
    else:
        raise AttributeError(f"module 'pagedref' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
