"""Outputs that are equal to the bit whatever the batch (P73): every operation depends on its own row and nothing else.

Three things could let a neighbour in. Attention is cut where it suits the batch, so it is computed in ordered
arithmetic (:mod:`pagedref.attention.ordered`), where decode, prefill and any chunks of it have the same bits. A matrix
product may take another path for another number of rows, so that number is fixed, and a probe sees whether the library
then treats all rows alike. What is left works on one row at a time. Preemption, prefix hits and page size then change
nothing, since a key is the same whoever computed it, and when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref.attention.ordered import ordered_decode, ordered_prefill
from pagedref.errors import BackendUnavailable
from pagedref.layers.crew import hired
from pagedref.layers.linear import ROWS, Linear, fixed_rows, panel_width
from pagedref.models.fields import refuse

if TYPE_CHECKING:
    from pagedref.models.model import Model

__all__ = ["OrderedBackend", "exact_backend", "products_are_exact"]


class OrderedBackend:
    """A backend that attends in ordered arithmetic and is another one in everything else.

    Parameters
    ----------
    backend : module or object
        The other one; where it has no ordered attention of its own, that of NumPy is taken.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.paged_decode = getattr(backend, "ordered_decode", ordered_decode)
        self.paged_prefill = getattr(backend, "ordered_prefill", ordered_prefill)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def products_are_exact(in_features: int) -> bool:
    """Tell whether a row of a product has the same bits in every place, for rows of some length.

    Parameters
    ----------
    in_features : int
        Length of a row.

    Returns
    -------
    bool
    """
    rng = np.random.default_rng(in_features)
    layer = Linear([rng.standard_normal((2 * panel_width(in_features), in_features)).astype(np.float32)])
    row = rng.standard_normal(in_features).astype(np.float32)
    found = []
    with fixed_rows(), hired():
        for tokens in (1, ROWS, 2 * ROWS + 1):
            x, out = layer.buffers(tokens)
            x[:tokens] = rng.standard_normal((tokens, in_features))
            for place in range(tokens):
                before = x[place].copy()
                x[place] = row
                found.append(layer(x, out, tokens)[place].copy())
                x[place] = before
    return all(np.array_equal(one, found[0]) for one in found)


def exact_backend(model: Model) -> OrderedBackend:
    """Return a backend whose attention is ordered, if everything else of the model can be exact, too.

    Parameters
    ----------
    model : Model
        On a backend of NumPy arrays.

    Returns
    -------
    OrderedBackend

    Raises
    ------
    ContractError
        Latent attention: there is no ordered form of it.
    BackendUnavailable
        The matrix library rounds a row by its place among others.
    """
    own = model.config
    if own.latent is not None:
        refuse("EngineConfig", "deterministic", "is not supported for latent attention", True, "False")
    lengths = {own.hidden_size, own.intermediate_size, own.num_qo_heads * own.head_dim}
    if own.experts is not None:
        lengths |= {own.experts.size, own.experts.shared_size} - {0}
    for length in sorted(lengths):
        if not products_are_exact(length):
            text = f"got other bits in another place for rows of {length}, need a library that treats all alike"
            raise BackendUnavailable(f"EngineConfig: deterministic is not available with this matrix library, {text}")
    return OrderedBackend(model.backend)
