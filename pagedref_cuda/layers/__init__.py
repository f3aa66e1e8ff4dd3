"""Layers on the device: the twins of :mod:`pagedref.layers`, same names and arguments, computed by kernels.

Arrays lie on the host or on the device. A model that lives on the device does not call these functions, which check
and copy, but the launches beside them (:mod:`pagedref_cuda.runner`).
"""

from __future__ import annotations

from pagedref_cuda._runtime import in_kind
from pagedref_cuda.layers.activation import activate, gate
from pagedref_cuda.layers.choose import argmax, route, top_k
from pagedref_cuda.layers.embedding import embed
from pagedref_cuda.layers.linear import linear
from pagedref_cuda.layers.norm import layer_norm, rms_norm
from pagedref_cuda.layers.sampling import sample
from pagedref_cuda.layers.turn import rotate

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

# They take arrays of other libraries, and return arrays of the same.
for _name in __all__:
    globals()[_name] = in_kind(globals()[_name])
