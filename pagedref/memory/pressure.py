"""What to do when frames run short: who is refused, who waits, who is preempted (S34). Pure decisions.

A request is refused at once if it can never fit. It is admitted when what it needs **now** fits above a watermark of
frames that are left for the growth of those that run; growth itself may use the watermark. When growth fails, a victim
gives its frames back: the newest of the lowest class, never the oldest of the highest, so something always finishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagedref.addressing import num_pages
from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number

__all__ = ["Claim", "Need", "choose_victims", "largest_need", "refuse_if_never"]


class Need(NamedTuple):
    """What an admission takes now.

    Attributes
    ----------
    new : int
        Fresh frames.
    revived : int
        Hit pages that are only cached: they are available no longer once this request holds them.
    available : int
        Frames that are free or cached.
    watermark : int
        Frames that are to be left.
    """

    new: int
    revived: int
    available: int
    watermark: int = 0

    @property
    def needed(self) -> int:
        """Frames that must be available, the watermark included."""
        return self.new + self.revived + self.watermark

    @property
    def fits(self) -> bool:
        """Whether the request can be admitted now."""
        return self.needed <= self.available


class Claim(NamedTuple):
    """A running sequence, as the choice of a victim sees it.

    Attributes
    ----------
    seq_id : int
        The sequence.
    priority : int
        Its class; high is kept longer.
    arrival : float
        When its request came; earlier is older.
    frames : int
        Frames that become available when it goes.
    pinned : bool
        Whether it must stay.
    """

    seq_id: int
    priority: int
    arrival: float
    frames: int
    pinned: bool = False


def largest_need(prompt_len: int, max_tokens: int, page_size: int) -> int:
    """Return the most pages that a request ever has: its last token is never stored (S34).

    Parameters
    ----------
    prompt_len, max_tokens : int
        Tokens of the prompt, and the most that are generated, >= 1.
    page_size : int
        Slots in a page.

    Returns
    -------
    int

    Examples
    --------
    >>> largest_need(16, 1, 4), largest_need(16, 2, 4)
    (4, 5)
    """
    whole_number("largest_need", "prompt_len", prompt_len)
    whole_number("largest_need", "max_tokens", max_tokens, low=1)
    whole_number("largest_need", "page_size", page_size, low=1)
    return int(num_pages(prompt_len + max_tokens - 1, page_size))


def refuse_if_never(prompt_len: int, max_tokens: int, page_size: int, num_frames: int, watermark: int = 0) -> None:
    """Refuse a request that no empty pool could serve (S34, P53).

    Parameters
    ----------
    prompt_len, max_tokens : int
        As in `largest_need`.
    page_size, num_frames, watermark : int
        The pool.

    Raises
    ------
    ContractError
        With the numbers.

    Examples
    --------
    >>> refuse_if_never(20, 1, page_size=4, num_frames=4)
    Traceback (most recent call last):
    pagedref.errors.ContractError: admit: request can never fit, got 5 pages (20 + 1 tokens), need at most 4 ...
    """
    need = largest_need(prompt_len, max_tokens, page_size)
    whole_number("admit", "num_frames", num_frames)
    whole_number("admit", "watermark", watermark)
    if need > num_frames - watermark:
        raise ContractError(
            f"admit: request can never fit, got {need} pages ({prompt_len} + {max_tokens} tokens), "
            f"need at most {num_frames - watermark} ({num_frames} - {watermark} frames)"
        )


def choose_victims(claims: Sequence[Claim], missing: int) -> list[int]:
    """Choose who is preempted, so that enough frames become available (S34).

    Parameters
    ----------
    claims : sequence of Claim
        Who runs.
    missing : int
        Frames that are wanted.

    Returns
    -------
    list of int
        Sequences in the order in which they go: the lowest class first, the newest of a class first. Fewer frames
        than `missing` when everybody who may go has gone; the oldest of the highest class never does.

    Raises
    ------
    ContractError
        A sequence has two claims.

    Examples
    --------
    >>> running = [Claim(7, 0, 1.0, 2), Claim(8, 0, 2.0, 2), Claim(9, 1, 3.0, 2)]
    >>> choose_victims(running, 1), choose_victims(running, 9)
    ([8], [8, 7])
    """
    if len({claim.seq_id for claim in claims}) < len(claims):
        ids = [claim.seq_id for claim in claims]
        raise ContractError(f"choose_victims: claims name a sequence twice, got {ids}, need each once")
    if not claims:
        return []
    safe = min(claims, key=lambda claim: (-claim.priority, claim.arrival))
    order = sorted(
        (claim for claim in claims if claim is not safe and not claim.pinned),
        key=lambda claim: (claim.priority, -claim.arrival),
    )
    chosen: list[int] = []
    for claim in order:
        if missing <= 0:
            break
        chosen.append(claim.seq_id)
        missing -= claim.frames
    return chosen
