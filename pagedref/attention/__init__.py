"""The arithmetic: attention over pages in NumPy, and the float64 oracle.

This module is the backend ``numpy``: it holds every operation of the contract under its name. The operations take plain
arrays, never a manager.
"""

from __future__ import annotations

from pagedref.attention.cache import append_kv, copy_frames, gather_kv
from pagedref.attention.decode import paged_decode
from pagedref.attention.dense import DenseState, dense_attention
from pagedref.attention.prefill import paged_prefill
from pagedref.attention.state import AttentionState, merge_states
from pagedref.attention.variants import alibi_slopes

__all__ = [
    "AttentionState",
    "DenseState",
    "alibi_slopes",
    "append_kv",
    "copy_frames",
    "dense_attention",
    "gather_kv",
    "merge_states",
    "paged_decode",
    "paged_prefill",
]
