"""The bytes of a page file: its head, and the record in front of each page.

A file is two copies of one head, then slots of equal size::

    0          first/2     first       first + stride          first = 2 * max(align, 1024)
    +----------+-----------+-----------+-----------+- - -      stride = 128 + bytes_per_page, rounded up to align
    | head     | head      | slot 0    | slot 1    |
    +----------+-----------+-----------+-----------+- - -

    slot       0        8            16     24            32        64            96              128
               +--------+------------+------+-------------+---------+-------------+---------------+---------+
               | magic  | generation | slot | name length | name    | SHA-256 of  | SHA-256 of    | page    |
               | 8 B    | u64        | u64  | u64         | 0-padded| the page    | geometry, 0-96| bytes   |
               +--------+------------+------+-------------+---------+-------------+---------------+---------+

    head       0        8         12      16               24            32                992               1024
               +--------+---------+-------+----------------+-------------+-----------------+-----------------+
               | magic  | version | align | bytes_per_page | text length | geometry, JSON  | SHA-256 of 0-992|
               | 8 B    | u32     | u32   | u64            | u64         | 0-padded        |                 |
               +--------+---------+-------+----------------+-------------+-----------------+-----------------+

All numbers are little-endian. A record vouches for itself and for its page, so no other place has to be written for a
page to count: the record is its own commit. Generations grow by one with each record of a file, so of two records of
one name the larger one is younger. Slots start on multiples of `align`, so no write touches a disk sector of another.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from pagedref.errors import ContractError

__all__ = [
    "HEAD_BYTES", "MAX_NAME", "RECORD_BYTES", "Head", "Record", "geometry_text", "pack_head", "pack_record", "sha256",
    "unpack_head", "unpack_record",
]  # fmt: skip

HEAD_BYTES = 1024
RECORD_BYTES = 128
MAX_NAME = 32
MAX_GENERATION = 2**63
VERSION = 1
MIN_ALIGN, MAX_ALIGN = 64, 1 << 20
MAX_PAGE = 1 << 40

_HEAD = struct.Struct("<8sIIQQ")
_HEAD_MAGIC = b"PGREF\x00DF"
_TEXT_START, _TEXT_STOP = 32, 992
_RECORD = struct.Struct("<8sQQQ32s32s")
_RECORD_MAGIC = b"PGREF\x00PG"
_SIGNED = _RECORD.size  # 96: the part of a record that its own checksum covers


class Head(NamedTuple):
    """What the head of a page file says.

    Attributes
    ----------
    align : int
        Slots start on multiples of it, bytes.
    bytes_per_page : int
        Size of every page.
    text : str
        The geometry as JSON.
    """

    align: int
    bytes_per_page: int
    text: str

    @property
    def first(self) -> int:
        """Where slot 0 starts, bytes."""
        return 2 * self.copy

    @property
    def copy(self) -> int:
        """Where the second copy of the head starts, bytes."""
        return max(self.align, HEAD_BYTES)

    @property
    def stride(self) -> int:
        """Distance of two slots, bytes."""
        return -(-(RECORD_BYTES + self.bytes_per_page) // self.align) * self.align

    @property
    def signature(self) -> bytes:
        """What ties a record to files of this geometry."""
        return sha256(f"{self.align} {self.bytes_per_page} {self.text}".encode())


class Record(NamedTuple):
    """What stands in front of a page.

    Attributes
    ----------
    generation : int
        Larger than that of every record written before it, >= 1.
    name : bytes
        Name of the page, at most 32 bytes; empty for a page that no restart should find.
    digest : bytes
        SHA-256 of the page.
    """

    generation: int
    name: bytes
    digest: bytes


def sha256(*parts: Any) -> bytes:
    """Return the SHA-256 of some buffers in a row.

    Parameters
    ----------
    *parts : buffers

    Returns
    -------
    bytes
        32 of them.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def geometry_text(geometry: Mapping[str, Any]) -> str:
    """Return a geometry as the text that stands in the head: JSON with sorted names, at most 960 bytes.

    Parameters
    ----------
    geometry : mapping of str to str, int or None

    Returns
    -------
    str

    Raises
    ------
    ContractError
        The geometry is not JSON, or too long.

    Examples
    --------
    >>> geometry_text({"page_size": 16, "dtype": "float32"})
    '{"dtype":"float32","page_size":16}'
    """
    try:
        text = json.dumps(dict(geometry), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(f"DiskStore: geometry is not plain, got {error}, need texts and numbers by name") from error
    if len(text) > _TEXT_STOP - _TEXT_START:
        raise ContractError(f"DiskStore: geometry is too long, got {len(text)} bytes, need at most 960 as JSON")
    return text


def pack_head(head: Head) -> bytes:
    """Return the 1024 bytes of a head.

    Parameters
    ----------
    head : Head

    Returns
    -------
    bytes
    """
    text = head.text.encode()
    front = _HEAD.pack(_HEAD_MAGIC, VERSION, head.align, head.bytes_per_page, len(text)) + text
    front = front.ljust(_TEXT_STOP, b"\0")
    return front + sha256(front)


def unpack_head(raw: bytes) -> Head | None:
    """Return what a head says, or None where it is damaged or none.

    Parameters
    ----------
    raw : bytes
        What stands in its place; any number of bytes.

    Returns
    -------
    Head or None

    Raises
    ------
    ContractError
        It is a sound head of another version.
    """
    if len(raw) != HEAD_BYTES or raw[_TEXT_STOP:] != sha256(raw[:_TEXT_STOP]):
        return None
    magic, version, align, bytes_per_page, length = _HEAD.unpack_from(raw)
    if magic != _HEAD_MAGIC:
        return None
    if version != VERSION:
        raise ContractError(f"DiskStore: version of the file is unknown, got {version}, need {VERSION}")
    if not MIN_ALIGN <= align <= MAX_ALIGN or align & (align - 1) or not 1 <= bytes_per_page <= MAX_PAGE:
        return None
    if length > _TEXT_STOP - _TEXT_START:
        return None
    return Head(align, bytes_per_page, raw[_TEXT_START : _TEXT_START + length].decode("ascii", "replace"))


def pack_record(record: Record, slot: int, signature: bytes) -> bytes:
    """Return the 128 bytes in front of a page.

    Parameters
    ----------
    record : Record
    slot : int
        Where it is written: a record that is found elsewhere does not count.
    signature : bytes
        Of the head.

    Returns
    -------
    bytes
    """
    front = _RECORD.pack(_RECORD_MAGIC, record.generation, slot, len(record.name), record.name, record.digest)
    return front + sha256(signature, front)


def unpack_record(raw: bytes, slot: int, signature: bytes) -> Record | None:
    """Return what a record says, or None where it is damaged, of another slot or geometry, or none.

    Parameters
    ----------
    raw : bytes
        What stands in its place; any number of bytes.
    slot : int
        Where it stands.
    signature : bytes
        Of the head.

    Returns
    -------
    Record or None
    """
    if len(raw) != RECORD_BYTES or raw[_SIGNED:] != sha256(signature, raw[:_SIGNED]):
        return None
    magic, generation, where, length, name, digest = _RECORD.unpack_from(raw)
    if magic != _RECORD_MAGIC or where != slot or length > MAX_NAME or not 1 <= generation < MAX_GENERATION:
        return None
    return Record(generation, name[:length], digest)
