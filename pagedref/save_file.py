"""One sequence's cache in one file: safetensors, with a header that names the CacheSpec, and a seal.

========================  ==========================================================================================
tensor                    shape
========================  ==========================================================================================
``k``, ``v``              (num_layers, num_tokens, num_kv_heads, stored head size), as stored
``k_scale``, ``k_zero``   by granularity (S17): (num_layers,) tensor; (num_layers, num_kv_heads) head;
and the same for ``v``    (num_layers, num_pages, num_kv_heads) frame_head; (num_layers, num_tokens, num_kv_heads)
                          slot_head; one more axis of groups for group
``token_ids``             (n,) of int64, where given
========================  ==========================================================================================

Only live tokens are in it: nothing of what other sequences left in the same frames. Metadata: ``format``
(``pagedref.sequence``), ``version``, ``cache_spec`` (JSON), ``num_tokens``, ``sha256`` (the seal).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pagedref._files import LOCAL, Files
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.ragged import int_array
from pagedref.tensor_file import TensorFile, format_of, write_tensors

__all__ = ["SavedSequence", "file_path", "read_save", "spec_fields", "tensor_forms", "write_save"]

FORMAT, VERSION = "pagedref.sequence", "1"

Array = npt.NDArray[Any]


class SavedSequence(NamedTuple):
    """What a save file holds.

    Attributes
    ----------
    num_tokens : int
        Tokens in the cache.
    tensors : dict of str to array
        As :func:`tensor_forms` says.
    token_ids : int64 array (n,) or None
        Tokens of the sequence, at least `num_tokens`, where they were saved.
    """

    num_tokens: int
    tensors: dict[str, Array]
    token_ids: npt.NDArray[np.int64] | None


def file_path(function: str, path: object) -> Path:
    """Return the path of a file, checked before anything is read or written.

    Parameters
    ----------
    function : str
        What the error text names.
    path : str or Path
        As given.

    Returns
    -------
    Path

    Raises
    ------
    ContractError
        It is no path, names no file, or holds a zero byte.

    Examples
    --------
    >>> file_path("save", "a.safetensors").name
    'a.safetensors'
    """
    text = path if isinstance(path, str) else path.__fspath__() if isinstance(path, os.PathLike) else None
    if not isinstance(text, str):
        raise ContractError(f"{function}: path is no path, got {_short(path)}, need a text or a Path")
    if "\0" in text or not Path(text).name:
        raise ContractError(f"{function}: path names no file, got {_short(text)}, need a name without a zero byte")
    return Path(text)


def spec_fields(spec: CacheSpec) -> dict[str, Any]:
    """Return a CacheSpec as plain texts and numbers: what files name, and what is compared.

    Parameters
    ----------
    spec : CacheSpec
        Geometry.

    Returns
    -------
    dict of str to str, int, bool or None
        Two specs that mean the same have the same fields, however they were written.

    Examples
    --------
    >>> spec_fields(CacheSpec(1, 2, 64, page_size=16))["kind"]
    'float32'
    """
    plain = {name: thing for name, thing in asdict(spec).items() if name not in ("dtype", "kv_format")}
    return {**plain, "v_head_dim": spec.value_dim, **asdict(spec.form)}


def tensor_forms(spec: CacheSpec, num_tokens: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of every tensor of a saved sequence.

    Parameters
    ----------
    spec : CacheSpec
        Geometry.
    num_tokens : int
        Live tokens.

    Returns
    -------
    dict of str to (shape, dtype)

    Examples
    --------
    >>> tensor_forms(CacheSpec(1, 2, 64, page_size=16, dtype="float16"), 20)
    {'k': ((1, 20, 2, 64), dtype('float16')), 'v': ((1, 20, 2, 64), dtype('float16'))}
    """
    form, layers, heads = spec.form, spec.num_layers, spec.num_kv_heads
    forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for side, dim in (("k", spec.head_dim), ("v", spec.value_dim)):
        forms[side] = (layers, num_tokens, heads, form.stored_dim(dim)), form.dtype
        shape = form.scale_shape(spec.num_pages(num_tokens), 1, heads, dim)
        if shape is None:
            continue
        if form.computed:  # (pages, 1, heads, ...): one for each slot
            shape = (num_tokens, *shape[2:])
        forms[f"{side}_scale"] = (layers, *shape), np.dtype(np.float32)
        if form.zero_point:
            forms[f"{side}_zero"] = forms[f"{side}_scale"]
    return forms


def write_save(
    path: str | os.PathLike[str],
    spec: CacheSpec,
    num_tokens: int,
    tensors: Mapping[str, Array],
    *,
    token_ids: Any = None,
    sync: bool = True,
    files: Files = LOCAL,
) -> None:
    """Write one sequence's cache to a file, completely or not at all.

    Parameters
    ----------
    path : str or Path
        The file; one that is there stays until the new one is complete.
    spec : CacheSpec
        Geometry.
    num_tokens : int
        Live tokens.
    tensors : mapping of str to array
        As :func:`tensor_forms` says.
    token_ids : integer array (n,), optional
        Tokens of the sequence, at least `num_tokens`: those beyond are not in the cache yet.
    sync : bool
        Whether the file survives a power cut once this has returned.
    files : Files
        The file system.

    Raises
    ------
    ContractError
        The tensors are not those of the geometry.
    OSError
        The disk refused; what was there before is as it was.

    Mutates
    -------
    The file system only.
    """
    path = file_path("write_save", path)
    forms = tensor_forms(spec, num_tokens)
    for name in sorted({*forms, *tensors}):
        found = (tensors[name].shape, tensors[name].dtype) if name in tensors else None
        if found != forms.get(name):
            raise ContractError(f"write_save: tensor {name!r} does not fit, got {found}, need {forms.get(name)}")
    parts = dict(tensors)
    if token_ids is not None:
        ids = int_array("write_save", "token_ids", token_ids).astype(np.int64)
        if ids.size < num_tokens:
            raise ContractError(f"write_save: token_ids has too few, got {ids.size}, need at least {num_tokens}")
        parts["token_ids"] = ids
    texts = {
        "format": FORMAT,
        "version": VERSION,
        "cache_spec": json.dumps(spec_fields(spec), sort_keys=True),
        "num_tokens": str(int(num_tokens)),
    }
    write_tensors(path, parts, texts, seal=True, sync=sync, files=files)


def read_save(path: str | os.PathLike[str], spec: CacheSpec, *, files: Files = LOCAL) -> SavedSequence:
    """Read one sequence's cache from a file.

    Parameters
    ----------
    path : str or Path
        The file; nobody has to vouch for it.
    spec : CacheSpec
        What it must have been saved from.
    files : Files
        The file system.

    Returns
    -------
    SavedSequence
        Equal in every bit to what was saved.

    Raises
    ------
    ContractError
        One line: the file is none of ours, of another geometry (both values are named), or damaged in any byte.

    Notes
    -----
    The geometry is compared, and every shape with it, before a tensor is read; sizes are bounded by the file's.
    """
    file = TensorFile(file_path("restore", path), function="restore", files=files)

    def refuse(what: str, got: object, need: object) -> NoReturn:
        raise ContractError(f"restore: {what} of {file.path.name} does not fit, got {_short(got)}, need {_short(need)}")

    texts = file.metadata
    for name, needed in (("format", FORMAT), ("version", VERSION)):
        if texts.get(name) != needed:
            refuse(name, texts.get(name), needed)
    ours, theirs = json.loads(json.dumps(spec_fields(spec))), _parsed(texts.get("cache_spec", ""))
    for name in [*ours, *sorted(theirs.keys() - ours.keys())]:
        if json.dumps(theirs.get(name)) != json.dumps(ours.get(name)):
            refuse(name, theirs.get(name), ours.get(name))
    keys = file.tensors.get("k")
    if keys is None or len(keys.shape) != 4 or texts.get("num_tokens") != str(keys.shape[1]):
        refuse("num_tokens", texts.get("num_tokens"), "the second axis of 'k'")
    num_tokens = keys.shape[1]
    forms = tensor_forms(spec, num_tokens)
    needs: dict[str, Any] = {name: (format_of(dtype), shape) for name, (shape, dtype) in forms.items()}
    found: dict[str, Any] = {name: info[:2] for name, info in file.tensors.items()}
    listed = found.pop("token_ids", ("I64", (num_tokens,)))
    if listed[0] != "I64" or len(listed[1]) != 1 or listed[1][0] < num_tokens:
        refuse("token_ids", listed, ("I64", (num_tokens,)))
    for name in sorted({*needs, *found}):
        if needs.get(name) != found.get(name):
            refuse(f"tensor {name!r}", found.get(name), needs.get(name))
    tensors = file.read(sealed=True)
    token_ids = tensors.pop("token_ids", None)
    return SavedSequence(num_tokens, {name: tensors[name].view(forms[name][1]) for name in forms}, token_ids)


def _parsed(text: str) -> dict[str, Any]:
    """Return a JSON object, empty where it is none."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _short(thing: object) -> str:
    """Return a thing as a text of one line and at most 80 characters."""
    text = ascii(thing)
    return text if len(text) <= 80 else text[:77] + "..."
