"""Attention over latents that lie in a paged cache: as keys the latents, as values the rotated keys (S13)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from pagedref._cache_files import CacheFiles
from pagedref._open_steps import OpenSteps
from pagedref._step import Step
from pagedref.attention.state import AttentionState
from pagedref.errors import ContractError

__all__ = ["LatentPages"]

Array = npt.NDArray[Any]


class LatentPages(CacheFiles):
    """Let a cache of one kv head hold latents: ``head_dim`` is the rank, ``v_head_dim`` the rotated width."""

    _steps: OpenSteps

    def attend_latent(
        self, step: Step, q_nope: Array, q_pe: Array, *, layer: int = 0, sm_scale: float | None, **variants: Any
    ) -> AttentionState:
        """Attend with the new tokens of a step over latents, which were appended as ``(ckv, kpe)``.

        Parameters
        ----------
        step : Step
            An open step whose latents of this layer are written.
        q_nope : array (tokens, num_qo_heads, rank)
            Absorbed queries.
        q_pe : array (tokens, num_qo_heads, rope_dim)
            Rotated queries.
        layer : int
            Layer.
        sm_scale : float
            Factor on scores, required (S13).
        **variants
            Keywords of ``mla_decode`` or ``mla_prefill``.

        Returns
        -------
        AttentionState
            ``out`` (tokens, num_qo_heads, rank), still to be multiplied by the values' part of the expanding matrix.

        Raises
        ------
        ContractError
            The cache is none of latents, or the backend has no attention over them.
        """
        self._steps.need("attend_latent", step)
        spec = self.spec
        if spec.num_kv_heads != 1 or q_nope.shape[-1] != spec.head_dim or q_pe.shape[-1] != spec.value_dim:
            got, need = (q_nope.shape[-1], q_pe.shape[-1]), f"one kv head of ({spec.head_dim}, {spec.value_dim})"
            raise ContractError(f"attend_latent: queries do not fit the cache, got {got}, need {need}")
        decode = "mask" not in variants and "causal" not in variants and all(count == 1 for count in step.num_tokens)
        name = "mla_decode" if decode else "mla_prefill"
        operation = getattr(self.backend, name, None)
        if operation is None:
            raise ContractError(f"attend_latent: the backend lacks {name}, got none, need one that has it")
        stored = self._pool.stored(layer)
        for side, latent in (("k", "ckv"), ("v", "kpe")):
            if "kv_format" in stored:
                variants[f"{latent}_format"] = stored["kv_format"]
            variants |= {f"{latent}_{part}": stored[f"{side}_{part}"] for part in ("scale", "zero")
                         if f"{side}_{part}" in stored}  # fmt: skip
        ckv, kpe = (array[:, :, 0] for array in self._pool.layer(layer))
        rows = (q_nope, q_pe) if decode else (q_nope, q_pe, step.qo_indptr)
        pages = (step.kv_indptr, step.kv_indices, step.kv_last_page_len)
        state: AttentionState = operation(*rows, ckv, kpe, *pages, sm_scale=sm_scale, **variants)
        return state
