"""The memory manager by itself: ``python -m benchmarks.memory``. Medians; ours beside the figures of public managers.

The figures of others are those of one loaded two-core machine (vLLM 0.33 core files, nano-vLLM; page 16, one group,
events and metrics off); they are printed to compare orders of magnitude, not to the percent.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable

import numpy as np

from pagedref.memory import FrameAllocator, KVManager

PAGE = 16
STATED = {  # what: (target, vLLM, nano-vLLM)
    "decode step of 256: slots, block_table, us": ("25", "1261", "77"),
    "  with CSR, us": ("75", "", ""),
    "  tokens committed and pages published, us": ("", "1425", "192"),
    "admit 2048 tokens, cold, us": ("3 x floor", "399", "274"),
    "admit 2048 tokens, cold, pool full of cached pages, us": ("", "", ""),
    "admit 2048 tokens, warm (2032 hit), us": ("1.5 x floor", "362", "66509"),
    "pool of 1e6 frames, built, ms": ("50", "1639", "1057"),
    "1e5 frames taken, ms": ("2", "27.9", "21.0"),
    "1e5 frames given back, ms": ("2", "12.3", "14.6"),
    "bytes a frame, fresh": ("32", "140", "257"),
    "bytes a frame, all cached": ("128", "263", "1022"),
}


def median(call: Callable[[], float], rounds: int) -> float:
    """Return the median of what calls return, in seconds."""
    return float(np.median([call() for _ in range(rounds)]))


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def decode(num_frames: int = 40_000, num_seqs: int = 256) -> dict[str, float]:
    rng = np.random.default_rng(0)
    plain, csr, named = [], [], []
    for tokens in (False, True):
        manager = KVManager(num_frames, PAGE)
        ids = [manager.add() for _ in range(num_seqs)]
        lens = rng.integers(256, 1024, num_seqs)
        manager.reserve(ids, lens)
        manager.commit(ids, lens, rng.integers(0, 50_000, lens.sum()) if tokens else None)
        batch = manager.batch(ids)
        batch.step()
        batch.commit(np.zeros(num_seqs, np.int64) if tokens else None)
        for _ in range(400):
            new = rng.integers(0, 50_000, num_seqs) if tokens else None
            start = time.perf_counter()
            batch.step()
            middle = time.perf_counter()
            batch.csr()
            end = time.perf_counter()
            batch.commit(new)
            last = time.perf_counter()
            if tokens:
                named.append(middle - start + last - end)
            else:
                plain.append(middle - start)
                csr.append(end - start)
        manager.audit()
    names = list(STATED)
    return dict(zip(names, (1e6 * float(np.median(numbers)) for numbers in (plain, csr, named))))


def admission() -> tuple[float, dict[str, float]]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, 2048).astype(np.int32)
    pages = [tokens[at : at + PAGE].tobytes() for at in range(0, 2048, PAGE)]

    def floor() -> None:
        for page in pages:
            hashlib.sha256(page).digest()

    manager = KVManager(40_000, PAGE)

    def cold() -> float:
        fresh = rng.integers(0, 50_000, 2048).astype(np.int32)
        start = time.perf_counter()
        seq_id = manager.admit(fresh).seq_id
        manager.commit(seq_id, 2048)
        end = time.perf_counter()
        manager.free(seq_id)
        return end - start

    def warm() -> float:
        start = time.perf_counter()
        admitted = manager.admit(tokens)
        end = time.perf_counter()
        assert admitted.hit.num_tokens == 2032
        manager.free(admitted.seq_id)
        return end - start

    first, full = median(cold, 250), (median(cold, 100), median(cold, 200))[1]
    manager = KVManager(40_000, PAGE)  # `warm` sees this one, which is not full
    seq_id = manager.admit(tokens).seq_id
    manager.commit(seq_id, 2048)
    manager.free(seq_id)
    names = list(STATED)[3:6]
    return 1e6 * median(lambda: timed(floor), 300), dict(zip(names, (1e6 * first, 1e6 * full, 1e6 * median(warm, 300))))


def keys() -> float:
    """Return what the keys of a prompt cost, its messages being there already, in us."""
    parts = [bytes(4) + np.arange(PAGE, dtype=np.int32).tobytes() + bytes(4) + b"P"] * 128

    def chain() -> None:
        key = bytes(32)
        for part in parts:
            key = hashlib.sha256(key + part).digest()

    return 1e6 * median(lambda: timed(chain), 300)


def pool() -> dict[str, float]:
    built = median(lambda: timed(lambda: FrameAllocator(1_000_000)), 9)
    frames = FrameAllocator(1_000_000)
    taken: list[np.ndarray] = []

    def take() -> float:
        return timed(lambda: taken.append(frames.alloc(100_000)))

    def give() -> float:
        last = taken.pop()[::-1]
        return timed(lambda: frames.free(last))

    times = [(take(), give()) for _ in range(15)]
    alloc, free = (1e3 * float(np.median(column)) for column in zip(*times))
    manager = KVManager(1_000_000, PAGE)
    bare = manager._frames.nbytes + manager._frames.policy._queue.nbytes  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    for _ in range(16):
        seq_id = manager.admit(rng.integers(0, 50_000, 1_000_000)).seq_id
        manager.commit(seq_id, 1_000_000)
        manager.free(seq_id)
    assert manager.stats().cached == 1_000_000
    cached = manager._frames.nbytes + manager._frames.policy._queue.nbytes  # type: ignore[attr-defined]
    cached += manager._publisher.index.nbytes  # type: ignore[union-attr]
    values = (1e3 * built, alloc, free, bare / 1e6, cached / 1e6)
    return dict(zip(list(STATED)[6:], values))


def decades() -> list[str]:
    """Show that the cost of a step grows neither with the pool nor with the sequences that are not in it."""
    lines = []
    for num_frames in (10_000, 100_000, 1_000_000):
        step = decode(num_frames, 64)
        lines.append(f"decode step of 64, pool of {num_frames:>9,} frames: {next(iter(step.values())):6.1f} us")
    for others in (100, 1_000, 10_000):
        manager = KVManager(100_000, PAGE)
        ids = [manager.add() for _ in range(others + 64)]
        manager.reserve(ids, 20)
        manager.commit(ids, 20)
        batch = manager.batch(ids[:64])
        batch.step()
        cost = 1e6 * median(lambda batch=batch: timed(batch.step), 200)  # type: ignore[misc]
        lines.append(f"decode step of 64, {others:>6,} sequences beside them: {cost:6.1f} us")
    return lines


def main() -> None:
    gc.disable()
    floor, admitted = admission()
    rows = {**decode(), **admitted, **pool()}
    print(f"floor: SHA-256 of 128 pages, nothing else: {floor:.0f} us")
    print(f"their keys (S28), one after the other, which a manager does not need: {keys():.0f} us\n")
    print(f"{'what':<56}{'ours':>10}{'at most':>22}{'vLLM':>8}{'nano':>8}")
    for name, (target, vllm, nano) in STATED.items():
        ratio = f" ({rows[name] / floor:.2f} x)" if "floor" in target else ""
        print(f"{name:<56}{rows[name]:>10.1f}{target + ratio:>22}{vllm:>8}{nano:>8}")
    print("\n" + "\n".join(decades()))


if __name__ == "__main__":
    main()
