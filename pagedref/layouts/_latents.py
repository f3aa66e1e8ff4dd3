"""Latent pages: latents and rotated keys in one tensor or in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.layouts._caches import axes_of

Array = npt.NDArray[Any]


def latent_pages_from_parts(ckv_cache: Array, kpe_cache: Array) -> Array:
    """Return latents and rotated keys in one page, the latents first: FlashMLA, vLLM.

    Parameters
    ----------
    ckv_cache : array (num_frames, page_size, rank)
        Latents.
    kpe_cache : array (num_frames, page_size, rope_dim)
        Rotated keys, of the same type.

    Returns
    -------
    array (num_frames, page_size, rank + rope_dim)
        A copy.

    Raises
    ------
    ContractError
        Different frames, page sizes or types.

    Examples
    --------
    >>> latent_pages_from_parts(np.zeros((8, 64, 512)), np.zeros((8, 64, 64))).shape
    (8, 64, 576)
    """
    shape = "(num_frames, page_size, rank or rope_dim)"
    ckv = axes_of("latent_pages_from_parts", "ckv_cache", ckv_cache, 3, shape)
    kpe = axes_of("latent_pages_from_parts", "kpe_cache", kpe_cache, 3, shape)
    if kpe.shape[:2] != ckv.shape[:2] or kpe.dtype != ckv.dtype:
        found, need = f"{kpe.dtype}{kpe.shape}", f"{ckv.dtype}{ckv.shape[:2]}"
        validate.fail("latent_pages_from_parts", "kpe_cache", "does not fit ckv_cache", found, need)
    return np.concatenate([ckv, kpe], axis=2)


def parts_from_latent_pages(pages: Array, rank: int) -> tuple[Array, Array]:
    """Return latents and rotated keys of pages that hold both.

    Parameters
    ----------
    pages : array (num_frames, page_size, rank + rope_dim) or (num_frames, page_size, 1, rank + rope_dim)
        Latents first; FlashMLA writes the one kv head as an axis.
    rank : int
        Size of a latent, ``1 .. rank + rope_dim``.

    Returns
    -------
    ckv_cache, kpe_cache : arrays (num_frames, page_size, rank), (num_frames, page_size, rope_dim)
        Views.

    Raises
    ------
    ContractError
        Other axes, or a rank that is out of range.

    Examples
    --------
    >>> [part.shape for part in parts_from_latent_pages(np.zeros((8, 64, 1, 576)), 512)]
    [(8, 64, 512), (8, 64, 64)]
    """
    shape = "(num_frames, page_size, rank + rope_dim), an axis of 1 before the last allowed"
    if isinstance(pages, np.ndarray) and pages.ndim == 4 and pages.shape[2] == 1:
        pages = pages[:, :, 0]
    both = axes_of("parts_from_latent_pages", "pages", pages, 3, shape)
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 1 <= rank <= both.shape[2]:
        validate.fail("parts_from_latent_pages", "rank", "is out of range", rank, f"1..{both.shape[2]}")
    return both[:, :, :rank], both[:, :, rank:]
