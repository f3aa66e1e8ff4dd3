"""Two or more threads over independent pieces of work, with the matrix library held to one thread.

Results never depend on it: each piece is computed by the same operations wherever it runs. It is used only where
`threadpoolctl` is installed (without it, threads of the matrix library would fight ours) and the work is large.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

__all__ = ["for_each", "num_threads"]

_LARGE = 1 << 21  # bytes in a piece from which on a second thread gains more than taking turns costs
_MOST = 64
_lock = Lock()


def num_threads() -> int:
    """Return the number of threads that large attention uses.

    Returns
    -------
    int
        The environment variable ``PAGEDREF_THREADS`` if it is a positive number, else the processors of this process;
        1 without `threadpoolctl`.
    """
    if _controller() is None:
        return 1
    wanted = os.environ.get("PAGEDREF_THREADS", "")
    if wanted.isdecimal() and wanted.isascii() and wanted.strip("0"):
        return min(int(wanted), _MOST) if len(wanted) < 9 else _MOST
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


@cache
def _controller() -> Any:
    """Return the controller of the matrix library's threads, or None."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """Return the threads, started once."""
    return ThreadPoolExecutor(size, thread_name_prefix="pagedref")


def _forget_threads() -> None:
    """Begin anew in a forked process: the threads of the parent are not there."""
    global _lock
    _lock = Lock()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def for_each(work: Callable[[int], None], sizes: Sequence[int]) -> None:
    """Call ``work(i)`` for every piece, in parallel where it pays.

    Parameters
    ----------
    work : callable
        Takes the index of a piece; pieces share nothing that is written.
    sizes : sequence of int
        Bytes that each piece reads; decides whether threads pay and which piece starts first.
    """
    if len(sizes) > 1 and sum(sizes) >= len(sizes) * _LARGE:
        threads = num_threads()
        if threads > 1 and _lock.acquire(blocking=False):
            try:
                order = sorted(range(len(sizes)), key=lambda piece: -sizes[piece])
                with _controller().limit(limits=1, user_api="blas"):
                    list(_pool(threads).map(work, order))
            finally:
                _lock.release()
            return
    for piece in range(len(sizes)):
        work(piece)
