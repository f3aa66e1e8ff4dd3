"""A whole call of attention over latent pages, checked: what every backend of MLA starts from (S13).

To the walk over pages, MLA is attention with one kv head: the key of a token is ``[ckv | kpe]``, its value is ``ckv``.
A sparse selection is the same with pages of one token: each query row is a sequence of its own, whose pages are the
slots that it selected. So everything behind this module knows pages, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import offset_of, page_of, slot_of
from pagedref.call import AttentionCall, read_masks, refuse_faults
from pagedref.errors import PageFault
from pagedref.kv_format import KINDS, KVFormat
from pagedref.numerics import accumulator
from pagedref.options import AttentionOptions, attention_options
from pagedref.storage import Storage, storage, unpacked

__all__ = ["LatentCall", "mla_call"]

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LatentCall:
    """A checked call of ``mla_decode`` or ``mla_prefill``.

    Attributes
    ----------
    call : AttentionCall
        The same as attention with one kv head: ``head_dim`` is rank + rope_dim, ``v_head_dim`` is rank.
    by_token : bool
        Whether the pages of `call` are single tokens and its `kv_indices` are slots (a sparse selection).
    ckv, kpe : Storage
        Stored form of the two caches. Scales and zero points have an axis of kv heads, of size 1 (S17).
    """

    call: AttentionCall
    by_token: bool
    ckv: Storage
    kpe: Storage


def mla_call(function: str, backend: str, given: Mapping[str, Any], keywords: Mapping[str, Any]) -> LatentCall:
    """Check a whole call of ``mla_decode`` or ``mla_prefill``.

    Parameters
    ----------
    function, backend : str
        Operation and backend.
    given : mapping
        The array arguments by name, `sparse_positions` among them.
    keywords : mapping
        The other keyword arguments by name.

    Returns
    -------
    LatentCall
        Everything a backend needs beside the arrays of numbers.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page with a visible key is unmapped (S21).
    """
    if keywords.get("sm_scale") is None:
        rule = "a number: the absorbed form cannot know 1/sqrt(qk_nope + qk_rope) (S13)"
        validate.fail(function, "sm_scale", "is missing", None, rule)
    forms = {f"{side}_cache": keywords.get(f"{side}_format") for side in ("ckv", "kpe")}
    for name, form in forms.items():
        if form is not None and not isinstance(form, KVFormat) and not (isinstance(form, str) and form in KINDS):
            got, need = repr(form)[:80], f"a KVFormat or one of {', '.join(KINDS)} (S15)"
            validate.fail(function, name.replace("cache", "format"), "is not a kind", got, need)
    seen = {name: unpacked(array, forms[name]) if name in forms else array for name, array in given.items()}
    dims = validate.arrays(function, backend, seen)
    if given["q_pe"].dtype != given["q_nope"].dtype:
        need = f"{given['q_nope'].dtype} as q_nope has"
        validate.fail(function, "q_pe", "has another type", given["q_pe"].dtype, need)
    sides = [_stored(function, side, given, dims, keywords) for side in ("ckv", "kpe")]
    for name, size in (("ckv_cache", "page_size"), ("q_nope", "num_qo_heads"), ("q_nope", "rank")):
        if dims[size] < 1:
            validate.fail(function, name, f"has an empty axis {size}", dims[size], f"{size} >= 1")
    pages = (given["kv_indptr"], given["kv_indices"], given["kv_last_page_len"])
    indptr, frames, kv_lens = validate.csr(function, *pages, dims["num_frames"], dims["page_size"])
    mask, causal = keywords.get("mask"), keywords.get("causal")
    selection = given.get("sparse_positions")
    if function == "mla_decode":
        qo_indptr = np.arange(dims["num_seqs"] + 1, dtype=np.int64)
    else:
        qo_indptr = validate.qo_lens(function, given["qo_indptr"], dims["num_tokens"])
        if causal is not None and not isinstance(causal, bool | np.bool_):
            validate.fail(function, "causal", "is not a boolean", repr(causal), "True, False or None (S14)")
    options = attention_options(
        function,
        dims["rank"] + dims["rope_dim"],
        accumulator(given["q_nope"].dtype),
        causal=(mask is None and selection is None) if causal is None else bool(causal),
        sinks=given.get("sinks"),
        **{name: keywords.get(name) for name in ("sm_scale", "window", "attention_chunk", "softcap")},
    )
    dims |= {"num_kv_heads": 1, "head_dim": dims["rank"] + dims["rope_dim"], "v_head_dim": dims["rank"]}
    masks = [] if mask is None else read_masks(function, mask, qo_indptr, kv_lens)
    call = AttentionCall(options, dims, dims["num_qo_heads"], qo_indptr, indptr, frames, kv_lens, masks)
    if selection is not None:
        return LatentCall(_by_token(function, call, selection), True, *sides)
    if frames.size and frames.min() < 0:
        refuse_faults(function, call)
    return LatentCall(call, False, *sides)


def _stored(
    function: str, side: str, given: Mapping[str, Any], dims: Mapping[str, int], keywords: Mapping[str, Any]
) -> Storage:
    """Check format, scales and zero points of one of the caches: that of a cache with one kv head."""
    form, name = keywords.get(f"{side}_format"), f"{side}_format"
    if form is None and given[f"{side}_cache"].dtype == np.uint8:
        validate.fail(function, name, "is missing", None, "a format: uint8 says nothing by itself (S15)")
    size = dims["rank" if side == "ckv" else "rope_dim"]
    scales = {f"{side}_{part}": keywords.get(f"{side}_{part}") for part in ("scale", "zero")}
    one_head = {**dims, "num_kv_heads": 1, "v_head_dim": size}
    return storage(function, side, given[f"{side}_cache"], one_head, {"kv_format": form, **scales})


def _by_token(function: str, call: AttentionCall, selection: npt.NDArray[Any]) -> AttentionCall:
    """Turn a sparse selection into a call whose pages are the slots that each row sees.

    The slots of a row stand in order of position, whatever the order of the selection, so that it changes no bit.
    """
    ordered = np.sort(selection.astype(np.int64), axis=1)
    _check_selection(function, call, ordered)
    page_size = call.dims["page_size"]
    slots: list[IndexArray] = []
    for sequence, (begin, end) in enumerate(pairwise(call.qo_indptr.tolist())):
        start, stop = call.options.intervals(call.positions(sequence), int(call.kv_lens[sequence]))
        for row in range(end - begin):
            chosen = ordered[begin + row]
            seen = (chosen >= max(int(start[row]), 0)) & (chosen < stop[row])
            if call.masks:
                seen[seen] = call.masks[sequence][row, chosen[seen]]
            positions = chosen[seen]
            pages = page_of(positions, page_size)
            frames = call.kv_indices[call.kv_indptr[sequence] + pages]
            if frames.size and frames.min() < 0:
                raise PageFault(
                    f"{function}: kv_indices has an unmapped page with a visible key, got -1 for page "
                    f"{pages[np.argmin(frames)]} of sequence {sequence}, need a frame (S21)"
                )
            slots.append(slot_of(frames, offset_of(positions, page_size), page_size))
    lengths = np.array([len(row) for row in slots], np.int64)
    rows = np.arange(len(slots) + 1, dtype=np.int64)
    options = AttentionOptions(call.options.sm_scale, False, softcap=call.options.softcap, sinks=call.options.sinks)
    return replace(
        call,
        options=options,
        dims=call.dims | {"page_size": 1, "num_frames": call.dims["num_frames"] * page_size},
        qo_indptr=rows,
        kv_indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        kv_indices=np.concatenate([*slots, np.empty(0, np.int64)]),
        kv_lens=lengths,
        masks=[],
    )


def _check_selection(function: str, call: AttentionCall, ordered: IndexArray) -> None:
    """Refuse positions that are no key of the row's sequence, or named twice by a row."""
    limits = np.repeat(call.kv_lens, np.diff(call.qo_indptr))[:, None]  # (num_tokens, 1)
    outside = (ordered < -1) | (ordered >= limits)
    if outside.any():
        row, at = (int(index[0]) for index in np.nonzero(outside))
        rule = f"-1..{int(limits[row, 0]) - 1}, -1 is unused (S13)"
        validate.fail(function, "sparse_positions", f"of row {row} is out of range", ordered[row, at], rule)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, at = (int(index[0]) for index in np.nonzero(twice))
        rule = "each position at most once in a row (S13)"
        validate.fail(function, "sparse_positions", f"of row {row} names a key twice", ordered[row, at + 1], rule)
