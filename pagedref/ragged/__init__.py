"""A batch of sequences of different lengths, in three forms, and the ways between them (S19-S22).

========================  =========================================================================================
form                      arrays
========================  =========================================================================================
`CSR`                     ``kv_indptr`` int32 (num_seqs + 1), ``kv_indices`` int32 (num_pages), ``kv_last_page_len``
                          int32 (num_seqs): the pages of sequence i are ``kv_indices[kv_indptr[i]:kv_indptr[i + 1]]``
block_table + seq_lens    ``block_table`` int32 (num_seqs, max_pages), padded with -1, and ``seq_lens`` (num_seqs)
slot_mapping              int64 (tokens): the slot of every token, sequence after sequence, with the ``indptr`` of the
                          tokens beside it
========================  =========================================================================================

A frame of -1 inside a row is a hole, an unmapped page (S21). Everything here is vectorised over the sequences, lives on
the host, and modifies none of its arguments.
"""

from __future__ import annotations

from pagedref.ragged._integers import concat_ranges, indptr_from_lens, int_array, rows_from_indptr
from pagedref.ragged._slots import csr_from_slot_mapping, slot_mapping_from_block_table, slot_mapping_from_csr
from pagedref.ragged._tables import CSR, block_table_from_csr, csr_from_block_table, seq_lens

__all__ = [
    "CSR",
    "block_table_from_csr",
    "concat_ranges",
    "csr_from_block_table",
    "csr_from_slot_mapping",
    "indptr_from_lens",
    "int_array",
    "rows_from_indptr",
    "seq_lens",
    "slot_mapping_from_block_table",
    "slot_mapping_from_csr",
]
