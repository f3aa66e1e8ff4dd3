"""What the cases of faults are made of: small paged batches, what a row sees, functions beside the operations."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref import addressing
from pagedref.attention import mla
from pagedref.attention.quantize import quantize
from pagedref.conformance.agreement import NotRefused, OtherRefusal
from pagedref.kv_cache import PagedKVCache

__all__ = [
    "NotHere", "chunked_prefill", "copies", "paged", "pattern", "refuses", "same", "sparse_bytes", "tool", "value",
]  # fmt: skip

Array = npt.NDArray[Any]


class NotHere(Exception):
    """The machine or the backend lacks what a case needs; the text says what."""


def chunked_prefill(cache: PagedKVCache, rows: Array, chunks: list[int]) -> Array:
    """Run a prompt chunk by chunk: write the chunk, attend with its rows, go on.

    Parameters
    ----------
    cache : PagedKVCache
        One layer, without sequences.
    rows : array (tokens, num_kv_heads, head_dim)
        Queries, keys and values alike.
    chunks : list of int
        Tokens of each chunk.

    Returns
    -------
    array (tokens, num_kv_heads, head_dim)
        Outputs of all rows.
    """
    sequence, outputs, begin = cache.add(), [], 0
    for size in chunks:
        chunk = rows[begin : begin + size]
        step = cache.begin([sequence], [size])
        cache.append(step, chunk, chunk)
        outputs.append(np.asarray(cache.attend(step, chunk).out))
        cache.commit(step)
        begin += size
    cache.free(sequence)
    cache.audit()
    return np.concatenate(outputs)


_TOOLS: dict[str, Any] = {
    "alibi_slopes": reference.alibi_slopes,
    "chunked_prefill": chunked_prefill,
    "element_of": addressing.element_of,
    "last_page_len": addressing.last_page_len,
    "mla_decode": mla.mla_decode,
    "mla_prefill": mla.mla_prefill,
    "num_pages": addressing.num_pages,
    "quantize": quantize,
    "slot_of": addressing.slot_of,
}


def tool(backend: Any, name: str) -> Any:
    """Return a function of the specification: the backend's own, else that of the reference.

    Parameters
    ----------
    backend : module or object
        The backend.
    name : str
        Its name.

    Returns
    -------
    callable
    """
    return getattr(backend, name, _TOOLS[name])


def copies(backend: Any) -> bool:
    """Tell whether a backend copies its arrays to a GPU: too much to ask of a pool that is larger than memory.

    Parameters
    ----------
    backend : module or object
        The backend.

    Returns
    -------
    bool
        False where it reads arrays as they lie, as on the emulator.
    """
    device = getattr(backend, "device", None)
    return callable(device) and str(device()).startswith("gpu")


def paged(
    keys: Any, values: Any, *, page_size: int = 4, dtype: str = "float32", poison: float = float("nan")
) -> tuple[Array, Array, Array, Array, Array]:
    """Lay one sequence out in pages, frames in falling order, all other slots poisoned.

    Parameters
    ----------
    keys, values : array (kv_len, num_kv_heads, dim)
        What is live; a one-dimensional array is one head of one number.
    page_size : int
        Slots in a page.
    dtype : str
        Type of the caches.
    poison : float
        What lies in every other slot.

    Returns
    -------
    k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len
    """
    count = int(addressing.num_pages(len(keys), page_size))
    frames = np.arange(count, dtype=np.int32)[::-1] + 1  # frames 0 and count + 1 belong to nobody
    positions = np.arange(len(keys))
    at = frames[addressing.page_of(positions, page_size)], addressing.offset_of(positions, page_size)
    caches = []
    for rows in (keys, values):
        rows = np.asarray(rows, dtype)
        rows = rows.reshape(-1, 1, 1) if rows.ndim == 1 else rows
        cache = np.full((count + 2, page_size, *rows.shape[1:]), poison, dtype)
        cache[at] = rows
        caches.append(cache)
    last = np.array([addressing.last_page_len(len(keys), page_size)], np.int32)
    return caches[0], caches[1], np.array([0, count], np.int32), frames, last


def pattern(backend: Any, q_len: int, kv_len: int, *, decode: bool = False, **keywords: Any) -> list[str]:
    """Return who sees whom: equal scores and unit vectors for values, so that the output is the weights.

    Parameters
    ----------
    backend : module or object
        The backend.
    q_len, kv_len : int
        Rows and keys of one sequence.
    decode : bool
        Through ``paged_decode``; one row.
    **keywords
        Keywords of the call.

    Returns
    -------
    list of str
        One for each row, ``"0110"`` where it sees keys 1 and 2.
    """
    pages = paged(np.zeros((kv_len, 1, 1)), np.eye(kv_len)[:, None, :])
    q = np.zeros((q_len, 1, 1), np.float32)
    if decode:
        out = backend.paged_decode(q, *pages, **keywords).out
    else:
        out = backend.paged_prefill(q, np.array([0, q_len], np.int32), *pages, **keywords).out
    return ["".join(str(int(weight != 0)) for weight in row) for row in np.asarray(out)[:, 0]]


def value(state: Any) -> tuple[float, float]:
    """Return output and lse of a state of one number.

    Parameters
    ----------
    state : AttentionState
        Of one row, one head and one number.

    Returns
    -------
    out, lse : float
    """
    out, lse = (np.asarray(part) for part in state)
    assert out.size == lse.size == 1, f"one number was asked for, got {out.shape} and {lse.shape}"
    return float(out.ravel()[0]), float(lse.ravel()[0])


def same(actual: Any, expected: Any, what: str) -> None:
    """Demand equal lists.

    Parameters
    ----------
    actual, expected : sequence
        Lists of plain numbers or strings.
    what : str
        Named in the message.

    Raises
    ------
    AssertionError
        Shows both.
    """
    assert list(actual) == list(expected), f"{what}: {list(actual)} instead of {list(expected)}"


def refuses(call: Callable[[], object], error: type[Exception], words: tuple[str, ...], what: str) -> None:
    """Demand an error whose text has some words.

    Parameters
    ----------
    call : callable
        The call without arguments.
    error : type
        Class of the error.
    words : tuple of str
        Parts of its text.
    what : str
        Named in the message.

    Raises
    ------
    AssertionError
        There is no error, or another one.
    """
    try:
        call()
    except error as raised:
        missing = [word for word in words if word not in str(raised)]
        if missing:
            raise OtherRefusal(f"{what}: text {str(raised)!r} does not say {missing}") from raised
    except Exception as raised:
        raise OtherRefusal(f"{what}: raised {raised!r} instead of {error.__name__}") from raised
    else:
        raise NotRefused(f"{what}: was accepted")


def sparse_bytes(count: int) -> npt.NDArray[np.int8]:
    """Return zeroed bytes of which only those that are written take memory.

    Parameters
    ----------
    count : int
        Bytes; may be more than the machine has.

    Returns
    -------
    array (count,) of int8

    Raises
    ------
    NotHere
        The machine maps no memory without reserving it.
    """
    anonymous = getattr(mmap, "MAP_ANONYMOUS", None)
    if anonymous is None:
        raise NotHere("no anonymous memory maps on this machine")
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        return np.frombuffer(mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | anonymous | unreserved), np.int8)
    except (OSError, ValueError) as error:
        raise NotHere(f"{count} bytes cannot be mapped: {error}") from error
