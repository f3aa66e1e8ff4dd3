"""From a path to a model in memory: HF directories and GGUF files.

An HF directory is ``config.json``, one ``model.safetensors`` or several shards with an index, and optionally
``generation_config.json`` and ``tokenizer.json``. No pickle is ever opened. What the weights are called in memory
stands in :mod:`pagedref.models.weights`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedref.models.config import ModelConfig
from pagedref.models.families import FAMILIES, Names
from pagedref.models.fields import read_json, refuse, show, token_ids
from pagedref.models.safetensors_file import SafetensorsFile
from pagedref.models.weights import Progress, Weights, collect

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["Checkpoint", "load_checkpoint"]

_INDEX = "model.safetensors.index.json"

@dataclass(frozen=True)
class Checkpoint:
    """Hold what was read from one model on disk.

    Attributes
    ----------
    config : ModelConfig
        Stop tokens are the union of all files (P65).
    weights : dict of str to array of float32
        By the names of :mod:`pagedref.models.weights`, C-contiguous.
    tokenizer : Tokenizer, optional
        ``None`` if the model brings none, or none that can be used here.
    source : str
        The path as it was given.
    tokenizer_note : str
        Why `tokenizer` is ``None``, in one line; empty otherwise.
    """

    config: ModelConfig
    weights: Weights = field(repr=False)
    tokenizer: Tokenizer | None
    source: str
    tokenizer_note: str = ""


def load_checkpoint(
    path: str | os.PathLike[str], *, progress: Progress | None = None, max_model_len: int | None = None
) -> Checkpoint:
    """Read a model from disk.

    Parameters
    ----------
    path : str or Path
        An HF directory (or its configuration, if that has another name than ``config.json``), a GGUF file, or a
        directory that holds one GGUF file.
    progress : callable, optional
        Called with (weights read, weights in all).
    max_model_len : int, optional
        Positions to load the model for, as :meth:`~pagedref.models.config.ModelConfig.for_length` does.

    Returns
    -------
    Checkpoint

    Raises
    ------
    ContractError
        One line: what is missing, damaged or not supported. Sizes are checked before anything is allocated.

    Mutates
    -------
    Nothing.

    Notes
    -----
    All weights become float32 one by one, so that at most one tensor exists twice at any time.
    """
    try:
        checkpoint = _load(Path(path), str(path), progress)
    except OSError as error:
        refuse("load_checkpoint", "path", f"cannot be read ({error.strerror or error})", str(path), "a readable model")
    except MemoryError as error:
        refuse("load_checkpoint", "path", "does not fit into memory as float32", str(error), "4 bytes for each weight")
    if max_model_len is None:
        return checkpoint
    return replace(checkpoint, config=checkpoint.config.for_length(max_model_len))


def _load(place: Path, source: str, progress: Progress | None) -> Checkpoint:
    """Find out what a path is, and read it."""
    if place.is_dir() and not (place / "config.json").exists():
        found = sorted(place.glob("*.gguf"))
        if len(found) != 1:
            refuse("load_checkpoint", "path", "has no config.json", source, "an HF directory or one GGUF file")
        place = found[0]
    if place.is_dir():
        return _load_hf(place, "config.json", source, progress)
    if place.suffix == ".json" and place.is_file():
        return _load_hf(place.parent, place.name, source, progress)
    if place.suffix == ".safetensors" or not place.is_file():
        refuse("load_checkpoint", "path", "is not a model", source, "an HF directory or a GGUF file")
    from pagedref.models.gguf_model import load_gguf

    config, weights, tokenizer, note = load_gguf(place, progress)
    return Checkpoint(config, weights, tokenizer, source, note)


def _load_hf(folder: Path, config_name: str, source: str, progress: Progress | None) -> Checkpoint:
    """Read an HF directory."""
    config = ModelConfig.from_hf(read_json(folder / config_name))
    if (folder / "generation_config.json").exists():
        config = config.with_eos(token_ids(read_json(folder / "generation_config.json").get("eos_token_id")))
    shards = _Shards(folder)
    names = Names(FAMILIES[config.architecture], config, shards.tensors)
    entries, tied = names.entries(), names.tied()
    weights = collect(shards, config, entries, tied=tied, harmless=names.is_harmless, progress=progress)
    if not (folder / "tokenizer.json").exists():
        return Checkpoint(config, weights, None, source, "the model has no tokenizer.json")
    from pagedref.models.tokenizer import Tokenizer, missing_extra

    if note := missing_extra():
        return Checkpoint(config, weights, None, source, note)
    tokenizer = Tokenizer.from_hf(folder)
    return Checkpoint(config.with_eos(tokenizer.eos_token_ids), weights, tokenizer, source)


class _Shards:
    """Present one safetensors file, or several with an index, as one source of tensors."""

    def __init__(self, folder: Path) -> None:
        single, index = folder / "model.safetensors", folder / _INDEX
        self.tensors: dict[str, SafetensorsFile] = {}
        if single.exists():
            self._add(SafetensorsFile(single))
        elif index.exists():
            placed = _checked_index(read_json(index))
            for shard in sorted(set(placed.values())):
                if not (folder / shard).is_file():
                    refuse("load_checkpoint", "a shard", "is missing", shard, f"every file named in {_INDEX}")
                self._add(SafetensorsFile(folder / shard))
            for name, shard in placed.items():
                if name not in self.tensors or self.tensors[name].path.name != shard:
                    refuse("load_checkpoint", f"tensor {show(name)}", "is not where the index says", shard, "it there")
        else:
            refuse("load_checkpoint", "path", "has no weights", folder.name, f"model.safetensors or {_INDEX}")

    def _add(self, file: SafetensorsFile) -> None:
        for name in file.tensors:
            if name in self.tensors:
                refuse("load_checkpoint", f"tensor {show(name)}", "is in two shards", file.path.name, "one of them")
            self.tensors[name] = file

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape(name)

    def read_float32(self, name: str) -> npt.NDArray[np.float32]:
        return self.tensors[name].read_float32(name)


def _checked_index(index: Mapping[str, Any]) -> dict[str, str]:
    """Return the shard of each tensor; a shard is a plain file name, never a path."""
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        refuse("load_checkpoint", _INDEX, "has no weight_map", placed, "file names by tensor")
    for shard in placed.values():
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII):
            refuse("load_checkpoint", _INDEX, "names an impossible file", shard, "a plain name ending in .safetensors")
    return placed
