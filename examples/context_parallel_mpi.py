"""Context parallel: the pages of one sequence lie on several MPI ranks, and each rank attends to its own.

Frame f belongs to rank f % size. A rank writes and reads only the frames that belong to it; everything else in its pool
is NaN, so a read of another rank's page would show. What travels between ranks is one state for each query and head,
(out, lse), whatever the length of the sequence; states merge to the answer that one rank would have given (S10, L5).

Run it as ``mpiexec -n 2 python examples/context_parallel_mpi.py`` (needs mpi4py and an MPI library), or without MPI: it
then goes through two ranks one after the other in this process.
"""

from __future__ import annotations

import numpy as np

import pagedref
from pagedref import CacheSpec, PagedKVCache, attention, dense_attention
from pagedref.addressing import frame_of_slot, kv_len, last_page_len
from pagedref.conformance import assert_state, bound_fraction
from pagedref.models.tiny_text import decode, encode, facts, story

try:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
except (ImportError, RuntimeError):  # not installed, or no MPI library to load
    world = None
if world is not None and world.size > 1:
    size, ranks, how = world.size, [world.rank], f"{world.size} MPI ranks"
else:
    size, ranks, how = 2, [0, 1], "2 ranks one after the other in this process, without MPI"
talks = 0 in ranks


class ContextParallel:
    """The backend ``numpy``, spread over ranks; PagedKVCache and the models use it like any other."""

    merge_states, gather_kv, copy_frames = (
        staticmethod(operation) for operation in (attention.merge_states, attention.gather_kv, attention.copy_frames)
    )

    @staticmethod
    def append_kv(k, v, k_cache, v_cache, slot_mapping):
        """Write the tokens whose frames belong here."""
        mine = np.isin(frame_of_slot(slot_mapping, k_cache.shape[1]) % size, ranks)
        attention.append_kv(k, v, k_cache, v_cache, np.where(mine, slot_mapping, -1))  # -1 writes nothing (S22)

    def paged_decode(self, q, *pages, **keywords):
        """Attend with one row for each sequence."""
        return self.paged_prefill(q, np.arange(len(q) + 1), *pages, **keywords)

    @staticmethod
    def paged_prefill(q, qo_indptr, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, *, sm_scale=None):
        """Attend to the pages that lie here, exchange states, merge."""
        page_size, states = k_cache.shape[1], []
        lens = kv_len(np.diff(kv_indptr), kv_last_page_len, page_size)
        for rank in ranks:
            frames, masks, keys = [], [], []
            for sequence, length in enumerate(lens):
                table = kv_indices[kv_indptr[sequence] : kv_indptr[sequence + 1]]
                pages = np.flatnonzero(table % size == rank)  # of this sequence, those that lie here
                held = (pages[:, None] * page_size + np.arange(page_size)).ravel()
                held = held[held < length]  # positions of the keys that lie here
                rows = np.arange(qo_indptr[sequence] - qo_indptr[sequence + 1], 0) + length  # positions of the queries
                frames.append(table[pages])
                keys.append(len(held))
                masks.append(held <= rows[:, None])
            indptr = np.concatenate([[0], np.cumsum([len(part) for part in frames])])
            csr = indptr, np.concatenate(frames), last_page_len(np.array(keys), page_size)
            states.append(attention.paged_prefill(q, qo_indptr, k_cache, v_cache, *csr, mask=masks, sm_scale=sm_scale))
        if world is not None and world.size > 1:
            states = world.allgather(states[0])
        return attention.merge_states(np.stack([each.out for each in states]), np.stack([each.lse for each in states]))


# One sequence of 61 tokens in 16 pages: a prompt of 60, then one token more, against the oracle of the whole.
rng = np.random.default_rng(0)
k, v = rng.standard_normal((2, 61, 2, 16), dtype=np.float32)
q = rng.standard_normal((61, 6, 16), dtype=np.float32)
cache = PagedKVCache(CacheSpec(1, 2, 16, page_size=4), 16, backend=ContextParallel(), poison=True)
sequence = cache.add()
worst = 0.0
for begin, end in ((0, 60), (60, 61)):
    step = cache.begin([sequence], [end - begin])
    cache.append(step, k[begin:end], v[begin:end])
    state = cache.attend(step, q[begin:end])
    cache.commit(step)
    oracle = dense_attention(q[begin:end], k[:end], v[:end], with_bound=True)
    assert_state(state, oracle, f"tokens {begin}..{end - 1} over {size} ranks")
    worst = max(worst, bound_fraction(state.out, oracle.out, oracle.out_bound))
here = [int(np.isfinite(cache.arrays()[0][rank::size]).all(axis=(2, 3)).sum()) for rank in ranks]
cache.audit()

# A model whose every layer attends over all ranks writes the same text as on one: four facts in a story, asked for.
told = facts(4, seed=3)
tale = story(500, told, seed=3).text
prompts = [encode(tale) + encode(fact.question, bos=False) for fact in told]
models = [pagedref.load_model("tiny", backend=backend) for backend in ("numpy", ContextParallel())]
alone, spread = ([decode(each.token_ids) for each in model.generate(prompts, max_tokens=8)] for model in models)
total = sum(here) if len(ranks) > 1 else world.allreduce(here[0])
if talks:
    print(f"{how}: error at most {worst:.3f} of the bound; rank 0 holds {here[0]} of {total} tokens")
    print(*(f"  {fact.question}  ->  {answer}" for fact, answer in zip(told, spread, strict=True)), sep="\n")

assert total == 61 and 0 < here[0] < total
assert spread == alone
assert all(" ".join(fact.value) in answer for fact, answer in zip(told, spread, strict=True))
