"""What models compute beside attention: norms, products, rotary embedding, activations, choices.

These are the layers of the backend ``numpy``; :data:`pagedref.contract.LAYER_OPERATIONS` lists them as data. They work
in float32, row by row, and write into arrays that the caller keeps, so that a step of a model allocates nothing.
"""

from __future__ import annotations

from pagedref.layers.activation import activate, gate
from pagedref.layers.choose import argmax, route, sample, top_k
from pagedref.layers.embedding import embed
from pagedref.layers.linear import linear
from pagedref.layers.norm import layer_norm, rms_norm
from pagedref.layers.turn import rotate

__all__ = [
    "activate",
    "argmax",
    "embed",
    "gate",
    "layer_norm",
    "linear",
    "rms_norm",
    "rotate",
    "route",
    "sample",
    "top_k",
]
