"""The CUDA twin of :mod:`pagedref.attention`: same names, signatures and errors, computed by Numba kernels.

This module is the backend ``cuda``. It runs on a GPU (``pip install "pagedref[cuda]"``) or, to step through kernels
without one, in Numba's simulator (``pip install "pagedref[cudasim]"`` and ``NUMBA_ENABLE_CUDASIM=1`` in the
environment); :func:`device` says which. Importing it needs numba-cuda, but neither of the two.
"""

from __future__ import annotations

from pagedref.attention.state import AttentionState
from pagedref_cuda._runtime import KERNELS, device, ensure_available
from pagedref_cuda.cache import append_kv, copy_frames, gather_kv
from pagedref_cuda.decode import paged_decode
from pagedref_cuda.prefill import paged_prefill
from pagedref_cuda.state import merge_states

__all__ = [
    "KERNELS",
    "AttentionState",
    "append_kv",
    "copy_frames",
    "device",
    "ensure_available",
    "gather_kv",
    "merge_states",
    "paged_decode",
    "paged_prefill",
]
