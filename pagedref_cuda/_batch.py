"""The batch of a call as kernels see it, from metadata on the host, checked there, or on the device, checked there.

Metadata on the device is not waited for: two small kernels check it, widen it to 64 bits and raise a flag if it is
wrong; kernels that see the flag return at once, and the error is raised at the next synchronisation, with nothing
written. Its text is that of the host: the check is then made once more, on a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import kv_len
from pagedref.attention.rotary import Rotary
from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall, attention_call
from pagedref.errors import ContractError
from pagedref.storage import Shape, unpacked
from pagedref_cuda import _runtime
from pagedref_cuda._checks import Index, check_batch_1, check_rows_1, index
from pagedref_cuda._numbers import numbers
from pagedref_cuda._result import result, result_arrays
from pagedref_cuda._runtime import DeviceArray, Kernel
from pagedref_cuda._storage import four_axes, stored
from pagedref_cuda.rotary import rotation
from pagedref_cuda.tiles import Pages, pages, rules

__all__ = ["Batch", "batch", "launch_rows", "lies_on_device", "watch"]

Array = npt.NDArray[Any]

_METADATA = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")


@dataclass(frozen=True)
class Batch:
    """A call and its batch.

    Attributes
    ----------
    call : AttentionCall
        Options, sizes and stored forms; its metadata is that of no sequence where the batch lies on the device.
    pages : Pages
        On the device.
    owner : array (tokens,) of int64
        Sequence of each query row, on the device.
    most_keys : int
        No sequence has more.
    finish : callable
        To be called when all kernels are launched.
    deferred : bool
        Whether the metadata is checked on the device.
    """

    call: AttentionCall
    pages: Pages
    owner: Any
    most_keys: int
    finish: Callable[[], None]
    deferred: bool = False


def lies_on_device(*arrays: Any) -> bool:
    """Tell whether one of the arrays lies on the device.

    Parameters
    ----------
    *arrays : array or None
        Metadata.

    Returns
    -------
    bool
    """
    return any(isinstance(array, DeviceArray) for array in arrays)


def watch(function: str, flag: Any, check: Callable[[], object]) -> None:
    """Raise what a check on the host says, at the next synchronisation, if kernels have raised the flag.

    Parameters
    ----------
    function : str
        Operation.
    flag : array (1,) of int32
        On the device.
    check : callable
        Makes the same check on the host, on copies.
    """

    def complain(raised: npt.NDArray[Any]) -> None:
        if raised[0]:
            check()
            raise ContractError(
                f"{function}: metadata was wrong when a kernel read it, got other numbers since, "
                "need arrays that nobody writes meanwhile"
            )

    _runtime.watch(flag, complain)


def batch(function: str, arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> Batch:
    """Check a call of attention, on the host or on the device.

    Parameters
    ----------
    function : str
        Operation on keys and values.
    arrays, keywords : mapping
        As of :func:`pagedref.call.attention_call`.

    Returns
    -------
    Batch

    Raises
    ------
    ContractError, PageFault
        As of :func:`pagedref.call.attention_call`; for metadata on the device, at the next synchronisation.
    """
    on_device = lies_on_device(*(arrays.get(name) for name in _METADATA))
    if on_device and not isinstance(keywords.get("mask"), list | tuple):
        found = _on_device(function, arrays, keywords)
        if found is not None:
            return found
    call = attention_call(function, "cuda", arrays, keywords)
    owner = np.repeat(np.arange(call.dims["num_seqs"], dtype=np.int64), np.diff(call.qo_indptr))
    most = int(call.kv_lens.max(initial=0))
    return Batch(call, pages(call), _runtime.readable(owner), most, lambda: None)


def _planned(function: str, call: AttentionCall, dtype: Any, keywords: Mapping[str, Any]) -> bool:
    """Tell whether a fast rung of prefill serves the call: tiles are cut on the host, which has to know the lengths."""
    if function != "paged_prefill" or _runtime.SIMULATOR or keywords.get("rotary") is not None:
        return False
    from pagedref_cuda.fast import choose

    kinds, dims = choose.kinds_of(call, dtype), call.dims
    if kinds is None:
        return False
    heads, capability = (dims["head_dim"], dims["v_head_dim"]), _runtime.compute_capability()
    return choose.choose_decode(*heads, call.group_size, *kinds, capability) is not None


def _on_device(function: str, arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> Batch | None:
    """Check what the host knows here, and the metadata on the device; None if the host must know it anyway."""
    form, mask = keywords.get("kv_format"), keywords.get("mask")
    seen = {name: unpacked(array, form) if name.endswith("cache") else array for name, array in arrays.items()}
    dims = validate.arrays(function, "cuda", seen)
    decode = function.endswith("_decode")
    if not decode and keywords.get("causal") is None:
        keywords = {**keywords, "causal": mask is None}
    q, none = arrays["q"], np.zeros(0, np.int64)
    nothing = {"q": Shape((0, *q.shape[1:]), q.dtype), "kv_indptr": none[:1], "kv_indices": none}
    nothing |= {"kv_indptr": np.zeros(1, np.int64), "kv_last_page_len": none}
    if not decode:
        nothing["qo_indptr"] = np.zeros(1, np.int64)
    call = attention_call(function, "cuda", {**arrays, **nothing}, {**keywords, "mask": None})
    if _planned(function, call, q.dtype, keywords):
        return None
    if mask is not None and (getattr(mask, "dtype", None) != np.bool_ or len(mask.shape) != 1):
        got = getattr(mask, "dtype", type(mask).__name__)
        validate.fail(function, "mask", "has the wrong type", got, "a flat array of bool (S14)")
    tokens, num_seqs, num_pages = int(q.shape[0]), dims["num_seqs"], dims["num_pages"]
    call = replace(call, dims=dims)
    flag = _runtime.readable(np.zeros(1, np.int32))
    rows: Index = index(np.arange(tokens + 1, dtype=np.int64)) if decode else index(arrays["qo_indptr"])
    wide = Pages(
        _runtime.empty((num_seqs + 1,), np.int64),
        _runtime.empty((num_seqs + 1,), np.int64),
        _runtime.empty((num_pages,), np.int64),
        _runtime.empty((num_seqs,), np.int64),
        dims["page_size"],
        _runtime.readable(np.empty(0, np.uint8) if mask is None else mask.view(np.uint8)),
        _runtime.empty((num_seqs,), np.int64),
        flag,
    )
    owner = _runtime.empty((tokens,), np.int64)
    scales = [side.scale if side.form.granularity == "frame_head" else None for side in (call.keys, call.values)]
    check_batch_1.launch(
        max(num_pages, num_seqs, 1),
        rows,
        *(index(arrays[name]) for name in _METADATA[1:]),
        wide,
        dims["num_frames"],
        tokens,
        int(mask is not None),
        *(_runtime.readable(four_axes(scale)) for scale in scales),
        flag,
    )
    check_rows_1.launch(tokens, wide, rules(call.options, dims["num_qo_heads"]), owner, flag)

    def check() -> None:
        host = {name: np.asarray(arrays[name]) for name in _METADATA if arrays.get(name) is not None}
        attention_call(
            function, "cuda", {**arrays, **host}, {**keywords, "mask": None if mask is None else np.asarray(mask)}
        )

    most = int(kv_len(num_pages, dims["page_size"], dims["page_size"]))
    return Batch(call, wide, owner, most, lambda: watch(function, flag, check), deferred=True)


def launch_rows(
    kernel: Kernel, given: Batch, q: Any, k_cache: Any, v_cache: Any, rotary: Rotary | None, *owner: Any
) -> AttentionState:
    """Launch a kernel in which a thread owns one (row, query head), and return what it wrote.

    Parameters
    ----------
    kernel : Kernel
        Of decode or prefill.
    given : Batch
        The checked call.
    q : array (tokens, num_qo_heads, head_dim)
        Queries, sequence after sequence.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    rotary : Rotary or None
        Turns keys that are stored unrotated.
    *owner : array (tokens,) of int64
        Sequence of each row, for prefill.

    Returns
    -------
    AttentionState
        ``out`` in the type of `q`, ``lse`` in float32.
    """
    call, tokens = given.call, int(q.shape[0])
    dims, num_qo_heads = call.dims, call.dims["num_qo_heads"]
    written = result(q.dtype, tokens, num_qo_heads, dims["v_head_dim"])
    kernel.launch(
        tokens * num_qo_heads,
        numbers(q),
        *owner,
        stored(k_cache, call.keys, dims["head_dim"]),
        stored(v_cache, call.values, dims["v_head_dim"]),
        num_qo_heads,
        call.group_size,
        dims["head_dim"],
        rotation(rotary, given.most_keys),
        given.pages,
        rules(call.options, num_qo_heads),
        written,
    )
    given.finish()
    return AttentionState(*result_arrays(written, q.dtype))
