"""A Llama-type transformer over paged memory.

For each layer: norm, one product for q, k and v, rotary embedding, attention, product, norm, gate, product. Attention
reaches its keys and values through :class:`pagedref.kv_cache.PagedKVCache` only, so whatever backend the cache has does
the attending, and no line here knows a page. Tokens of several sequences, prompts and single tokens mixed, are simply
rows: only rotary positions and attention know which row belongs to whom.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache, Step
from pagedref.kv_format import KVFormat
from pagedref.models.config import ModelConfig
from pagedref.models.crew import Crew, hired
from pagedref.models.fields import count
from pagedref.models.layers import rms_norm, rotary_tables, rotate, silu_gate
from pagedref.models.linear import ROWS, Linear
from pagedref.models.weights import weight_shapes

__all__ = ["Transformer"]

Float32 = npt.NDArray[np.float32]


class _Layer:
    """Weights of one layer, ready for use; they are taken out of `weights`."""

    def __init__(self, config: ModelConfig, weights: dict[str, Float32], index: int) -> None:
        def take(*names: str) -> list[Float32]:
            return [weights.pop(f"layers.{index}.{name}") for name in names]

        biases = take("q_bias", "k_bias", "v_bias") if config.qkv_bias else []
        self.attn_norm, self.mlp_norm = take("attn_norm", "mlp_norm")
        self.qkv = Linear(take("q", "k", "v"), biases)
        self.o = Linear(take("o"))
        self.gate, self.up = Linear(take("gate")), Linear(take("up"))
        self.down = Linear(take("down"))


class _Buffers:
    """Memory for the activations of one step, used again by the next."""

    def __init__(self, layer: _Layer, hidden: int, tokens: int) -> None:
        self.tokens = tokens
        self.stream = np.zeros((tokens, hidden), np.float32)
        self.normed, self.qkv = layer.qkv.buffers(tokens)
        self.attended, self.added = layer.o.buffers(tokens)
        _, self.gate = layer.gate.buffers(tokens)
        _, self.up = layer.up.buffers(tokens)
        self.inner = np.zeros((tokens + ROWS, layer.gate.padded_features), np.float32)


class Transformer:
    """Compute logits of tokens whose context lies in a paged cache.

    Parameters
    ----------
    config : ModelConfig
        Geometry.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`.

    Raises
    ------
    ContractError
        A weight is missing or has the wrong shape.

    Notes
    -----
    Mutates: `weights`, which is empty afterwards: each is dropped as soon as its copy is laid out, so that the model
    exists once. All arithmetic is float32; use it from one thread.
    """

    def __init__(self, config: ModelConfig, weights: dict[str, Float32]) -> None:
        for name, shape in weight_shapes(config):
            if name not in weights or weights[name].shape != shape:
                found = weights[name].shape if name in weights else "nothing"
                raise ContractError(f"Transformer: weights of {name} do not fit, got {found}, need {shape}")
        self.config = config
        self.layers = [_Layer(config, weights, index) for index in range(config.num_layers)]
        self.final_norm = weights.pop("final_norm")
        embed = weights.pop("embed")
        self.lm_head = Linear([embed if config.tie_embeddings else weights.pop("lm_head")])
        self._embed = None if config.tie_embeddings else embed
        self._buffers = _Buffers(self.layers[0], config.hidden_size, 0)
        weights.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in memory."""
        layers = [part for layer in self.layers for part in (layer.qkv, layer.o, layer.gate, layer.up, layer.down)]
        panels = sum(part.panels.nbytes for part in [*layers, self.lm_head])
        return panels + (0 if self._embed is None else self._embed.nbytes)

    def cache_spec(self, page_size: int, kv_format: KVFormat | str | None = None) -> CacheSpec:
        """Return the geometry of a cache for this model.

        Parameters
        ----------
        page_size : int
            Positions in a page, >= 1.
        kv_format : KVFormat or str, optional
            How keys and values are stored (S17), also by a name of :data:`pagedref.kv_format.NAMES`; by default as
            float32.

        Returns
        -------
        CacheSpec

        Raises
        ------
        ContractError
            There is no such format, or the page size is out of range.
        """
        config = self.config
        page_size = count("CacheSpec", "page_size", page_size)
        form = KVFormat.named(kv_format, config.head_dim) if isinstance(kv_format, str) else kv_format
        return CacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, page_size, kv_format=form)

    def forward(
        self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None = None
    ) -> Float32:
        """Run the new tokens of a step through all layers.

        Parameters
        ----------
        cache : PagedKVCache
            Made for :meth:`cache_spec`.
        step : Step
            An open step of `cache`; commit it afterwards.
        token_ids : array (tokens,) of int
            The new tokens, sequence after sequence, in ``0 .. vocab_size - 1``.
        rows : array (n,) of int, optional
            Tokens of the step whose logits are wanted; by default all.

        Returns
        -------
        array (n, vocab_size) of float32
            What may come next after each of these tokens.

        Raises
        ------
        ContractError
            A token id is out of range or their number does not fit the step.

        Notes
        -----
        Mutates: `cache` (the slots of the step).
        """
        ids = np.asarray(token_ids)
        if ids.shape != step.positions.shape or not np.issubdtype(ids.dtype, np.integer):
            raise ContractError(
                f"forward: token_ids do not fit the step, got {ids.shape}, need {step.positions.shape} integers"
            )
        if ids.size and not (ids.min() >= 0 and ids.max() < self.config.vocab_size):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ContractError(
                f"forward: token_ids are out of range, got {wrong}, need 0..{self.config.vocab_size - 1}"
            )
        wanted = np.arange(ids.size) if rows is None else np.asarray(rows, np.int64)
        if not wanted.size and rows is None:
            return np.empty((0, self.config.vocab_size), np.float32)
        with hired() as crew:
            stream = self._embed_tokens(ids.astype(np.int64))
            angles = rotary_tables(self.config.inv_freq, step.positions)
            for index, layer in enumerate(self.layers):
                self._attend(layer, stream, angles, cache, step, index, crew)
                if index == len(self.layers) - 1 and wanted.size < ids.size:
                    stream = stream[wanted]  # (n, hidden): nobody reads the other rows of the last layer
                self._transform(layer, stream, crew)
            return self._logits(stream, crew)

    def _embed_tokens(self, ids: npt.NDArray[np.int64]) -> Float32:
        """Return the residual stream of a step, (tokens, hidden), in its buffer."""
        if self._buffers.tokens < ids.size:
            self._buffers = _Buffers(self.layers[0], self.config.hidden_size, ids.size)
        stream = self._buffers.stream[: ids.size]
        stream[...] = self.lm_head.rows_of(ids) if self._embed is None else self._embed[ids]
        return stream

    def _attend(
        self,
        layer: _Layer,
        stream: Float32,
        angles: tuple[Float32, Float32],
        cache: PagedKVCache,
        step: Step,
        index: int,
        crew: Crew,
    ) -> None:
        """Add the attention of one layer to the stream."""
        config, buffers, tokens = self.config, self._buffers, len(stream)
        rms_norm(stream, layer.attn_norm, config.rms_norm_eps, buffers.normed[:tokens])
        qkv = layer.qkv(buffers.normed, buffers.qkv, tokens, crew)  # (tokens, (Hqo + 2 Hkv) * head_dim)
        turned = config.num_qo_heads + config.num_kv_heads
        heads = qkv.reshape(tokens, turned + config.num_kv_heads, config.head_dim)
        rotate(heads[:, :turned], *angles)
        q, k, v = heads[:, : config.num_qo_heads], heads[:, config.num_qo_heads : turned], heads[:, turned:]
        cache.append(step, k, v, layer=index)
        variants: dict[str, Any] = {} if config.window is None else {"window": config.window}
        out = cache.attend(step, q, layer=index, **variants).out  # (tokens, Hqo, head_dim)
        buffers.attended[:tokens] = out.reshape(tokens, -1)  # (tokens, Hqo * head_dim)
        stream += layer.o(buffers.attended, buffers.added, tokens, crew)

    def _transform(self, layer: _Layer, stream: Float32, crew: Crew) -> None:
        """Add the gated network of one layer to the stream."""
        buffers, tokens = self._buffers, len(stream)
        rms_norm(stream, layer.mlp_norm, self.config.rms_norm_eps, buffers.normed[:tokens])

        def gated(part: int, parts: int) -> None:
            """Both products, and the gate while they are still in the cache of this core."""
            layer.gate.part(buffers.normed, buffers.gate, tokens, part, parts)
            layer.up.part(buffers.normed, buffers.up, tokens, part, parts)
            columns = layer.gate.columns(part, parts)
            silu_gate(buffers.gate[:tokens, columns], buffers.up[:tokens, columns], buffers.inner[:tokens, columns])

        crew.run(gated, cost=2 * tokens * layer.gate.out_features * layer.gate.in_features)
        inner = buffers.inner[:, : layer.gate.out_features]
        stream += layer.down(inner, buffers.added, tokens, crew)

    def _logits(self, stream: Float32, crew: Crew) -> Float32:
        """Return the logits of some rows, (rows, vocab), in memory of their own."""
        x, out = self.lm_head.buffers(len(stream))
        rms_norm(stream, self.final_norm, self.config.rms_norm_eps, x[: len(stream)])
        return self.lm_head(x, out, len(stream), crew)
