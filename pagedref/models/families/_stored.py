"""How a weight lies in the tensors of a file: whole, turned, stacked with others, by heads, or one for each expert.

Every form says which tensors it needs, of what shape, and how our weight is taken out of them; nothing is read here.
Our weights are ``(out_features, in_features)``, stacks of experts ``(experts, out_features, in_features)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.config import ModelConfig

__all__ = ["Alternating", "EachExpert", "Heads", "Rows", "Stored"]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A tensor that is the weight.

    Parameters
    ----------
    tensor : str
        Name in the file, behind the layer's prefix.
    turned : bool
        Whether the tensor is (inputs, outputs), as the Conv1D of GPT-2.
    """

    tensor: str
    turned: bool = False

    def bias(self) -> Stored:
        """Return where the bias of this weight lies: beside it."""
        return replace(self, tensor=self.tensor.removesuffix("weight") + "bias")

    def tensors(self, config: ModelConfig) -> list[str]:
        """Return the names of all tensors that make up the weight."""
        return [self.tensor]

    def shape(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig) -> Shape:
        """Return the shape that each of the tensors must have."""
        return self._file_order(shapes[kind])

    def take(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig, arrays: Sequence[Array]) -> Array:
        """Return the weight, given the tensors."""
        return self._file_order_back(arrays[0])

    def _file_order(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned and len(shape) > 1 else shape

    def _file_order_back(self, array: Array) -> Array:
        return array.swapaxes(-1, -2) if self.turned and array.ndim > 1 else array


@dataclass(frozen=True)
class Rows(Stored):
    """A part of a tensor in which several weights are stacked along the outputs, such as q, k and v.

    Parameters
    ----------
    among : tuple of str
        The weights that are stacked, in order, by our names.
    """

    among: tuple[str, ...] = ()

    def bias(self) -> Rows:
        """Return the same part of the stacked biases."""
        name = self.tensor.removesuffix("weight") + "bias"
        return replace(self, tensor=name, among=tuple(f"{kind}_bias" for kind in self.among))

    def shape(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig) -> Shape:
        """Return the shape of the stack."""
        return self._file_order((sum(shapes[part][0] for part in self.among), *shapes[kind][1:]))

    def take(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig, arrays: Sequence[Array]) -> Array:
        """Return the rows of the weight."""
        first = sum(shapes[part][0] for part in self.among[: self.among.index(kind)])
        return self._file_order_back(arrays[0])[first : first + shapes[kind][0]]


@dataclass(frozen=True)
class Heads(Stored):
    """A part of a tensor that holds, for each kv head, its query heads, then its key, then its value."""

    def shape(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig) -> Shape:
        """Return the shape of q, k and v together."""
        rows = (config.num_qo_heads + 2 * config.num_kv_heads) * config.head_dim
        return (rows, *shapes[kind][1:])

    def take(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig, arrays: Sequence[Array]) -> Array:
        """Return the rows of all heads of one kind."""
        group = config.num_qo_heads // config.num_kv_heads
        chosen = {"q": slice(0, group), "k": slice(group, group + 1), "v": slice(group + 1, group + 2)}[kind[0]]
        heads = arrays[0].reshape(config.num_kv_heads, group + 2, config.head_dim, *shapes[kind][1:])
        return heads[:, chosen].reshape(shapes[kind])


@dataclass(frozen=True)
class EachExpert(Stored):
    """One tensor for each expert; ``{}`` in the name is its number."""

    def tensors(self, config: ModelConfig) -> list[str]:
        """Return the names of all experts' tensors."""
        experts = 0 if config.experts is None else config.experts.count
        return [self.tensor.format(expert) for expert in range(experts)]

    def shape(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig) -> Shape:
        """Return the shape of one expert's tensor."""
        return self._file_order(shapes[kind][1:])

    def take(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig, arrays: Sequence[Array]) -> Array:
        """Return the stack."""
        return np.stack([self._file_order_back(array) for array in arrays])


@dataclass(frozen=True)
class Alternating(Stored):
    """Every second output of a tensor (experts, inputs, 2 outputs): the gate first, then the other projection.

    Parameters
    ----------
    first : int
        0 for the gate, 1 for the other.
    """

    first: int = 0

    def shape(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig) -> Shape:
        """Return the shape of both together."""
        experts, outputs, *inputs = shapes[kind]
        return (experts, *inputs, 2 * outputs)

    def take(self, kind: str, shapes: Mapping[str, Shape], config: ModelConfig, arrays: Sequence[Array]) -> Array:
        """Return one of the two, outputs before inputs."""
        half = arrays[0][..., self.first :: 2]
        return half.swapaxes(-1, -2) if half.ndim > 2 else half
