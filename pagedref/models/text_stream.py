"""Text of a running request: characters are never split, and no part of a stop string is ever shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Turn tokens into text that may be shown at once, until a stop string is complete.

    What comes out, joined, is the text of the tokens up to the stop string. Two things are held back: the bytes of a
    character that is not complete, and an end that may still become a stop string.

    Parameters
    ----------
    tokenizer : Tokenizer, optional
        Without it, the text is empty.
    stop : sequence of str
        Stop strings, none of them empty. The one that is complete first counts; of several that end together, the
        longest. So the result does not depend on how the text is cut into tokens.
    include_stop : bool
        Whether the stop string itself is given out.

    Examples
    --------
    >>> class Letters:
    ...     def decode(self, ids):
    ...         return "".join(map(chr, ids))
    ...     def stream(self):
    ...         from pagedref.models.tokenizer import StreamDecoder
    ...         return StreamDecoder(self)
    >>> stream = TextStream(Letters(), stop=["END"])
    >>> [stream.push(ord(letter)) for letter in "an EEND."], stream.stopped
    (['a', 'n', ' ', '', 'E', '', '', ''], 'END')
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self._decoder = None if tokenizer is None else tokenizer.stream()
        self._stop, self._include_stop = tuple(stop), include_stop
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was found; nothing is given out after it."""

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is now certain, often one word, sometimes nothing."""
        if self._decoder is None or self.stopped is not None:
            return ""
        return self._filter(self._decoder.push(token_id))

    def finish(self) -> str:
        """Return what is still held, once no more token comes."""
        if self._decoder is None or self.stopped is not None:
            return ""
        text = self._filter(self._decoder.finish()) + self._held
        self._held = ""
        return text

    def _filter(self, new: str) -> str:
        """Return what of the held and the new text can be shown."""
        if not self._stop:
            return new
        text, seen = self._held + new, len(self._held)
        ends = [(end, stop) for stop in self._stop if (end := _first_end(text, stop, seen)) >= 0]
        if ends:
            end = min(end for end, _ in ends)
            self.stopped = max((stop for at, stop in ends if at == end), key=len)
            self._held = ""
            return text[: end if self._include_stop else end - len(self.stopped)]
        hold = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def _first_end(text: str, stop: str, seen: int) -> int:
    """Return where the first occurrence of `stop` that ends after `seen` ends, or -1."""
    at = text.find(stop, max(0, seen + 1 - len(stop)))
    return at if at < 0 else at + len(stop)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
