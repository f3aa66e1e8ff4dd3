"""Cases of addresses, lengths and slots: P01, P02, P13, P15, P36."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pagedref.attention.dense import dense_attention
from pagedref.cache_spec import CacheSpec
from pagedref.conformance.agreement import assert_bound, assert_exact
from pagedref.conformance.cache_checks import slots_are_64_bits_wide
from pagedref.conformance.fault_cases._tools import NotHere, copies, paged, refuses, same, sparse_bytes, tool
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache

__all__ = ["CASES"]


def p01(backend: Any) -> None:
    """Addresses whose 32-bit product turns negative: page 65,536 of an ordinary pool reads its own data (S19)."""
    page_size, row = 16, 2 * 8 * 128  # K beside V, 8 kv heads of 128
    for frame in (65_535, 65_536, 1 << 20):
        exact = [frame * page_size * row + offset * row for offset in range(page_size)]
        for kind in (np.int32(frame), np.array([frame], np.int32), frame):
            elements = tool(backend, "element_of")(kind, np.arange(page_size, dtype=np.int32), page_size * row, row)
            same(np.ravel(elements).tolist(), exact, f"elements of frame {frame}")
    slots = tool(backend, "slot_of")(np.array([7, 134_217_728], np.int32), np.int32(3), np.int32(16))
    same(slots.tolist(), [115, 2_147_483_651], "slots of an int32 table")
    slots_are_64_bits_wide(backend, "float32")
    if not copies(backend):  # a GPU would have to hold all of it
        _marked_frame_is_read(backend, num_frames=65_537, frame_bytes=page_size * row, page_size=page_size)


def _marked_frame_is_read(backend: Any, num_frames: int, frame_bytes: int, page_size: int) -> None:
    """One marked frame at the end of a pool of one-byte numbers, most of which take no memory."""
    memory = sparse_bytes(num_frames * frame_bytes).reshape(num_frames, frame_bytes)
    half = frame_bytes // 2
    k_cache, v_cache = (
        memory[:, at : at + page_size * 4].reshape(num_frames, page_size, 1, 4) for at in (0, half)
    )
    frame = num_frames - 1
    slots = np.array([frame * page_size + offset for offset in range(3)], np.int64)
    rows = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    one = {"k_scale": 1.0, "v_scale": 1.0}
    backend.append_kv(rows, 2 * rows, k_cache, v_cache, slots, **one)
    assert_exact(memory[frame, half : half + 12].astype(np.float32), 2 * rows.ravel(), f"bytes of frame {frame}")
    pages = np.array([0, 1], np.int32), np.array([frame], np.int32), np.array([3], np.int32)
    keys, values = backend.gather_kv(k_cache, v_cache, *pages, **one)
    assert_exact(np.asarray(keys), rows, f"keys of frame {frame}")
    assert_exact(np.asarray(values), 2 * rows, f"values of frame {frame}")
    q = np.full((1, 1, 4), 9.0, np.float32)
    expected = dense_attention(q, rows, 2 * rows, with_bound=True)
    state = backend.paged_decode(q, k_cache, v_cache, *pages, **one)
    assert_bound(np.asarray(state.out), expected.out, expected.out_bound, f"decode of frame {frame}")


def p02(backend: Any) -> None:
    """A page stride larger than a page: offsets past 2**31 signed and 2**32 unsigned, in a strided view (S23)."""
    element_of = tool(backend, "element_of")
    for frame, stride, exact in (
        (2065, 1_039_680, 2_146_939_200),
        (2066, 1_039_680, 2_147_978_880),
        (1 << 20, 16_384, 1 << 34),
    ):
        for kind in (np.int32(frame), np.uint32(frame), np.array(frame, np.int32)):
            same([int(element_of(kind, np.int32(0), np.int32(stride), np.int32(64)))], [exact], f"frame {frame}")
    if copies(backend):
        raise NotHere("a pool of 2**34 bytes is for backends that read it where it lies")
    _marked_frame_is_read(backend, num_frames=2_067, frame_bytes=1_039_680, page_size=4)
    _marked_frame_is_read(backend, num_frames=(1 << 20) + 1, frame_bytes=16_384, page_size=4)


def p13(backend: Any) -> None:
    """Chunks of 4, 4 and 2 of a prompt of 10: the keys end with the chunk, what is not written is poison (S3, L4)."""
    rows = np.random.default_rng(13).standard_normal((10, 2, 4)).astype(np.float32)
    whole = dense_attention(rows, rows, rows, with_bound=True)
    for page_size, chunks in ((4, [4, 4, 2]), (3, [4, 4, 2]), (1, [1] * 10), (16, [9, 1]), (4, [10])):
        spec = CacheSpec(1, 2, 4, page_size=page_size)
        cache = PagedKVCache(spec, 12, backend=backend, poison=True)
        out = tool(backend, "chunked_prefill")(cache, rows, chunks)
        assert_bound(out, whole.out, whole.out_bound, f"prompt in chunks of {chunks}, page size {page_size}")


def p15(backend: Any) -> None:
    """The last page holds ``(n - 1) % page_size + 1`` tokens; a longer one is refused (S20)."""
    last, count = tool(backend, "last_page_len"), tool(backend, "num_pages")
    known = ((100, 16, 7, 4), (32, 16, 2, 16), (0, 16, 0, 0), (1, 16, 1, 1), (5, 1, 5, 1))
    for tokens, page_size, pages, rest in known:
        got = [int(count(tokens, page_size)), int(last(tokens, page_size))]
        same(got, [pages, rest], f"pages and last page of {tokens} tokens in pages of {page_size}")
    for page_size in (1, 2, 7, 16):
        lengths = np.arange(1, 60)
        total = (count(lengths, page_size) - 1) * page_size + last(lengths, page_size)
        same(total.tolist(), lengths.tolist(), f"tokens in pages of {page_size}")
    pages5 = paged(np.zeros(5), np.zeros(5))
    q = np.zeros((1, 1, 1), np.float32)
    for wrong in (5, 0, -1, 100):
        args = (*pages5[:4], np.array([wrong], np.int32))
        words = ("kv_last_page_len", f"got {wrong}", "S20")
        refuses(partial(backend.paged_decode, q, *args), ContractError, words, f"last page of {wrong}")
        refuses(partial(backend.gather_kv, *args), ContractError, words, f"gather, last page of {wrong}")


def p36(backend: Any) -> None:
    """Slot -1 writes nothing, anywhere: every other byte of the pool stays as it was (S22)."""
    rng = np.random.default_rng(36)
    for page_size, slots in ((4, [-1]), (4, [-1, 5, -1]), (1, [2, -1]), (3, [-1, -1, 0, 8]), (4, [3, -1, 15])):
        pools = [rng.standard_normal((16 // page_size, page_size, 1, 2)).astype(np.float32) for _ in range(2)]
        rows = rng.standard_normal((len(slots), 1, 2)).astype(np.float32)
        expected = [pool.copy() for pool in pools]
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                for pool in expected:
                    pool[slot // page_size, slot % page_size] = row
        backend.append_kv(rows, rows, *pools, np.array(slots, np.int32))
        for name, pool, want in zip(("keys", "values"), pools, expected, strict=True):
            assert_exact(pool, want, f"{name} after slots {slots}, page size {page_size}")
    row, pools = np.ones((1, 1, 2), np.float32), [np.zeros((2, 4, 1, 2), np.float32) for _ in range(2)]
    words = ("slot_mapping", "-2", "S22")
    refuses(partial(backend.append_kv, row, row, *pools, np.array([-2])), ContractError, words, "a slot of -2")


CASES = {"P01": p01, "P02": p02, "P13": p13, "P15": p15, "P36": p36}
"""The cases by number; each takes a backend."""
