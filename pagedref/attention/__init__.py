"""The arithmetic: attention over pages in NumPy, and the float64 oracle.

This module is the backend ``numpy``: it holds every operation of the contract under its name. The operations take plain
arrays, never a manager.
"""

from __future__ import annotations

from pagedref.attention.cache import append_kv, copy_frames, gather_kv
from pagedref.attention.cascade import cascade_attention, cascade_mla, split_kv
from pagedref.attention.decode import paged_decode
from pagedref.attention.dense import DenseState, dense_attention
from pagedref.attention.levels import CascadeLevel, cascade_levels, cascade_work, split_levels
from pagedref.attention.mla import mla_decode, mla_prefill
from pagedref.attention.mla_forms import LatentCacheSpec, dense_mla, mla_absorb, mla_expand, mla_project
from pagedref.attention.ordered import ordered_decode, ordered_prefill
from pagedref.attention.prefill import paged_prefill
from pagedref.attention.rotary import Rotary, shift_positions
from pagedref.attention.state import AttentionState, merge_states
from pagedref.attention.variants import alibi_slopes

__all__ = [
    "AttentionState",
    "CascadeLevel",
    "DenseState",
    "LatentCacheSpec",
    "Rotary",
    "alibi_slopes",
    "append_kv",
    "cascade_attention",
    "cascade_levels",
    "cascade_mla",
    "cascade_work",
    "copy_frames",
    "dense_attention",
    "dense_mla",
    "gather_kv",
    "merge_states",
    "mla_absorb",
    "mla_decode",
    "mla_expand",
    "mla_prefill",
    "mla_project",
    "ordered_decode",
    "ordered_prefill",
    "paged_decode",
    "paged_prefill",
    "shift_positions",
    "split_kv",
    "split_levels",
]
