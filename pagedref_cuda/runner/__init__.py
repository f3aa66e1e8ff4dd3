"""A transformer that runs wholly in kernels: weights, activations and cache stay on the device.

The weights are copied there once. A step copies its token ids, slots and pages there, eight launches run each layer,
and nothing comes back before the logits, or the chosen tokens, are asked for. What a model needs and these kernels lack
is refused in one line; :func:`transformer` then gives the layers of NumPy, with attention on the device.
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
from pagedref.models.transformer import Transformer, step_token_ids
from pagedref_cuda import _runtime
from pagedref_cuda.layers._weights import Weight
from pagedref_cuda.layers.choose import launch_argmax
from pagedref_cuda.layers.embedding import launch_embed
from pagedref_cuda.layers.linear import launch_linear
from pagedref_cuda.layers.norm import launch_rms_norm
from pagedref_cuda.runner._attention import softcap_1
from pagedref_cuda.runner._layer import Layer, Parts, angles
from pagedref_cuda.runner._pool import DeviceCache
from pagedref_cuda.runner._rows import Buffers, Inputs

__all__ = ["DeviceCache", "Runner", "lacking", "transformer"]

Array = npt.NDArray[Any]

_BUILT = frozenset(
    {
        *("biases", "window", "layer windows", "norm_offset", "norms", "activation", "qk_norm", "sm_scale", "softcap"),
        *("logit_softcap", "embed_scale", "no rotary", "partial rotary", "unrotated layers", "local rotary"),
        "rotary magnitude",
    }
)
_TYPES = ("float32", "float16", "bfloat16")


def lacking(config: ModelConfig) -> list[str]:
    """Return what a model needs and the kernels lack.

    Parameters
    ----------
    config : ModelConfig
        The model.

    Returns
    -------
    list of str
        Empty if a :class:`Runner` can run it.
    """
    missing = sorted(config.features - _BUILT)
    if config.qk_norm == "width":
        missing.append("qk_norm over the width")
    if not {"attn_norm", "mlp_norm"} <= set(config.norms):
        missing.append("layers without a norm before each part")
    if "norm" in config.biases:
        missing.append("norms with a bias")
    if config.head_dim % 4:
        missing.append("heads that are no multiple of 4")
    if _runtime.SIMULATOR:
        missing.append("warps (numba's simulator has none)")
    return missing


def transformer(config: ModelConfig, weights: dict[str, Array]) -> Runner | Transformer:
    """Return what computes a model for this backend.

    Parameters
    ----------
    config : ModelConfig
        The model.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`.

    Returns
    -------
    Runner or Transformer
        The layers of NumPy, with attention on the device, for what :func:`lacking` names.

    Notes
    -----
    Mutates: `weights`, which is empty afterwards.
    """
    return Transformer(config, weights) if lacking(config) else Runner(config, weights)


class Runner:
    """Compute logits of tokens whose context lies in a paged cache, on the device.

    Parameters
    ----------
    config : ModelConfig
        Geometry.
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`.
    weight_dtype : str
        How matrices are kept on the device: ``float32``, ``float16`` or ``bfloat16``. Sums are float32.

    Raises
    ------
    ContractError
        The model needs what is lacking, or there is no such type.

    Notes
    -----
    Mutates: `weights`, which is empty afterwards. Use it from one thread.
    """

    def __init__(self, config: ModelConfig, weights: dict[str, Array], *, weight_dtype: str = "float32") -> None:
        _runtime.ensure_available()
        if missing := lacking(config):
            raise ContractError(f"Runner: config is not supported, got {', '.join(missing)}, need a model without")
        if weight_dtype not in _TYPES:
            need = ", ".join(_TYPES)
            raise ContractError(f"Runner: weight_dtype is unknown, got {weight_dtype!r}, need one of {need}")
        self.config, self.dtype = config, "float32"
        parts = Parts(config, weights, weight_dtype)
        self._layers = [Layer(parts, index) for index in range(config.num_layers)]
        self._final_norm = parts.vector("final_norm")
        self._embed = parts.matrix("embed")
        self._head = self._embed if config.tie_embeddings else parts.matrix("lm_head")
        self._nothing, self._no_rows = parts.nothing, parts.no_rows
        self.num_bytes = parts.num_bytes
        weights.clear()
        attended = config.num_qo_heads * config.head_dim
        self._buffers = Buffers(
            {
                "stream": config.hidden_size,
                "normed": config.hidden_size,
                "added": config.hidden_size,
                "qkv": attended + 2 * config.num_kv_heads * config.head_dim,
                "attended": attended,
                "both": 2 * config.intermediate_size,
                "inner": config.intermediate_size,
            }
        )
        self._ends = Buffers(
            {
                "stream": config.hidden_size,
                "added": config.hidden_size,
                "normed": config.hidden_size,
                "logits": config.vocab_size,
            }
        )

    def cache_spec(self, page_size: int, kv_format: KVFormat | str | None = None) -> CacheSpec:
        """Return the geometry of a cache for this model.

        Parameters
        ----------
        page_size : int
            Positions in a page, >= 1.
        kv_format : KVFormat or str, optional
            How keys and values are stored (S17); by default as float32.

        Returns
        -------
        CacheSpec

        Raises
        ------
        ContractError
            There is no such format, or the page size is out of range.
        """
        return Transformer.cache_spec(self, page_size, kv_format)  # type: ignore[arg-type]

    def make_cache(
        self, spec: CacheSpec, num_frames: int, *, frame_order: Any = None, poison: bool = False
    ) -> PagedKVCache:
        """Return an empty cache whose pool lies on the device, if it stores float32.

        Parameters
        ----------
        spec : CacheSpec
            From :meth:`cache_spec`.
        num_frames : int
            Size of the pool.
        frame_order : array (num_frames,) of int, optional
            Order in which fresh frames are handed out.
        poison : bool
            Fill frames with NaN before use and after.

        Returns
        -------
        PagedKVCache
            A pool of another type lies on the host and is copied for each call.
        """
        if spec.form.kind != "float32":
            import pagedref_cuda

            return PagedKVCache(spec, num_frames, backend=pagedref_cuda, frame_order=frame_order, poison=poison)
        return DeviceCache(spec, num_frames, frame_order=frame_order, poison=poison)

    def forward(
        self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None = None
    ) -> Array:
        """Run the new tokens of a step through all layers.

        Parameters
        ----------
        cache : PagedKVCache
            Made for :meth:`cache_spec`; fastest from :meth:`make_cache`.
        step : Step
            An open step of `cache`; commit it afterwards.
        token_ids : array (tokens,) of int
            The new tokens, sequence after sequence, in ``0 .. vocab_size - 1``.
        rows : array (n,) of int, optional
            Tokens of the step whose logits are wanted; by default all.

        Returns
        -------
        array (n, vocab_size) of float32
            What may come next after each of these tokens, on the host.

        Raises
        ------
        ContractError
            A token id is out of range or their number does not fit the step.

        Notes
        -----
        Mutates: `cache` (the slots of the step).
        """
        logits = self._logits(cache, step, token_ids, rows)
        if logits is None:
            return np.empty((0, self.config.vocab_size), np.float32)
        host = _runtime.fetch(logits)
        return host.copy() if host is logits else host

    def greedy(
        self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.int64]:
        """Run the new tokens of a step and return the best next token of each row; nothing else comes back.

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
        logits = self._logits(cache, step, token_ids, rows)
        if logits is None:
            return np.empty(0, np.int64)
        chosen = _runtime.empty((logits.shape[0],), np.int64)
        launch_argmax(logits, chosen)
        return _runtime.fetch(chosen)

    def _logits(self, cache: PagedKVCache, step: Step, token_ids: npt.ArrayLike, rows: npt.ArrayLike | None) -> Any:
        """Return logits on the device, or None where no row is wanted and none computed."""
        config = self.config
        ids = step_token_ids(token_ids, step, config.vocab_size)
        wanted = np.arange(ids.size) if rows is None else np.asarray(rows, np.int64)
        if not ids.size:
            return None
        inputs = Inputs(step, ids, wanted, angles(config, step.positions))
        rows_of = self._buffers.of(ids.size)
        stream = rows_of["stream"]
        launch_embed(inputs.token_ids, self._embed, stream, config.embed_scale)
        added = self._no_rows
        for layer in self._layers:
            added = layer.run(rows_of, added, cache, step, inputs)
        if not wanted.size:
            return None
        ends = self._ends.of(wanted.size)
        if rows is not None:
            stream = self._taken(ends["stream"], stream, inputs)
            added = self._taken(ends["added"], added, inputs)
        launch_rms_norm(stream, self._final_norm, config.norm_eps, ends["normed"], added, config.norm_offset)
        launch_linear(ends["normed"], self._head, self._nothing, ends["logits"], words=ends["normed words"])
        if config.logit_softcap is not None:
            softcap_1.launch(wanted.size * config.vocab_size, ends["logits"], np.float32(config.logit_softcap))
        return ends["logits"]

    def _taken(self, out: Any, rows: Any, inputs: Inputs) -> Any:
        """Return some rows of an array, in `out`; of none, none."""
        if not rows.shape[0]:
            return rows
        launch_embed(inputs.rows, Weight(rows), out)
        return out
