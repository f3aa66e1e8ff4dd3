"""Names, shapes and the reading of weights, the same for every file format.

A format brings a :class:`TensorSource` and a list of :class:`Entry`, one for each weight of the model: our name, the
name in the file, the shape that the configuration demands. :func:`collect` does the rest, for every format alike:
every weight is found, every shape is right, and every tensor of the file is used or named in an error (P69), all
before the first weight is read.

Our names (linear weights are ``(out_features, in_features)``; what a Llama has not is on the right)::

    embed                   (vocab, hidden)             positions               (max_model_len + offset, hidden)
    layers.{i}.attn_norm    (hidden,)                   layers.{i}.attn_post_norm, .mlp_post_norm    (hidden,)
    layers.{i}.q            (Hqo * D, hidden)           layers.{i}.q_norm, .k_norm      (D,) or the whole width
    layers.{i}.k, .v        (Hkv * D, hidden)           layers.{i}.sinks                (Hqo,)
    layers.{i}.o            (hidden, Hqo * D)           layers.{i}.q_a, .q_b, .kv_a, .kv_b   latents (MLA)
    layers.{i}.mlp_norm     (hidden,)                   layers.{i}.router               (experts, hidden)
    layers.{i}.gate, .up    (intermediate, hidden)      layers.{i}.experts_gate, ...    (experts, size, hidden)
    layers.{i}.down         (hidden, intermediate)      layers.{i}.shared_gate, ...     (shared size, hidden)
    final_norm              (hidden,)                   embed_norm              (hidden,)
    lm_head                 (vocab, hidden)             absent where tied; any weight may have a {name}_bias

Rows of q and k are always in the half-split rotary order of HF (``rotate_half``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.models.config import NORMS, ModelConfig
from pagedref.models.fields import refuse, show

__all__ = [
    "Entry", "Progress", "TensorSource", "Weights", "check_weights", "collect", "half_split", "layer_shapes",
    "weight_shapes",
]

Array = npt.NDArray[Any]
Weights = dict[str, npt.NDArray[np.float32]]
"""Arrays of float32 by name."""
Progress = Callable[[int, int], None]
"""Called with weights read, and weights in all."""


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
    """Tie a weight of the model to tensors of the file.

    Attributes
    ----------
    name : str
        Ours.
    tensors : tuple of str
        What it is made of, all of one shape.
    shape : tuple of int
        Shape that these tensors must have.
    take : callable
        From the tensors to the weight.
    """

    name: str
    tensors: tuple[str, ...]
    shape: tuple[int, ...]
    take: Callable[[list[Array]], Array]


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of one layer, by kind.

    Parameters
    ----------
    config : ModelConfig
        The geometry.
    layer : int
        Number of the layer.

    Returns
    -------
    dict of str to tuple of int
    """
    hidden, heads = config.hidden_size, config.num_qo_heads
    shapes: dict[str, tuple[int, ...]] = {kind: (hidden,) for kind in config.norms if kind.startswith("attn")}
    if config.latent is None:
        q_rows, kv_rows = heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes |= {"q": (q_rows, hidden), "k": (kv_rows, hidden), "v": (kv_rows, hidden), "o": (hidden, q_rows)}
        if config.qk_norm is not None:
            whole = config.qk_norm == "width"
            shapes |= {"q_norm": (q_rows if whole else config.head_dim,)}
            shapes |= {"k_norm": (kv_rows if whole else config.head_dim,)}
    else:
        latent = config.latent
        q_rows = heads * (latent.nope_dim + latent.rope_dim)
        if latent.q_rank is None:
            shapes["q"] = (q_rows, hidden)
        else:
            shapes |= {"q_a": (latent.q_rank, hidden), "q_a_norm": (latent.q_rank,), "q_b": (q_rows, latent.q_rank)}
        shapes |= {"kv_a": (latent.rank + latent.rope_dim, hidden), "kv_a_norm": (latent.rank,)}
        shapes |= {"kv_b": (heads * (latent.nope_dim + latent.v_dim), latent.rank), "o": (hidden, heads * latent.v_dim)}
    if config.sinks:
        shapes["sinks"] = (heads,)
    shapes |= {kind: (hidden,) for kind in config.norms if kind.startswith("mlp")}
    experts = config.experts
    if experts is None or layer < experts.dense_layers:
        inner = {"": config.intermediate_size}
    else:
        shapes["router"] = (experts.count, hidden)
        if experts.correction:
            shapes["router_correction"] = (experts.count,)
        for kind, shape in _network(hidden, experts.size, config.gated).items():
            shapes[f"experts_{kind}"] = (experts.count, *shape)
        inner = {"shared_": experts.shared_size} if experts.shared_size else {}
    for prefix, size in inner.items():
        shapes |= {prefix + kind: shape for kind, shape in _network(hidden, size, config.gated).items()}
    return shapes | _bias_shapes(config, shapes)


def _network(hidden: int, inner: int, gated: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one feed-forward network."""
    gate = {"gate": (inner, hidden)} if gated else {}
    return {**gate, "up": (inner, hidden), "down": (hidden, inner)}


def _bias_shapes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the biases that go with some weights."""
    biased = set(config.biases) | (set(shapes) & set(NORMS) if "norm" in config.biases else set())
    return {f"{kind}_bias": (*shape[:-2], *shape[-2:][:1]) for kind, shape in shapes.items() if kind in biased}


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
    hidden, norm_bias = config.hidden_size, "norm" in config.biases
    yield "embed", (config.vocab_size, hidden)
    if config.learned_positions is not None:
        yield "positions", (config.max_model_len + config.learned_positions, hidden)
    if config.embed_norm:
        yield from _norm_shapes("embed_norm", hidden, norm_bias)
    for layer in range(config.num_layers):
        for kind, shape in layer_shapes(config, layer).items():
            yield f"layers.{layer}.{kind}", shape
    yield from _norm_shapes("final_norm", hidden, norm_bias)
    if not config.tie_embeddings:
        yield "lm_head", (config.vocab_size, hidden)


def _norm_shapes(name: str, hidden: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name, (hidden,)
    if bias:
        yield f"{name}_bias", (hidden,)


def collect(
    source: TensorSource,
    config: ModelConfig,
    entries: Sequence[Entry],
    *,
    tied: str,
    harmless: Callable[[str], bool] = lambda name: False,
    progress: Progress | None = None,
) -> Weights:
    """Read all weights of a model; check all names and shapes first.

    Parameters
    ----------
    source : TensorSource
        The file.
    config : ModelConfig
        What it must hold.
    entries : sequence of Entry
        One for each weight.
    tied : str
        The tensor of the output projection, which a file may hold although it equals the embedding.
    harmless : callable
        Whether a tensor that is not needed may be left out.
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
    missing = {tensor for entry in entries for tensor in entry.tensors if tensor not in source.tensors}
    _name_all("lacks weights", [f"no {name}" for name in missing], "all of them")
    for entry in entries:
        for tensor in entry.tensors:
            if source.shape(tensor) != entry.shape:
                refuse("load_checkpoint", tensor, "has the wrong shape", source.shape(tensor), str(entry.shape))
    used = {tensor for entry in entries for tensor in entry.tensors}
    unused = [name for name in source.tensors if name not in used and not harmless(name)]
    if config.tie_embeddings and tied in unused:
        unused.remove(tied)
    _name_all("has tensors that nothing uses", unused, f"only weights of a {config.architecture} model")
    weights: Weights = {}
    last: dict[str, Array] = {}  # q, k and v may lie in one tensor: it is read once
    for done, entry in enumerate(entries, 1):
        last = {tensor: last[tensor] if tensor in last else source.read_float32(tensor) for tensor in entry.tensors}
        weights[entry.name] = _own(entry.take(list(last.values())), last)
        if progress is not None:
            progress(done, len(entries))
    if tied in source.tensors and tied not in used and not np.array_equal(source.read_float32(tied), weights["embed"]):
        refuse("load_checkpoint", tied, "differs from the embedding it is tied to", "other values", "equal values")
    return weights


def _own(weight: Array, tensors: Mapping[str, Array]) -> npt.NDArray[np.float32]:
    """Return a weight as C-contiguous float32 that keeps no larger tensor alive."""
    if any(weight is tensor for tensor in tensors.values()):
        return weight
    return np.array(weight, dtype=np.float32, order="C")


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


def check_weights(function: str, config: ModelConfig, weights: Mapping[str, Array]) -> None:
    """Refuse weights of which one is missing or has another shape than the model needs.

    Parameters
    ----------
    function : str
        What the error text names.
    config : ModelConfig
        The geometry.
    weights : mapping of str to array
        By name; more than are needed may be there.

    Raises
    ------
    ContractError
        A weight is missing or has the wrong shape.
    """
    for name, shape in weight_shapes(config):
        if name not in weights or weights[name].shape != shape:
            found = weights[name].shape if name in weights else "nothing"
            raise ContractError(f"{function}: weights of {name} do not fit, got {found}, need {shape}")
