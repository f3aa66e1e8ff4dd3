"""One layer of a model on the device: eight launches, or ten with norms behind the parts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pagedref.kv_cache import PagedKVCache, Step
from pagedref.layers.turn import rotary_tables
from pagedref.models.config import ModelConfig
from pagedref.models.weights import check_weights
from pagedref_cuda import _runtime
from pagedref_cuda.layers._weights import Weight
from pagedref_cuda.layers.linear import launch_gated, launch_linear
from pagedref_cuda.layers.norm import launch_rms_norm
from pagedref_cuda.runner._attention import attend_rows, join_parts_2, store_rows_2
from pagedref_cuda.runner._pool import DeviceCache
from pagedref_cuda.runner._rows import Inputs

__all__ = ["Layer", "Parts", "angles"]

Array = npt.NDArray[Any]

_STILL = "still"  # what is not turned has no angles
_WARPS = 4
_THREADS = 32 * _WARPS
_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def angles(config: ModelConfig, positions: npt.NDArray[np.int64]) -> dict[str, tuple[Array, Array]]:
    """Return cosine and sine of each kind of rotation at some positions, magnitude included.

    Parameters
    ----------
    config : ModelConfig
        The model.
    positions : array (tokens,) of int64
        Absolute positions.

    Returns
    -------
    dict of str to pair of arrays (tokens, pairs) of float32
        The same numbers as in the layers of NumPy.
    """
    kinds = {config.rope_kind(layer) or _STILL: layer for layer in range(config.num_layers)}
    tables = {}
    for kind, layer in kinds.items():
        rope = config.rope(layer)
        cos, sin = rotary_tables(np.empty(0) if rope is None else rope.inv_freq, positions)
        if rope is not None and rope.magnitude != 1:
            cos, sin = cos * np.float32(rope.magnitude), sin * np.float32(rope.magnitude)
        tables[kind] = cos[:, 0], sin[:, 0]
    return tables


class Parts:
    """Weights on their way to the device.

    Parameters
    ----------
    config : ModelConfig
        The model.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`; what is taken leaves it.
    dtype : str
        How matrices are kept.

    Raises
    ------
    ContractError
        A weight is missing or has the wrong shape.

    Attributes
    ----------
    weights : dict
        What has not been taken.
    nothing, no_rows : arrays (0,) and (0, 0) of float32
        On the device.
    num_bytes : int
        Bytes of all weights taken.
    """

    def __init__(self, config: ModelConfig, weights: dict[str, Array], dtype: str) -> None:
        check_weights("Runner", config, weights)
        self.config, self.weights, self._dtype = config, weights, np.dtype(_TYPES[dtype])
        self.nothing = _runtime.readable(np.zeros(0, np.float32))
        self.no_rows = _runtime.readable(np.zeros((0, 0), np.float32))
        self.num_bytes = 0

    def vector(self, *names: str) -> Any:
        """Return vectors joined into one, on the device; without elements where there are none.

        Parameters
        ----------
        *names : str
            All of them or none are there.

        Returns
        -------
        array (n,) of float32
        """
        found = [self.weights.pop(name) for name in names if name in self.weights]
        if not found:
            return self.nothing
        whole = np.concatenate(found).astype(np.float32, copy=False)
        self.num_bytes += whole.nbytes
        return _runtime.readable(whole)

    def matrix(self, *names: str) -> Weight:
        """Return matrices stacked along their outputs, on the device.

        Parameters
        ----------
        *names : str
            Each (out_features_i, in_features).

        Returns
        -------
        Weight
        """
        found = [self.weights.pop(name) for name in names]
        whole = (found[0] if len(found) == 1 else np.concatenate(found)).astype(self._dtype, copy=False)
        self.num_bytes += whole.nbytes
        return Weight(whole)


class Layer:
    """Run one layer.

    Parameters
    ----------
    parts : Parts
        Gives the weights.
    index : int
        Number of the layer.
    """

    def __init__(self, parts: Parts, index: int) -> None:
        config = self._config = parts.config
        names = {kind: f"layers.{index}.{kind}" for kind in (*config.norms, "q", "k", "v", "o", "gate", "up", "down")}
        self._index, self._kind, self._window = index, config.rope_kind(index) or _STILL, config.windows[index]
        self._norms = {kind: parts.vector(names[kind]) for kind in config.norms}
        self._qkv = parts.matrix(names["q"], names["k"], names["v"])
        self._qkv_bias = self._biases(parts, names, ("q", "k", "v"), self._qkv)
        self._head_norms = [parts.vector(f"layers.{index}.{side}_norm") for side in "qk"]
        self._o, self._o_bias = parts.matrix(names["o"]), parts.vector(f"{names['o']}_bias")
        self._both = parts.matrix(names["gate"], names["up"])
        self._both_bias = self._biases(parts, names, ("gate", "up"), self._both)
        self._down, self._down_bias = parts.matrix(names["down"]), parts.vector(f"{names['down']}_bias")
        self._no_rows = parts.no_rows
        scale = config.head_dim**-0.5 if config.sm_scale is None else config.sm_scale
        self._scale, self._softcap = np.float32(scale), np.float32(config.softcap or 0.0)

    def _biases(self, parts: Parts, names: dict[str, str], kinds: tuple[str, ...], weight: Weight) -> Any:
        """Return the biases of stacked matrices; those that are not there are 0."""
        config = self._config
        rows = {"q": config.num_qo_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        if not set(kinds) & config.biases:
            return parts.nothing
        for kind in kinds:
            size = rows[kind] * config.head_dim if kind in rows else config.intermediate_size
            parts.weights.setdefault(f"{names[kind]}_bias", np.zeros(size, np.float32))
        return parts.vector(*(f"{names[kind]}_bias" for kind in kinds))

    def run(self, rows: dict[str, Any], added: Any, cache: PagedKVCache, step: Step, inputs: Inputs) -> Any:
        """Run the layer over the rows of a step.

        Parameters
        ----------
        rows : dict of str to array
            From :class:`pagedref_cuda.runner._rows.Buffers`; ``stream`` is the residual stream.
        added : array (tokens, hidden) or (0, 0) of float32
            What the layer before still adds to the stream.
        cache, step, inputs
            As in the runner.

        Returns
        -------
        array (tokens, hidden) or (0, 0) of float32
            What this layer still adds to the stream.

        Notes
        -----
        Mutates: `rows`, and the slots of the step.
        """
        config = self._config
        self._norm("attn_norm", rows, added)
        launch_linear(rows["normed"], self._qkv, self._qkv_bias, rows["qkv"], words=rows["normed words"])
        source, words = self._attend(rows, cache, step, inputs)
        added = self._add(rows, source, words, self._o, self._o_bias, "attn_post_norm")
        self._norm("mlp_norm", rows, added)
        both, words = rows["both"], rows["normed words"]
        launch_gated(rows["normed"], self._both, self._both_bias, config.activation, both, rows["inner"], words=words)
        return self._add(rows, rows["inner"], rows["inner words"], self._down, self._down_bias, "mlp_post_norm")

    def _norm(self, kind: str, rows: dict[str, Any], added: Any) -> None:
        """Norm the stream, which takes `added` first."""
        config = self._config
        launch_rms_norm(rows["stream"], self._norms[kind], config.norm_eps, rows["normed"], added, config.norm_offset)

    def _add(self, rows: dict[str, Any], source: Any, words: Any, weight: Weight, bias: Any, post_norm: str) -> Any:
        """Add a product to the stream at once, or return it normed."""
        if post_norm not in self._norms:
            launch_linear(source, weight, bias, rows["stream"], adds=True, words=words)
            return self._no_rows
        config = self._config
        launch_linear(source, weight, bias, rows["normed"], words=words)
        launch_rms_norm(
            rows["normed"], self._norms[post_norm], config.norm_eps, rows["added"], self._no_rows, config.norm_offset
        )
        return rows["added"]

    def _attend(self, rows: dict[str, Any], cache: Any, step: Step, inputs: Inputs) -> Any:
        """Put keys and values into the cache and attend; return (tokens, Hqo * head_dim), and as words if they are."""
        config, qkv = self._config, rows["qkv"]
        heads = config.num_qo_heads + 2 * config.num_kv_heads
        tokens = qkv.shape[0]
        direct = type(cache) is DeviceCache and None not in cache.words[self._index]
        pool = cache.lent[self._index] if direct else self._scratch_pool(tokens)
        slots = inputs.slots if direct else _runtime.readable(np.arange(tokens))
        store_rows_2.launch_grid(
            -(-tokens * heads // _WARPS),
            _THREADS,
            *(qkv, *inputs.angles[self._kind], *self._head_norms),
            *(np.float32(config.norm_eps), np.float32(config.norm_offset)),
            *(config.num_qo_heads, config.num_kv_heads, config.head_dim, slots, *pool),
        )
        if not direct:
            return self._attend_through(rows, cache, step, pool), None
        self._attend_direct(rows, cache, inputs)
        return rows["attended"], rows["attended words"]

    def _attend_direct(self, rows: dict[str, Any], cache: Any, inputs: Inputs) -> None:
        """Attend to a pool that lies on the device, from ``qkv`` to ``attended``."""
        config, qkv, out = self._config, rows["qkv"], rows["attended"]
        heads, dim, window, split = config.num_qo_heads, config.head_dim, self._window or 0, inputs.split
        keys, values = cache.words[self._index]
        tokens, pitch = qkv.shape
        shared = inputs.split_rows.shape[0]
        parts = shared * heads * inputs.parts
        means, sums = (_runtime.empty((parts, n), np.float32) if parts else self._no_rows for n in (dim, 2))
        attend_rows(dim).launch_grid(
            (-(-tokens * heads // _WARPS), inputs.parts),
            _THREADS,
            *(rows["qkv words"], keys.words, values.words, inputs.positions, inputs.owner, inputs.place),
            *(inputs.kv_indptr, inputs.kv_indices, pitch, tokens, heads, heads // config.num_kv_heads),
            *(cache.spec.page_size, window, split, keys.frame, keys.slot, keys.head, self._scale, self._softcap),
            *(out, means, sums),
        )
        join_parts_2.launch_grid(
            -(-shared * heads // _WARPS),
            _THREADS,
            *(inputs.split_rows, inputs.positions, means, sums, inputs.parts, heads, dim, window, split, out),
        )

    def _attend_through(self, rows: dict[str, Any], cache: PagedKVCache, step: Step, pool: Any) -> Any:
        """Append and attend as the cache does it: any storage type, masks, groups of layers."""
        config = self._config
        tokens = rows["qkv"].shape[0]
        queries = config.num_qo_heads * config.head_dim
        q = _runtime.fetch(rows["qkv"])[:, :queries].reshape(tokens, config.num_qo_heads, config.head_dim)
        k, v = (_runtime.fetch(part)[:, 0] for part in pool)
        cache.append(step, k, v, layer=self._index)
        wanted = {"window": self._window, "sm_scale": config.sm_scale, "softcap": config.softcap}
        variants = {name: value for name, value in wanted.items() if value is not None}
        out = cache.attend(step, q, layer=self._index, **variants).out
        return _runtime.readable(out.reshape(tokens, -1))

    def _scratch_pool(self, tokens: int) -> tuple[Any, Any]:
        """Return room for keys and values, one slot for each token."""
        shape = (tokens, 1, self._config.num_kv_heads, self._config.head_dim)
        return _runtime.empty(shape, np.float32), _runtime.empty(shape, np.float32)

