"""Names, shapes and the reading of weights, the same for every file format.

A format brings a :class:`TensorSource` and a list of :class:`Entry`, one for each weight of the model: our name, the
name in the file, the shape that the configuration demands. :func:`collect` does the rest, for every format alike:
every weight is found, every shape is right, and every tensor of the file is used or named in an error (P69), all
before the first weight is read.

Our names (linear weights are ``(out_features, in_features)``)::

    embed                (vocab, hidden)
    layers.{i}.attn_norm (hidden,)         layers.{i}.mlp_norm (hidden,)
    layers.{i}.q         (Hqo * D, hidden) layers.{i}.gate     (intermediate, hidden)
    layers.{i}.k, .v     (Hkv * D, hidden) layers.{i}.up       (intermediate, hidden)
    layers.{i}.o         (hidden, Hqo * D) layers.{i}.down     (hidden, intermediate)
    layers.{i}.q_bias    (Hqo * D,)        layers.{i}.k_bias, .v_bias (Hkv * D,)   only with qkv_bias
    final_norm           (hidden,)         lm_head             (vocab, hidden)     absent when tied

Rows of q and k are always in the half-split rotary order of HF (``rotate_half``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.models.config import ModelConfig
from pagedref.models.fields import refuse, show

__all__ = ["Entry", "Progress", "TensorSource", "Weights", "collect", "half_split", "weight_shapes"]

Weights = dict[str, npt.NDArray[np.float32]]
Progress = Callable[[int, int], None]


class TensorSource(Protocol):
    """Name the tensors of a file and read them one by one."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """All tensors of the file, by name."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, in C order."""

    def read_float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as C-contiguous float32."""


class Entry(NamedTuple):
    """Tie a weight of the model to a tensor of the file; `heads` > 0: rows must be un-interleaved per head."""

    name: str
    tensor: str
    shape: tuple[int, ...]
    heads: int = 0


def weight_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every weight that a model needs, layer by layer.

    Parameters
    ----------
    config : ModelConfig
        The geometry.

    Yields
    ------
    name : str
        Such as ``layers.0.q``.
    shape : tuple of int
        Of a matrix (outputs, inputs), else of a vector.

    Examples
    --------
    >>> config = ModelConfig("llama", 32, 8, 12, 1, 2, 1, 4, 1e-5, 1e4, 64, tie_embeddings=True)
    >>> dict(weight_shapes(config))["layers.0.k"], len(list(weight_shapes(config)))
    ((4, 8), 11)
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_qo_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "embed", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        yield prefix + "attn_norm", (hidden,)
        yield prefix + "q", (q_rows, hidden)
        yield prefix + "k", (kv_rows, hidden)
        yield prefix + "v", (kv_rows, hidden)
        yield prefix + "o", (hidden, q_rows)
        if config.qkv_bias:
            yield prefix + "q_bias", (q_rows,)
            yield prefix + "k_bias", (kv_rows,)
            yield prefix + "v_bias", (kv_rows,)
        yield prefix + "mlp_norm", (hidden,)
        yield prefix + "gate", (inner, hidden)
        yield prefix + "up", (inner, hidden)
        yield prefix + "down", (hidden, inner)
    yield "final_norm", (hidden,)
    if not config.tie_embeddings:
        yield "lm_head", (config.vocab_size, hidden)


def collect(
    source: TensorSource,
    config: ModelConfig,
    tensor_name: Callable[[str], str],
    *,
    harmless: Callable[[str], bool] = lambda name: False,
    interleaved: bool = False,
    progress: Progress | None = None,
) -> Weights:
    """Read all weights of a model; check all names and shapes first.

    Parameters
    ----------
    source : TensorSource
    config : ModelConfig
    tensor_name : callable
        From our name to the name in the file.
    harmless : callable
        Whether a tensor that is not needed may be left out.
    interleaved : bool
        Whether rows of q and k pair neighbours ``(2i, 2i + 1)`` for the rotary embedding (P67).
    progress : callable, optional
        Called with (weights read, weights in all) after each weight.

    Returns
    -------
    dict of str to float32 array

    Raises
    ------
    ContractError
        Names a missing tensor, a wrong shape, or a tensor that nothing uses.
    """
    if 9 * config.num_layers > len(source.tensors):
        refuse("load_checkpoint", "the file", "has too few tensors", len(source.tensors), f"{config.num_layers} layers")
    heads = {"q": config.num_qo_heads, "k": config.num_kv_heads} if interleaved else {}
    entries = [
        Entry(name, tensor_name(name), shape, heads.get(name.rpartition(".")[2].removesuffix("_bias"), 0))
        for name, shape in weight_shapes(config)
    ]
    missing = [entry.tensor for entry in entries if entry.tensor not in source.tensors]
    _name_all("lacks weights", [f"no {name}" for name in missing], "all of them")
    for entry in entries:
        if source.shape(entry.tensor) != entry.shape:
            refuse("load_checkpoint", entry.tensor, "has the wrong shape", source.shape(entry.tensor), str(entry.shape))
    used = {entry.tensor for entry in entries}
    unused = [name for name in source.tensors if name not in used and not harmless(name)]
    tied = tensor_name("lm_head")
    if config.tie_embeddings and tied in unused:
        unused.remove(tied)
    _name_all("has tensors that nothing uses", unused, f"only weights of a {config.architecture} model")
    weights: Weights = {}
    for done, entry in enumerate(entries, 1):
        array = source.read_float32(entry.tensor)
        weights[entry.name] = half_split(array, entry.heads) if entry.heads else array
        if progress is not None:
            progress(done, len(entries))
    if tied in source.tensors and tied not in used and not np.array_equal(source.read_float32(tied), weights["embed"]):
        refuse("load_checkpoint", tied, "differs from the embedding it is tied to", "other values", "equal values")
    return weights


def half_split(array: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorder the rows of each head from interleaved to half-split rotary pairs (P67).

    Parameters
    ----------
    array : array of float32, (num_heads * head_dim, ...)
        Pair i of a head is rows ``(2i, 2i + 1)``.
    num_heads : int
        Query heads for q, kv heads for k.

    Returns
    -------
    array of float32, same shape
        Pair i of a head is rows ``(i, i + head_dim / 2)``.

    Examples
    --------
    >>> half_split(np.arange(8, dtype=np.float32), 2).tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    pairs = array.reshape(num_heads, -1, 2, *array.shape[1:])  # (num_heads, head_dim / 2, 2, ...)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _name_all(wrong: str, names: Sequence[str], need: str) -> None:
    """Raise an error that names the first few of `names`, if there are any."""
    if names:
        listed = ", ".join(show(name)[1:-1] for name in sorted(names)[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        raise ContractError(f"load_checkpoint: the file {wrong}, got {listed}{more}, need {need}")
