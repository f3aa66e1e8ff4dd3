"""A whole call: what every backend starts from."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref.call import attention_call
from pagedref.conformance import PagedCase, make_case
from pagedref.errors import PageFault


def arrays(case: PagedCase) -> dict[str, object]:
    names = ("k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")
    return {"q": case.q, "qo_indptr": case.qo_indptr, **dict(zip(names, case.pages, strict=True))}


def test_everything_is_in_64_bits() -> None:
    call = attention_call("paged_prefill", "numpy", arrays(make_case(0, [2, 1], [5, 9])), {})
    assert all(x.dtype == np.int64 for x in (call.qo_indptr, call.kv_indptr, call.kv_indices, call.kv_lens))
    assert call.kv_lens.tolist() == [5, 9]
    assert call.positions(0).tolist() == [3, 4]
    assert call.group_size == 2


def test_causal_is_the_default_unless_a_mask_is_given() -> None:
    case = make_case(1, [1], [4])
    mask = [np.ones((1, 4), bool)]
    for keywords, causal in (({}, True), ({"mask": mask}, False), ({"mask": mask, "causal": True}, True)):
        assert attention_call("paged_prefill", "numpy", arrays(case), keywords).options.causal is causal


def test_flat_and_listed_masks_are_one() -> None:
    case = make_case(2, [2, 0, 1], [3, 4, 2])
    parts = [np.random.default_rng(0).random(shape) < 0.5 for shape in ((2, 3), (0, 4), (1, 2))]
    flat = np.concatenate([part.ravel() for part in parts])
    calls = [attention_call("paged_prefill", "numpy", arrays(case), {"mask": mask}) for mask in (parts, flat)]
    for listed, cut in zip(calls[0].masks, calls[1].masks, strict=True):
        assert np.array_equal(listed, cut)


def test_a_fault_names_page_and_sequence() -> None:
    case = make_case(3, [1, 1], [5, 9])
    case.kv_indices[3] = -1
    with pytest.raises(PageFault, match="page 1 of sequence 1"):
        attention_call("paged_prefill", "numpy", arrays(case), {})
    attention_call("paged_prefill", "numpy", arrays(case), {"window": 1})
