"""Bring your own kernel: functions with another system's conventions, as a backend that the suite judges.

An adapter checks the call as every backend does, converts it through :mod:`pagedref.layouts`, calls the function with
arrays of its own library, and converts the result. What the function lacks is *not offered*; that fails nothing.

=====================  ============================================================================================
adapter                conventions
=====================  ============================================================================================
`flashinfer`           CSR, ``window_left``, lse to base 2 ``[tokens, heads]``, NHD or HND, a pair or one tensor
`flash_attention`      ``block_table``, ``cache_seqlens``, ``window_size``, lse ``[heads, tokens]``, +inf where empty
`vllm`                 the same, ``slot_mapping``, keys packed or not, merge of two states in place
`jax_ragged`           K and V heads in turn, ``kv_lens``, ``page_indices``, ``cu_q_lens``, ``num_seqs``, no lse
`flash_mla`            latent pages in one tensor, lse ``[batch, heads, 1]``
`gathered`             no pages at all: keys of one sequence in order, a mask, such as torch's SDPA
=====================  ============================================================================================
"""

from __future__ import annotations

from pagedref.conformance.adapters._border import Adapter
from pagedref.conformance.adapters._flash import flash_attention, vllm
from pagedref.conformance.adapters._flashinfer import flashinfer
from pagedref.conformance.adapters._others import flash_mla, gathered, jax_ragged

__all__ = ["Adapter", "flash_attention", "flash_mla", "flashinfer", "gathered", "jax_ragged", "vllm"]
