"""Attention over keys and values: one product for q, k and v, norms and rotation, the cache, one product."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.variants import alibi_slopes
from pagedref.models.parts._build import Build
from pagedref.models.parts._run import Run

__all__ = ["Attention"]

Array = npt.NDArray[Any]


class Attention:
    """Attend with the new tokens of a step.

    Parameters
    ----------
    build : Build
        Gives the weights.
    index : int
        Number of the layer.
    """

    def __init__(self, build: Build, index: int) -> None:
        config, prefix = build.config, f"layers.{index}."
        self._config, self._index = config, index
        self._qkv = build.linear(prefix, "q", "k", "v")
        build.drop(prefix, "q", "k", "v")
        self._o = build.linear(prefix, "o")
        build.drop(prefix, "o")
        self._rotate, self._rope = build.arithmetic.rotate, config.rope_kind(index)
        self._norms = [build.norm(f"{prefix}{side}_norm", kind="rms") for side in "qk"] if config.qk_norm else []
        self._variants: dict[str, Any] = {
            "window": config.windows[index],
            "sm_scale": config.sm_scale,
            "softcap": config.softcap,
            "alibi_slopes": None if config.alibi is None else alibi_slopes(config.num_qo_heads) ** (config.alibi / 8),
            "sinks": build.array(f"{prefix}sinks") if config.sinks else None,
        }
        self._variants = {name: value for name, value in self._variants.items() if value is not None}

    def __call__(self, x: Array, tokens: int, run: Run) -> Array:
        """Return what attention adds to the first `tokens` rows.

        Parameters
        ----------
        x : array (>= tokens + ROWS, hidden)
            Rows, normed.
        tokens : int
            New tokens of the step.
        run : Run
            Where everything goes.

        Returns
        -------
        array (tokens, hidden)
            A view of scratch memory.
        """
        config, scratch = self._config, run.scratch
        qkv = self._qkv(x, scratch.rows("qkv", self._qkv.padded_features, tokens), tokens, run.crew)
        queries, turned = config.num_qo_heads, config.num_qo_heads + config.num_kv_heads
        heads = qkv.reshape(tokens, turned + config.num_kv_heads, config.head_dim)
        q, k, v = heads[:, :queries], heads[:, queries:turned], heads[:, turned:]
        for norm, part in zip(self._norms, (q, k), strict=False):
            whole = part if config.qk_norm == "head" else part.reshape(tokens, -1)
            normed = np.empty(whole.shape, whole.dtype)
            norm(whole, normed)
            part[...] = normed.reshape(part.shape)
        if self._rope is not None:
            self._rotate(heads[:, :turned], *run.tables[self._rope])
        run.cache.append(run.step, k, v, layer=self._index)
        out = run.cache.attend(run.step, q, layer=self._index, **self._variants).out  # (tokens, Hqo, head_dim)
        attended = scratch.rows("attended", self._o.in_features, tokens)
        attended[:tokens] = out.reshape(tokens, -1)
        return self._o(attended, scratch.rows("added", self._o.padded_features, tokens), tokens, run.crew)  # type: ignore[no-any-return]
