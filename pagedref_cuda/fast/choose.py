"""Which decode kernel serves a call, from its geometry and types alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pagedref.call import AttentionCall
from pagedref.storage import Storage
from pagedref_cuda._runtime import Kernel
from pagedref_cuda.fast.decode_mma import decode_mma
from pagedref_cuda.fast.decode_warp import decode_warp, warp_shared_bytes
from pagedref_cuda.fast.geometry import Geometry
from pagedref_cuda.fast.halves import BITS
from pagedref_cuda.fast.prefill_mma import prefill_mma, prefill_shared_bytes
from pagedref_cuda.launch_table import architecture

__all__ = [
    "LONGEST",
    "Choice",
    "PrefillChoice",
    "choose_decode",
    "choose_prefill",
    "kinds_of",
    "query_kind",
    "stored_kind",
]

_QUERIES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_STORED = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_MOST_HEADS_OF_A_WARP = 4
LONGEST = 1 << 31
"""Positions have 31 bits in these kernels; addresses have 64 (S19)."""


@dataclass(frozen=True)
class Choice:
    """A kernel and how it is launched.

    Attributes
    ----------
    kernel : Kernel
        Takes the arguments of the decode kernels.
    rung : int
        Of the ladder.
    heads : int
        Query heads that a warp serves.
    warps, stages, blocks : int
        Warps of a block, tiles of a warp, blocks of a multiprocessor.
    split : int
        Keys of a unit.
    shared_bytes : int
        Of a block.
    kind, query : str
        Stored form of the cache; type of queries and output.
    """

    kernel: Kernel
    rung: int
    heads: int
    warps: int
    stages: int
    blocks: int
    split: int
    shared_bytes: int
    kind: str
    query: str


@dataclass(frozen=True)
class PrefillChoice:
    """A kernel of prefill and how it is launched.

    Attributes
    ----------
    kernel : Kernel
        For tiles of rows.
    threads, shared_bytes : int
        Of a block.
    kind : str
        Type of queries, cache and output.
    """

    kernel: Kernel
    threads: int
    shared_bytes: int
    kind: str


def query_kind(dtype: Any) -> str | None:
    """Return the short name of a type of queries, or None.

    Parameters
    ----------
    dtype : dtype
        Of the queries.

    Returns
    -------
    str or None
    """
    return _QUERIES.get(np.dtype(dtype).name)


def stored_kind(side: Storage) -> str | None:
    """Return the short name of a stored form that the fast rungs read, or None.

    Parameters
    ----------
    side : Storage
        Keys or values.

    Returns
    -------
    str or None
        None where zero points or scales of groups would have to be applied number by number.
    """
    kind = _STORED.get(side.form.kind, side.form.kind)
    fine = side.zero is not None or (side.scale is not None and side.scale.ndim > 3)
    return None if fine or kind not in BITS else kind


@cache
def choose_decode(
    head_dim: int, v_head_dim: int, group_size: int, kind: str, query: str, capability: tuple[int, int], rung: int = 5
) -> Choice | None:
    """Return the kernel for a geometry, or None where rung 1 serves it.

    Parameters
    ----------
    head_dim, v_head_dim, group_size : int
        Geometry.
    kind, query : str
        Stored form and type of queries.
    capability : pair of int
        Of the device.
    rung : int
        Highest rung of the ladder to use; below 5 a sequence is one unit.

    Returns
    -------
    Choice or None
    """
    row = architecture(capability)
    if row is None:
        return None
    split = 1 << 30
    whole = kind in ("f32", "bf16", "f16")
    exact = query == kind or (query == "f32" and kind != "f16") or not whole
    fits = Geometry.fits(head_dim, kind) and Geometry.fits(v_head_dim, kind)
    if kind == "e4m3fn" and capability < (8, 9):  # no conversion in hardware
        return None
    if rung >= 4 and kind != "f32" and exact and fits:
        wide = group_size > 8 and query == ("f16" if kind == "f16" else "bf16")  # in parts, queries fill the registers
        launch = row.launches["decode_mma_wide" if wide else "decode_mma"]
        shape = launch.warps, launch.stages, launch.blocks
        geometry = Geometry(head_dim, v_head_dim, 16 if wide else 8, kind, query, *shape)
        split = launch.split if rung >= 5 else split
        return Choice(
            decode_mma(geometry), min(rung, 5), geometry.heads, *shape, split, geometry.shared_bytes, kind, query
        )
    lanes = head_dim * BITS[kind] // 128
    if query not in ("f32", kind) or not whole or head_dim != v_head_dim or lanes not in (8, 16, 32):
        return None
    heads = next(count for count in (1, 2, 4) if count >= min(group_size, _MOST_HEADS_OF_A_WARP))
    name = "decode_async_wide" if heads == _MOST_HEADS_OF_A_WARP else "decode_async"
    launch = row.launches[name if rung >= 3 else "decode_warp"]
    shape = launch.warps, launch.stages, launch.blocks
    kernel = decode_warp(head_dim, heads, kind, query, *shape)
    split = launch.split if rung >= 5 else split
    return Choice(kernel, rung, heads, *shape, split, warp_shared_bytes(heads, *shape[:2]), kind, query)


def kinds_of(call: AttentionCall, dtype: Any) -> tuple[str, str] | None:
    """Return stored form and type of queries of a call, or None where no fast kernel reads them.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    dtype : dtype
        Of the queries.

    Returns
    -------
    pair of str or None
    """
    kinds = {stored_kind(call.keys), stored_kind(call.values)}
    kind, query = kinds.pop(), query_kind(dtype)
    if kinds or kind is None or query is None or int(call.kv_lens.max(initial=0)) >= LONGEST:
        return None
    return kind, query


@cache
def choose_prefill(
    head_dim: int, v_head_dim: int, kind: str, query: str, capability: tuple[int, int]
) -> PrefillChoice | None:
    """Return the kernel of prefill for a geometry, or None.

    Parameters
    ----------
    head_dim, v_head_dim : int
        Geometry.
    kind, query : str
        Stored form and type of queries.
    capability : pair of int
        Of the device.

    Returns
    -------
    PrefillChoice or None
    """
    row = architecture(capability)
    if row is None or kind != query or kind == "f32" or head_dim != v_head_dim or head_dim not in (64, 128):
        return None
    launch = row.launches["prefill_mma"]
    kernel = prefill_mma(head_dim, kind, launch.split, launch.stages, launch.blocks)
    return PrefillChoice(kernel, 32 * launch.warps, prefill_shared_bytes(head_dim, launch.split, launch.stages), kind)
