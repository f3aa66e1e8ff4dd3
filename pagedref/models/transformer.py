"""A transformer over paged memory, put together from small parts as its configuration says.

For each layer: a norm, attention, a norm, a feed-forward network; where the norms stand and what follows what differs
between families and is told by :class:`~pagedref.models.config.ModelConfig`. Attention reaches its keys and values
through :class:`pagedref.kv_cache.PagedKVCache` only, so whatever backend the cache has does the attending, and no line
here knows a page. Tokens of several sequences, prompts and single tokens mixed, are simply rows: only positions and
attention know which row belongs to whom.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache, Step
from pagedref.kv_format import KVFormat
from pagedref.layers.crew import Crew, hired
from pagedref.models.config import ModelConfig
from pagedref.models.fields import count, refuse
from pagedref.models.parts import ARITHMETIC, Attention, Build, ExpertNetwork, LatentAttention, Network, Run, Scratch
from pagedref.models.rope import Rope
from pagedref.models.weights import check_weights

__all__ = ["Transformer", "step_token_ids"]

Array = npt.NDArray[Any]


def step_token_ids(token_ids: npt.ArrayLike, step: Step, vocab_size: int) -> npt.NDArray[np.integer[Any]]:
    """Return the new tokens of a step as an array, checked.

    Parameters
    ----------
    token_ids : array (tokens,) of int
        One for each position of the step, in ``0 .. vocab_size - 1``.
    step : Step
        What they belong to.
    vocab_size : int
        Tokens that the model knows.

    Returns
    -------
    array (tokens,) of int

    Raises
    ------
    ContractError
        A token id is out of range or their number does not fit the step.
    """
    ids = np.asarray(token_ids)
    if ids.shape != step.positions.shape or not np.issubdtype(ids.dtype, np.integer):
        raise ContractError(
            f"forward: token_ids do not fit the step, got {ids.shape}, need {step.positions.shape} integers"
        )
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ContractError(f"forward: token_ids are out of range, got {wrong}, need 0..{vocab_size - 1}")
    return ids


class _Layer:
    """The parts of one layer."""

    def __init__(self, build: Build, index: int) -> None:
        config, prefix = build.config, f"layers.{index}."
        self.norms = {kind: build.norm(prefix + kind) for kind in config.norms}
        if config.parallel:  # side by side, with one norm for both if there is only one
            self.norms.setdefault("mlp_norm", self.norms["attn_norm"])
        latent, experts = config.latent, config.experts
        self.attention = Attention(build, index) if latent is None else LatentAttention(build, index, latent)
        dense = experts is None or index < experts.dense_layers
        self.network = Network(build, prefix) if dense or experts is None else ExpertNetwork(build, prefix, experts)


class Transformer:
    """Compute logits of tokens whose context lies in a paged cache.

    Parameters
    ----------
    config : ModelConfig
        Geometry.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`.
    dtype : str
        ``float32``, or ``float64`` for the exact layers: slow, and the measure of the fast ones.

    Raises
    ------
    ContractError
        A weight is missing or has the wrong shape, or there is no such type.

    Notes
    -----
    Mutates: `weights`, which is empty afterwards: each is dropped as soon as its copy is laid out, so that the model
    exists once. Use it from one thread.
    """

    def __init__(self, config: ModelConfig, weights: dict[str, npt.NDArray[Any]], *, dtype: str = "float32") -> None:
        if dtype not in ARITHMETIC:
            refuse("Transformer", "dtype", "is not a type of models", dtype, " or ".join(ARITHMETIC))
        check_weights("Transformer", config, weights)
        self.config, self.dtype, self._arithmetic = config, dtype, ARITHMETIC[dtype]
        build = Build(config, weights, self._arithmetic)
        self._layers = [_Layer(build, index) for index in range(config.num_layers)]
        self._final_norm = build.norm("final_norm")
        self._embed_norm = build.norm("embed_norm") if config.embed_norm else None
        self._positions = None if config.learned_positions is None else build.array("positions")
        self._lm_head = build.linear("", "embed" if config.tie_embeddings else "lm_head")
        self._embed = None if config.tie_embeddings else build.array("embed")
        self._num_bytes = build.num_bytes
        self._scratch = Scratch(self._arithmetic.dtype)
        ropes = ((config.rope_kind(index), config.rope(index)) for index in range(config.num_layers))
        self._ropes = {kind: rope for kind, rope in ropes if kind is not None and rope is not None}
        weights.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return self._num_bytes

    def cache_spec(self, page_size: int, kv_format: KVFormat | str | None = None) -> CacheSpec:
        """Return the geometry of a cache for this model.

        Parameters
        ----------
        page_size : int
            Positions in a page, >= 1.
        kv_format : KVFormat or str, optional
            How keys and values are stored (S17), also by a name of :data:`pagedref.kv_format.NAMES`; by default as
            the numbers of the model. Latents are always stored so.

        Returns
        -------
        CacheSpec

        Raises
        ------
        ContractError
            There is no such format, or the page size is out of range.
        """
        config, latent = self.config, self.config.latent
        page_size = count("CacheSpec", "page_size", page_size)
        if latent is not None:
            if kv_format is not None:
                refuse("CacheSpec", "kv_format", "is not supported for latents", str(kv_format), "none")
            return CacheSpec(config.num_layers, 1, latent.rank, page_size, self.dtype, v_head_dim=latent.rope_dim)
        form = KVFormat.named(kv_format, config.head_dim) if isinstance(kv_format, str) else kv_format
        return CacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, page_size, self.dtype, kv_format=form)

    def forward(
        self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None = None
    ) -> Array:
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
        array (n, vocab_size) in the type of the model
            What may come next after each of these tokens.

        Raises
        ------
        ContractError
            A token id is out of range or their number does not fit the step.

        Notes
        -----
        Mutates: `cache` (the slots of the step).
        """
        ids = step_token_ids(token_ids, step, self.config.vocab_size)
        wanted = np.arange(ids.size) if rows is None else np.asarray(rows, np.int64)
        if not wanted.size and rows is None:
            return np.empty((0, self.config.vocab_size), self._arithmetic.dtype)
        with hired() as crew:
            tables = {kind: self._table(rope, step) for kind, rope in self._ropes.items()}
            run = Run(cache, step, crew, self._scratch, tables)
            stream = self._embed_tokens(ids.astype(np.int64), step.positions)
            for index, layer in enumerate(self._layers):
                last = index == len(self._layers) - 1
                stream = self._pass(layer, stream, run, wanted if last and wanted.size < ids.size else None)
            return self._logits(stream, crew)

    def greedy(
        self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.int64]:
        """Run the new tokens of a step and return the best next token of each row.

        Parameters
        ----------
        cache, step, token_ids, rows
            As in :meth:`forward`.

        Returns
        -------
        array (n,) of int64
            The first of equals.

        Raises
        ------
        ContractError
            As in :meth:`forward`.

        Notes
        -----
        Mutates: `cache` (the slots of the step).
        """
        best: npt.NDArray[np.int64] = self.forward(cache, step, token_ids, rows).argmax(axis=1)
        return best

    def _table(self, rope: Rope, step: Step) -> tuple[Array, Array]:
        """Return cosine and sine of a rotation at the positions of a step, magnitude included."""
        cos, sin = self._arithmetic.rotary_tables(rope.inv_freq, step.positions)
        if rope.magnitude != 1:
            cos *= cos.dtype.type(rope.magnitude)
            sin *= sin.dtype.type(rope.magnitude)
        return cos, sin

    def _embed_tokens(self, ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Array:
        """Return the residual stream of a step, (tokens, hidden), in its buffer."""
        config = self.config
        stream = self._scratch.rows("stream", config.hidden_size, ids.size)[: ids.size]
        stream[...] = self._lm_head.rows_of(ids) if self._embed is None else self._embed[ids]
        if config.embed_scale != 1:
            stream *= stream.dtype.type(config.embed_scale)
        if self._positions is not None and config.learned_positions is not None:
            if positions.size and positions.max() >= config.max_model_len:
                got, need = int(positions.max()), f"0..{config.max_model_len - 1}"
                raise ContractError(f"forward: positions are beyond the learned ones, got {got}, need {need}")
            stream += self._positions[positions + config.learned_positions]
        if self._embed_norm is not None:
            plain = stream.copy()
            self._embed_norm(plain, stream)
        return stream

    def _pass(self, layer: _Layer, stream: Array, run: Run, rows: npt.NDArray[np.int64] | None) -> Array:
        """Run one layer; of the last one only some rows go on after the attention."""
        parallel, tokens = self.config.parallel, len(stream)
        added = layer.attention(self._normed(layer, "attn_norm", stream), tokens, run)
        added = self._after(layer, "attn_post_norm", added)
        if rows is not None:
            stream, added = stream[rows], added[rows]  # (n, hidden): nobody reads the others
        if not parallel:
            stream += added
        x = self._normed(layer, "mlp_norm", stream)
        if parallel:
            stream += added
        stream += self._after(layer, "mlp_post_norm", layer.network(x, len(stream), run))
        return stream

    def _normed(self, layer: _Layer, kind: str, stream: Array) -> Array:
        """Return the rows that go into a part, in a buffer with room behind them."""
        x = self._scratch.rows("normed", self.config.hidden_size, len(stream))
        if kind in layer.norms:
            layer.norms[kind](stream, x[: len(stream)])
        else:
            x[: len(stream)] = stream
        return x

    def _after(self, layer: _Layer, kind: str, added: Array) -> Array:
        """Return what a part adds to the stream, normed where the model wants that."""
        if kind not in layer.norms:
            return added
        out = self._scratch.rows("after", self.config.hidden_size, len(added))[: len(added)]
        layer.norms[kind](added, out)
        return out

    def _logits(self, stream: Array, crew: Crew) -> Array:
        """Return the logits of some rows, (rows, vocab), in memory of their own."""
        tokens, cap = len(stream), self.config.logit_softcap
        x = self._scratch.rows("normed", self.config.hidden_size, tokens)
        self._final_norm(stream, x[:tokens])
        out = Scratch(stream.dtype).rows("logits", self._lm_head.padded_features, tokens)
        logits: Array = self._lm_head(x, out, tokens, crew)
        if cap is not None:
            logits /= logits.dtype.type(cap)
            np.tanh(logits, out=logits)
            logits *= logits.dtype.type(cap)
        return logits
