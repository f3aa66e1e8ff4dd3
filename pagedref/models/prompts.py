"""What a caller may ask of a run: from whatever is named as prompts to checked requests, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat
from pagedref.models.draft import Speculation
from pagedref.models.fields import refuse
from pagedref.models.generate import TOKENS_PER_STEP, Request

__all__ = ["Prompts", "RunOptions", "check_chat", "checked_ids", "make_requests", "run_options", "separate"]

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
"""A prompt or several: text, or token ids."""


class RunOptions(TypedDict, total=False):
    """Keywords of :meth:`pagedref.models.model.Model.stream`, as in ``Model.generate``."""

    page_size: int
    num_frames: int | None
    frame_order: Any
    kv_format: KVFormat | str | None
    chat: bool | None
    ignore_eos: bool
    tokens_per_step: int
    speculate: Speculation | None


def run_options(
    *,
    page_size: int = 16,
    num_frames: int | None = None,
    frame_order: Any = None,
    kv_format: KVFormat | str | None = None,
    chat: bool | None = None,
    ignore_eos: bool = False,
    tokens_per_step: int = TOKENS_PER_STEP,
    speculate: Speculation | None = None,
) -> RunOptions:
    """Return all keywords of a run, those that were not given by their defaults.

    Parameters
    ----------
    page_size, num_frames, frame_order, kv_format, chat, ignore_eos, tokens_per_step, speculate
        As in ``Model.generate``.

    Returns
    -------
    RunOptions

    Raises
    ------
    ContractError
        A truth value is none.
    """
    check_chat("generate", chat)
    if not isinstance(ignore_eos, bool):
        refuse("generate", "ignore_eos", "is no truth value", ignore_eos, "True or False")
    options: RunOptions = {"page_size": page_size, "num_frames": num_frames, "frame_order": frame_order}
    options |= {"kv_format": kv_format, "chat": chat, "ignore_eos": ignore_eos, "tokens_per_step": tokens_per_step}
    options["speculate"] = speculate
    return options


def check_chat(function: str, chat: Any) -> None:
    """Refuse what is neither True, False nor None.

    Parameters
    ----------
    function : str
        For the text of an error.
    chat : bool, optional
        Whether texts are put into a chat template; by default if there is one.

    Raises
    ------
    ContractError
        It is something else.
    """
    if not isinstance(chat, bool | None):
        refuse(function, "chat", "is no truth value", chat, "True, False or None")


def separate(prompts: Prompts) -> list[Any]:
    """Return prompts as a list, also where it is one text or one list of token ids.

    Parameters
    ----------
    prompts : str, list of str, list of int, or list of lists of int
        One or several.

    Returns
    -------
    list
        Each a text or token ids.

    Examples
    --------
    >>> separate("Hi"), separate([1, 2]), separate([[1], [2, 3]])
    (['Hi'], [[1, 2]], [[1], [2, 3]])
    """
    if isinstance(prompts, str):
        return [prompts]
    try:
        items = list(prompts)
    except TypeError:
        refuse("generate", "prompts", "are neither text nor tokens", prompts, "str, token ids, or a list of either")
    if items and all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
        return [items]
    return items


def checked_ids(function: str, argument: str, token_ids: Any, vocab_size: int, max_model_len: int) -> list[int]:
    """Return token ids as a list of numbers, all of them tokens and not too many.

    Parameters
    ----------
    function, argument : str
        For the text of an error.
    token_ids : sequence or array of int
        One text.
    vocab_size, max_model_len : int
        Limits of the model.

    Returns
    -------
    list of int

    Raises
    ------
    ContractError
        Not a flat sequence of integers, a token out of range, or more tokens than the model was made for.
    """
    try:
        ids = np.asarray(token_ids)
    except ValueError:
        ids = np.empty(0, object)
    if ids.size == 0 and ids.ndim == 1 and ids.dtype != object:
        ids = ids.astype(np.int64)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        refuse(function, argument, "is no flat list of token ids", token_ids, f"integers in 0..{vocab_size - 1}")
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        refuse(function, argument, "holds what is no token", wrong, f"0..{vocab_size - 1}")
    if ids.size > max_model_len:
        refuse(function, argument, "is too long", int(ids.size), f"at most {max_model_len} tokens (max_model_len)")
    return [int(token) for token in ids]


def make_requests(
    prompts: Prompts, max_tokens: int, encode: Callable[[str], list[int]], vocab_size: int, max_model_len: int
) -> list[Request]:
    """Encode and check all prompts.

    Parameters
    ----------
    prompts : str, list of str, list of int, or list of lists of int
        One or several.
    max_tokens : int
        New tokens at most, >= 1.
    encode : callable
        From text to token ids.
    vocab_size, max_model_len : int
        Limits of the model.

    Returns
    -------
    list of Request
        `max_tokens` is cut where the model's maximum length would be passed; the last new token is never stored, so a
        prompt of that length may still have one (P65).

    Raises
    ------
    ContractError
        Names the first prompt that is wrong.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int | np.integer) or max_tokens < 1:
        raise ContractError(f"generate: max_tokens is no positive integer, got {max_tokens!r}, need >= 1")
    requests = []
    for index, prompt in enumerate(separate(prompts)):
        tokens = encode(prompt) if isinstance(prompt, str) else prompt
        ids = checked_ids("generate", f"prompt {index}", tokens, vocab_size, max_model_len)
        if not ids:
            refuse("generate", f"prompt {index}", "is empty", prompt, "one token or more")
        requests.append(Request(tuple(ids), min(int(max_tokens), max_model_len - len(ids) + 1)))
    return requests
