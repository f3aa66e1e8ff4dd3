"""The name of a page: what must be equal for two pages to hold the same keys and values (S28).

The key of a page is the SHA-256 of a message that names everything before it through the key of its parent, so equal
keys mean equal prefixes. A message ends in a letter that says what it is, every part says how long it is, and every
field says what type it has: no two different inputs have the same message.

::

    root     "pagedref prefix 1"  field(adapter)  field(salt)                       "R"
    page     parent key, 32 bytes   u32 n   n tokens, u32 each   u32 m   m items    "P"
    item     i64 start  i64 stop  field(media key)     positions relative to the first position of the page

    field    00                                   None
             01  u32 length  bytes                int, signed, little endian, as short as possible
             02  u32 length  bytes                str in UTF-8
             03  u32 length  bytes                bytes
             04  u32 count   fields               tuple

All numbers are little endian. An item is a run of positions whose tokens stand for something else, an image for
instance; it is named in every page that it overlaps. The key of the parent of a first page is the SHA-256 of the root
message. The adapter and the salt are in the root and so in every key of the chain.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._numbers import MAX_PAGE_SIZE, whole_number
from pagedref.ragged import int_array

__all__ = ["Media", "PrefixHit", "encode_field", "page_keys", "page_message", "root_message"]

Int32Array: TypeAlias = npt.NDArray[np.int32]

MAX_TOKEN = 2**31 - 1
SIGNED = (np.dtype(np.int32), np.dtype(np.int64))
MAX_NESTING = 32  # tuples in tuples
VERSION = b"pagedref prefix 1"
PLAIN_ROOT = VERSION + b"\x00\x00R"


class Media(NamedTuple):
    """A run of positions whose tokens stand for something else, such as an image.

    Attributes
    ----------
    start, stop : int
        Positions ``[start, stop)`` of the prompt.
    key : str, bytes, int or tuple
        What names the content, the whole digest of it for instance.
    """

    start: int
    stop: int
    key: Any


class PrefixHit(NamedTuple):
    """What was found of a prompt.

    Attributes
    ----------
    num_tokens : int
        Tokens that need not be computed.
    frames : int64 array (pages,)
        The frames that hold them whole; shared in place.
    src, dst : int64 arrays (0 or 1,)
        The frame of a partly matching page, and the frame into which the caller copies it before anything else.
    """

    num_tokens: int
    frames: npt.NDArray[np.int64]
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]


def encode_field(field: Any, nesting: int = 0) -> bytes:
    """Return the canonical bytes of an adapter, a salt or a media key (S28).

    Parameters
    ----------
    field : None, int, str, bytes or tuple of these
        What to name; a tuple where a name alone is not unique, such as ``("lora-a", 7)``.
    nesting : int
        How many tuples it lies in, at most 32.

    Returns
    -------
    bytes

    Raises
    ------
    ContractError
        Another type, or a text that UTF-8 cannot express: there is no canonical form of it.

    Examples
    --------
    >>> encode_field(None).hex(), encode_field("x").hex(), encode_field(b"x").hex(), encode_field(-1).hex()
    ('00', '020100000078', '030100000078', '0101000000ff')
    """
    if field is None:
        return b"\x00"
    if isinstance(field, tuple):
        if nesting >= MAX_NESTING:
            text = f"got {nesting + 1} tuples in one another, need at most {MAX_NESTING}"
            raise ContractError(f"encode_field: field has no canonical form, {text}")
        return b"\x04" + struct.pack("<I", len(field)) + b"".join(encode_field(part, nesting + 1) for part in field)
    if isinstance(field, bool) or not isinstance(field, int | np.integer | str | bytes):
        raise ContractError(f"encode_field: field has no canonical form, got {field!r}, need None, int, str or bytes")
    if isinstance(field, str):
        try:
            tag, body = b"\x02", field.encode()
        except UnicodeEncodeError as error:
            text = f"encode_field: field has no UTF-8 form, got {field!a}, need a text without lone surrogates"
            raise ContractError(text) from error
    elif isinstance(field, bytes):
        tag, body = b"\x03", field
    else:
        number = int(field)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        tag, body = b"\x01", number.to_bytes(size, "little", signed=True)
    return tag + struct.pack("<I", len(body)) + body


def root_message(adapter: Any = None, salt: Any = None) -> bytes:
    """Return the message of a root: what all keys of a chain have in common.

    Parameters
    ----------
    adapter, salt : None, int, str, bytes or tuple
        Name of the adapter, and of the group of requests that may share with each other.

    Returns
    -------
    bytes
    """
    if adapter is None and salt is None:
        return PLAIN_ROOT
    return VERSION + encode_field(adapter) + encode_field(salt) + b"R"


def page_message(parent: bytes, tokens: Any, items: bytes = b"\x00\x00\x00\x00") -> bytes:
    """Return the message of a page.

    Parameters
    ----------
    parent : bytes
        Key of the page before it, or of the root.
    tokens : integer array (n,)
        Its tokens, in ``[0, 2**31)``.
    items : bytes
        Its media, encoded; by default none.

    Returns
    -------
    bytes
    """
    array = np.asarray(tokens)
    return parent + struct.pack("<I", array.size) + array.astype("<u4").tobytes() + items + b"P"


def page_keys(
    tokens: Any,
    page_size: int,
    *,
    adapter: Any = None,
    salt: Any = None,
    media: Iterable[Sequence[Any]] = (),
    hash_function: Callable[[bytes], bytes] | None = None,
) -> list[bytes]:
    """Return the keys of all whole pages of a prompt (S28).

    Parameters
    ----------
    tokens : integer array (n,)
        Token ids, in ``[0, 2**31)``.
    page_size : int
        Tokens in a page, >= 1.
    adapter, salt : None, int, str, bytes or tuple
        Fields of the root.
    media : iterable of Media
        Runs of positions that stand for something else.
    hash_function : callable, optional
        In place of SHA-256.

    Returns
    -------
    list of bytes
        ``n // page_size`` keys.

    Examples
    --------
    >>> [key.hex()[:16] for key in page_keys([1, 2, 3, 4, 5, 6, 7, 8], 4)]
    ['20a6e8e54efa894e', '8bdcb722922c2487']
    """
    digest = sha256 if hash_function is None else hash_function
    page_size = whole_number("page_keys", "page_size", page_size, low=1, high=MAX_PAGE_SIZE)
    array = token_array("page_keys", tokens)
    items = media_by_page("page_keys", media, page_size, array.size)
    key, keys = digest(root_message(adapter, salt)), []
    for page in range(array.size // page_size):
        part = array[page * page_size : (page + 1) * page_size]
        key = digest(page_message(key, part, items[page]) if page in items else page_message(key, part))
        keys.append(key)
    return keys


def sha256(message: bytes) -> bytes:
    """Return the digest of a message."""
    return hashlib.sha256(message).digest()


def token_array(function: str, tokens: Any) -> Int32Array:
    """Return checked token ids, 32 bits wide: an int32 array itself, anything else converted once."""
    array = int_array(function, "tokens", tokens)
    if array.dtype in SIGNED and 0 <= np.bitwise_or.reduce(array) <= MAX_TOKEN:  # of all bits: one pass for both ends
        return array.astype(np.int32, copy=False)
    return int_array(function, "tokens", array, low=0, high=MAX_TOKEN).astype(np.int32, copy=False)


def media_by_page(
    function: str, media: Iterable[Sequence[Any]], page_size: int, num_tokens: int
) -> dict[int, bytes]:
    """Return the encoded items of every page that media overlap; pages without any are absent."""
    found: dict[int, list[bytes]] = {}
    try:
        runs = [(start, stop, key) for start, stop, key in media]
    except (TypeError, ValueError) as error:
        text = f"{function}: media are no runs, got {media!r:.60}, need (start, stop, key) for each"
        raise ContractError(text) from error
    for start, stop, _ in runs:
        whole = all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in (start, stop))
        if not whole or not 0 <= start < stop <= num_tokens:
            need = f"integers 0 <= start < stop <= {num_tokens}"
            raise ContractError(f"{function}: media is no run of positions, got [{start!r}, {stop!r}), need {need}")
    for start, stop, key in sorted(runs, key=lambda run: (run[0], run[1])):
        for page in range(start // page_size, (stop - 1) // page_size + 1):
            first = page * page_size
            found.setdefault(page, []).append(struct.pack("<qq", start - first, stop - first) + encode_field(key))
    return {page: struct.pack("<I", len(items)) + b"".join(items) for page, items in found.items()}
