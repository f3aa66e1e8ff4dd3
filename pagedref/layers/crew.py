"""Two hands for one model: a few threads that share the columns of a matrix product.

The matrix library's own threads are held back meanwhile: for products of a few rows they cost more than they bring,
and two sets of threads on the same processors bring nothing. The results never depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any

from pagedref.attention.parallel import num_threads

__all__ = ["Crew", "hired"]

Work = Callable[[int, int], None]
_SMALL = 6_000_000  # multiplications: about 0.1 ms, several times what handing over costs
_lock = threading.Lock()


class Crew:
    """Run the parts of one piece of work side by side.

    Parameters
    ----------
    size : int
        Parts that run at once, this thread's own included, >= 1.

    Examples
    --------
    >>> done = []
    >>> Crew(1).run(lambda part, parts: done.append((part, parts)), cost=10**9)
    >>> done
    [(0, 1)]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._queues: list[SimpleQueue[Any]] = []
        for part in range(1, size):
            queue: SimpleQueue[Any] = SimpleQueue()
            self._queues.append(queue)
            threading.Thread(target=_serve, args=(queue, part, size), name=f"pagedref-{part}", daemon=True).start()

    def run(self, work: Work, *, cost: int) -> None:
        """Call ``work(part, parts)`` for every part and wait for all of them.

        Parameters
        ----------
        work : callable
            Parts share nothing that is written.
        cost : int
            Multiplications in all; work that is too small to share runs as one part.

        Raises
        ------
        Exception
            What a part raised, after all parts have ended.
        """
        if self.size == 1 or cost < _SMALL:
            work(0, 1)
            return
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        for queue in self._queues:
            queue.put((work, answers))
        missing = len(self._queues)
        failed: BaseException | None = None
        try:
            work(0, self.size)
        finally:  # nobody may still write when this returns, interrupted or not
            while missing:
                failed = answers.get() or failed
                missing -= 1
        if failed is not None:
            raise failed


def _serve(queue: SimpleQueue[Any], part: int, parts: int) -> None:
    """Do this thread's part of whatever comes."""
    while True:
        work, answers = queue.get()
        failure: BaseException | None = None
        try:
            work(part, parts)
        except BaseException as error:  # handed to the thread that waits
            failure = error
        answers.put(failure)
        del work, answers, failure


@cache
def _crew(size: int) -> Crew:
    """Return the threads, started once."""
    return Crew(size)


@cache
def _controller() -> Any:
    """Return the controller of the matrix library's threads, or None."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()


_ALONE = Crew(1)
if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_crew.cache_clear)


@contextmanager
def hired() -> Iterator[Crew]:
    """Yield a crew and hold the matrix library to one thread meanwhile.

    Yields
    ------
    Crew
        Of one, if `threadpoolctl` is missing, there is one processor, or another thread has the crew.
    """
    size = num_threads()
    if size == 1 or not _lock.acquire(blocking=False):
        yield _ALONE
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield _crew(size)
    finally:
        _lock.release()
