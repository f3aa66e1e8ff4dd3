"""Attention through latents, in the absorbed form: pages hold one latent and one rotated key for all heads (S13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.config import Latent
from pagedref.models.parts._build import Build
from pagedref.models.parts._run import Run

__all__ = ["LatentAttention"]

Array = npt.NDArray[Any]
_EPS = 1e-6  # of the norms of latents, whatever the model's own norms have


class LatentAttention:
    """Attend with the new tokens of a step over latent pages.

    Parameters
    ----------
    build : Build
        Gives the weights.
    index : int
        Number of the layer.
    latent : Latent
        Widths.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434, 2024, section 2.1.
    """

    def __init__(self, build: Build, index: int, latent: Latent) -> None:
        config, prefix = build.config, f"layers.{index}."
        self._config, self._latent, self._index = config, latent, index
        names = ("q",) if latent.q_rank is None else ("q_a", "q_b")
        self._q = [build.linear(prefix, name) for name in names]
        build.drop(prefix, *names)
        self._q_norm = build.norm(f"{prefix}q_a_norm", eps=_EPS) if len(names) > 1 else None
        self._kv = build.linear(prefix, "kv_a")
        build.drop(prefix, "kv_a")
        self._kv_norm = build.norm(f"{prefix}kv_a_norm", eps=_EPS)
        expand = build.array(f"{prefix}kv_b").reshape(config.num_qo_heads, -1, latent.rank)
        nope = latent.nope_dim
        self._to_keys = np.ascontiguousarray(expand[:, :nope])  # (heads, nope_dim, rank)
        self._to_values = np.ascontiguousarray(expand[:, nope:].swapaxes(1, 2))  # (heads, rank, v_dim)
        self._o = build.linear(prefix, "o")
        build.drop(prefix, "o")
        self._rotate = build.arithmetic.rotate

    def __call__(self, x: Array, tokens: int, run: Run) -> Array:
        """Return what attention adds to the first `tokens` rows; arguments as in :class:`Attention`."""
        latent, scratch = self._latent, run.scratch
        kv = self._kv(x, scratch.rows("kv_a", self._kv.padded_features, tokens), tokens, run.crew)
        ckv, kpe = np.empty((tokens, latent.rank), kv.dtype), kv[:, None, latent.rank :]
        self._kv_norm(kv[:, : latent.rank], ckv)
        q = self._queries(x, tokens, run)
        q_nope, q_pe = q[..., : latent.nope_dim], q[..., latent.nope_dim :]
        for part in (q_pe, kpe):
            self._rotate(part, *run.tables["global"], interleaved=latent.interleaved)
        run.cache.append(run.step, ckv[:, None], kpe, layer=self._index)
        absorbed = np.matmul(q_nope.swapaxes(0, 1), self._to_keys).swapaxes(0, 1)  # (tokens, heads, rank)
        scale = self._config.sm_scale
        out = run.cache.attend_latent(run.step, absorbed, q_pe, layer=self._index, sm_scale=scale).out
        values = np.matmul(out.swapaxes(0, 1), self._to_values)  # (heads, tokens, v_dim)
        attended = scratch.rows("attended", self._o.in_features, tokens)
        attended[:tokens] = values.swapaxes(0, 1).reshape(tokens, -1)
        return self._o(attended, scratch.rows("added", self._o.padded_features, tokens), tokens, run.crew)  # type: ignore[no-any-return]

    def _queries(self, x: Array, tokens: int, run: Run) -> Array:
        """Return the queries (tokens, heads, nope_dim + rope_dim), by their own latent if they have one."""
        for at, product in enumerate(self._q):
            rows = product(x, run.scratch.rows(f"q{at}", product.padded_features, tokens), tokens, run.crew)
            if self._q_norm is not None and at == 0:
                x = run.scratch.rows("q_latent", product.out_features, tokens)
                self._q_norm(rows, x[:tokens])
        return rows.reshape(tokens, self._config.num_qo_heads, -1)  # type: ignore[no-any-return]
