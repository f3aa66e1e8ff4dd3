"""The cache of an engine: one group of layers or several, ordered attention or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pagedref.engine._deterministic import exact_backend
from pagedref.engine._settings import EngineConfig
from pagedref.grouped_cache import GroupedKVCache
from pagedref.kv_cache import PagedKVCache
from pagedref.layers.linear import fixed_rows
from pagedref.models.fields import refuse

if TYPE_CHECKING:
    from pagedref.models.model import Model

__all__ = ["make_cache"]


def make_cache(
    model: Model, config: EngineConfig
) -> tuple[PagedKVCache, int | None, Callable[[], AbstractContextManager[None]]]:
    """Return the cache of an engine.

    Parameters
    ----------
    model : Model
        What it is for.
    config : EngineConfig
        Geometry, format, and whether outputs are exact.

    Returns
    -------
    cache : PagedKVCache
        With groups where the windows of layers differ, unless the model makes its own, on a device.
    window : int or None
        Of all layers of a cache without groups.
    exactly : callable
        Context in which the model is to be run.

    Raises
    ------
    ContractError
        The model cannot be deterministic, or there is no such format.
    """
    windows = set(model.config.windows)
    exactly = fixed_rows if config.deterministic else nullcontext
    if hasattr(model.transformer, "make_cache") or not (config.deterministic or len(windows) > 1):
        if config.deterministic:
            refuse("EngineConfig", "deterministic", "is not supported for layers on a device", True, "False")
        cache = model.cache(
            config.num_frames, page_size=config.page_size, kv_format=config.kv_format, poison=config.poison
        )
    else:
        backend = exact_backend(model) if config.deterministic else model.backend
        spec = model.transformer.cache_spec(config.page_size, config.kv_format)
        if spec.bytes_per_frame * config.num_frames > sys.maxsize:
            need = f"{sys.maxsize} bytes in all at most"
            refuse("EngineConfig", "num_frames", "makes a pool too large", config.num_frames, need)
        own: dict[str, Any] = {"backend": backend, "poison": config.poison}
        if len(windows) > 1:
            cache = GroupedKVCache(spec, config.num_frames, model.config.windows, **own)
        else:
            cache = PagedKVCache(spec, config.num_frames, **own)
    return cache, windows.pop() if len(windows) == 1 else None, exactly
