"""The fast rungs: kernels for the geometries that models have, chosen by :mod:`pagedref_cuda.launch_table`.

Rung 1 serves every call; these serve most. :func:`try_decode` returns None for a call that they do not take.
"""

from __future__ import annotations

from typing import Any

from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall
from pagedref_cuda import _runtime
from pagedref_cuda.tiles import Pages

__all__ = ["try_decode", "try_prefill"]


def try_decode(
    call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, rotary: object = None, deferred: Pages | None = None
) -> AttentionState | None:
    """Attend with one query token per sequence by a fast kernel, if there is one for the call.

    Parameters
    ----------
    call : AttentionCall
        The checked call of ``paged_decode``.
    q : array (num_seqs, num_qo_heads, head_dim)
        Queries.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    rotary : Rotary, optional
        Turns keys that are stored unrotated: no fast kernel does that.
    deferred : Pages, optional
        Metadata that lies on the device and is checked there; `call` has none then, and nobody waits for it.

    Returns
    -------
    AttentionState or None
        None: rung 1 is to serve the call.

    Notes
    -----
    Mutates: nothing. The choice depends on geometry and types alone, so that it changes no bit between batches (L2).
    """
    return _try(call, q, k_cache, v_cache, rotary, deferred)


def try_prefill(
    call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, rotary: object = None
) -> AttentionState | None:
    """Attend with any number of query tokens per sequence by a fast kernel, if there is one for the call.

    Parameters
    ----------
    call : AttentionCall
        The checked call of ``paged_prefill``.
    q : array (num_tokens, num_qo_heads, head_dim)
        Queries.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    rotary : Rotary, optional
        Turns keys that are stored unrotated: no fast kernel does that.

    Returns
    -------
    AttentionState or None
        None: rung 1 is to serve the call.

    Notes
    -----
    Mutates: nothing. Where tiles of rows are not built for a type, each row goes through the kernels of decode.
    """
    return _try(call, q, k_cache, v_cache, rotary)


def _try(
    call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, rotary: object, deferred: Pages | None = None
) -> AttentionState | None:
    if rotary is not None or _runtime.SIMULATOR or q.shape[0] == 0:
        return None
    from pagedref_cuda.fast import choose, prefill, steps

    kinds = choose.kinds_of(call, q.dtype)
    if kinds is None:
        return None
    dims, capability = call.dims, _runtime.compute_capability()
    if deferred is not None and dims["num_pages"] * dims["page_size"] >= choose.LONGEST:
        return None
    heads = dims["head_dim"], dims["v_head_dim"]
    if q.shape[0] > dims["num_seqs"] or call.masks:
        tiles = choose.choose_prefill(*heads, *kinds, capability)
        if tiles is not None:
            return prefill.run_prefill(call, q, k_cache, v_cache, tiles)
    rows = None if call.masks else choose.choose_decode(*heads, call.group_size, *kinds, capability)
    return None if rows is None else steps.run_rows(call, q, k_cache, v_cache, rows, deferred)
