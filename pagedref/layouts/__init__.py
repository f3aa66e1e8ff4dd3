"""The border: arrays, page tables, windows and results of other systems, there and back (S5, S8, S9, S19, S20, S23).

Ours is on the left; a converter is named ``<what comes out>_from_<what goes in>``. A *view* shares memory with what
went in: what is written into one is in the other.

==========================  ==========================================================  ================================
ours                        theirs                                                      converters
==========================  ==========================================================  ================================
cache NHD                   HND ``[pages, heads, page_size, dim]`` (FlashInfer, vLLM)   `hnd_from_nhd`, `nhd_from_hnd`
k_cache, v_cache            one tensor, K and V on axis 1 (FlashInfer) or 0 (vLLM)      `combined_from_kv`,
                                                                                        `kv_from_combined`
k_cache, v_cache            K and V heads in turn ``[pages, page_size, 2 * heads,       `interleaved_from_kv`,
                            dim]`` (JAX ragged paged attention)                         `kv_from_interleaved`
k_cache                     x-packed ``[pages, heads, dim / x, page_size, x]`` (vLLM)   `packed_from_k`, `k_from_packed`
v_cache                     channels before slots ``[pages, heads, dim, page_size]``    `channels_first_from_v`,
                                                                                        `v_from_channels_first`
ckv_cache, kpe_cache        latent pages ``[pages, page_size, rank + rope_dim]``        `latent_pages_from_parts`,
                                                                                        `parts_from_latent_pages`
CSR                         FlashInfer's three arrays                                   none: they are the same
CSR                         ``block_table``, ``cache_seqlens`` (flash-attention, vLLM)  `padded_table_from_csr`,
                                                                                        `csr_from_padded_table`
CSR, qo_indptr              ``kv_lens``, ``page_indices``, ``cu_q_lens``, ``num_seqs``  `ragged_jax_from_csr`,
                            (JAX)                                                       `csr_from_ragged_jax`
kv_indices                  pages of a kernel, smaller than those of the allocator      `kernel_pages_from_pages`,
                                                                                        `pages_from_kernel_pages`
slot_mapping                vLLM's                                                      none: they are the same
window                      ``window_left`` = W - 1, -1 = off (FlashInfer)              `window_left_from_window`,
                                                                                        `window_from_window_left`
window                      ``window_size`` = (left, right), -1 = off                   `window_size_from_window`,
                            (flash-attention)                                           `window_from_window_size`
lse natural                 base 2 (FlashInfer)                                         `base_2_from_natural`,
                                                                                        `natural_from_base_2`
lse [tokens, heads]         [heads, tokens] (flash-attention, vLLM)                     `heads_first_from_tokens_first`,
                                                                                        `tokens_first_from_heads_first`
lse -inf where no key       +inf (flash-attention 2, FlashMLA)                          `plus_infinity_from_empty`,
                                                                                        `empty_from_plus_infinity`
NumPy array                 torch, JAX, CuPy, Numba                                     `numpy_from_any`,
                                                                                        `any_from_numpy`
==========================  ==========================================================  ================================

No library is imported here: an array of one comes with it.
"""

from __future__ import annotations

from pagedref.layouts._arrays import any_from_numpy, numpy_from_any
from pagedref.layouts._caches import (
    channels_first_from_v,
    combined_from_kv,
    hnd_from_nhd,
    interleaved_from_kv,
    k_from_packed,
    kv_from_combined,
    kv_from_interleaved,
    nhd_from_hnd,
    packed_from_k,
    v_from_channels_first,
)
from pagedref.layouts._latents import latent_pages_from_parts, parts_from_latent_pages
from pagedref.layouts._results import (
    base_2_from_natural,
    empty_from_plus_infinity,
    heads_first_from_tokens_first,
    natural_from_base_2,
    plus_infinity_from_empty,
    tokens_first_from_heads_first,
)
from pagedref.layouts._tables import (
    RaggedJax,
    csr_from_padded_table,
    csr_from_ragged_jax,
    kernel_pages_from_pages,
    padded_table_from_csr,
    pages_from_kernel_pages,
    ragged_jax_from_csr,
)
from pagedref.layouts._windows import (
    window_from_window_left,
    window_from_window_size,
    window_left_from_window,
    window_size_from_window,
)

__all__ = [
    "RaggedJax",
    "any_from_numpy",
    "base_2_from_natural",
    "channels_first_from_v",
    "combined_from_kv",
    "csr_from_padded_table",
    "csr_from_ragged_jax",
    "empty_from_plus_infinity",
    "heads_first_from_tokens_first",
    "hnd_from_nhd",
    "interleaved_from_kv",
    "k_from_packed",
    "kernel_pages_from_pages",
    "kv_from_combined",
    "kv_from_interleaved",
    "latent_pages_from_parts",
    "natural_from_base_2",
    "nhd_from_hnd",
    "numpy_from_any",
    "packed_from_k",
    "padded_table_from_csr",
    "pages_from_kernel_pages",
    "parts_from_latent_pages",
    "plus_infinity_from_empty",
    "ragged_jax_from_csr",
    "tokens_first_from_heads_first",
    "v_from_channels_first",
    "window_from_window_left",
    "window_from_window_size",
    "window_left_from_window",
    "window_size_from_window",
]
