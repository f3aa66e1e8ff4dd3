"""What a cache does with pages as bytes: copies, the store of its frames, saving and restoring one sequence."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref._files import LOCAL, Files
from pagedref._pool import FramePool
from pagedref.addressing import frame_of_slot, offset_of_slot
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.memory import CopyPlan, KVManager, PrefixHit
from pagedref.memory.stores import ArrayFrames
from pagedref.save_file import file_path, read_save, spec_fields, write_save

__all__ = ["CacheFiles"]

Array = npt.NDArray[Any]


class CacheFiles:
    """Frames as bytes and sequences as files; `PagedKVCache` adds everything else."""

    spec: CacheSpec
    backend: Any
    manager: KVManager
    _poison: bool
    _pool: FramePool
    _peak: int

    @property
    def geometry(self) -> dict[str, Any]:
        """What the bytes of a page mean: the CacheSpec, and a digest of scales that no page carries (S17).

        A :class:`pagedref.memory.disk.DiskStore` keeps it, and refuses the pages of another cache.
        """
        fixed = [array.tobytes() for axis, array in self._pool.parts().values() if axis == "cache"]
        digest = hashlib.sha256(b"".join(fixed)).hexdigest() if fixed else None
        return {**spec_fields(self.spec), "byte_order": sys.byteorder, "fixed_scales": digest}

    def frame_store(self) -> ArrayFrames:
        """Return the frames of this cache as bytes, for swapping: every array alike, scales included (S18, S33).

        Returns
        -------
        ArrayFrames
            A view: writing to it writes the cache.
        """
        parts = self._pool.parts().items()
        return ArrayFrames({name: np.moveaxis(array, 1, 0) for name, (axis, array) in parts if axis != "cache"})

    def save(
        self,
        seq_id: int,
        path: str | os.PathLike[str],
        *,
        token_ids: Any = None,
        sync: bool = True,
        files: Files = LOCAL,
    ) -> None:
        """Write the live tokens of a sequence to one file, completely or not at all.

        Parameters
        ----------
        seq_id : int
            A live sequence without holes.
        path : str or Path
            The file.
        token_ids : integer array (n,), optional
            Its tokens, kept along: at least as many as are live.
        sync : bool
            Whether the file survives a power cut once this has returned.
        files : Files
            The file system.

        Raises
        ------
        ContractError
            There is no such sequence, or the path is none.
        PageFault
            It has a hole.
        OSError
            The disk refused; a file that was there is as it was.
        """
        path = file_path("save", path)
        num_tokens = self.manager.seq_len(seq_id)
        slots = self.manager.slot_mapping([seq_id], [0], [num_tokens])
        tensors = {name: array[where] for name, (array, where) in self._places(slots).items()}
        write_save(path, self.spec, num_tokens, tensors, token_ids=token_ids, sync=sync, files=files)

    def restore(self, path: str | os.PathLike[str], *, files: Files = LOCAL) -> int:
        """Begin a sequence with the tokens of a file: new frames, the same bits (S33).

        Parameters
        ----------
        path : str or Path
            The file; nobody has to vouch for it.
        files : Files
            The file system.

        Returns
        -------
        int
            Id of the sequence.

        Raises
        ------
        ContractError
            The file is damaged, or was saved from a cache of another CacheSpec or with other fixed scales; both values
            are named. Nothing was changed.
        OutOfFrames
            The pool cannot hold the tokens; nothing was changed (S26).
        """
        saved = read_save(path, self.spec, files=files)
        for name, (axis, array) in self._pool.parts().items():
            if axis == "cache" and array.tobytes() != saved.tensors[name].tobytes():
                got = f"{saved.tensors[name].ravel()[:4].tolist()}, need {array.ravel()[:4].tolist()}"
                raise ContractError(f"restore: {name} of the file does not fit the cache, got {got}")
        seq_id = self.manager.add()
        try:
            self.manager.reserve([seq_id], [saved.num_tokens])
            slots = self.manager.slots([seq_id], [saved.num_tokens])
            for name, (array, where) in self._places(slots).items():
                array[where] = saved.tensors[name]
            self.manager.commit([seq_id], [saved.num_tokens])
        except BaseException:
            self.manager.free([seq_id])
            raise
        self._peak = max(self._peak, int(np.count_nonzero(self.manager.refcount)))
        return seq_id

    def _need_layer(self, function: str, layer: int) -> None:
        """Refuse a layer that is none."""
        if not 0 <= layer < self.spec.num_layers:
            raise ContractError(f"{function}: layer is out of range, got {layer}, need 0..{self.spec.num_layers - 1}")

    def _places(self, slots: npt.NDArray[np.int64]) -> dict[str, tuple[Array, Any]]:
        """Return each array, and the index that picks from it what belongs to the slots of one sequence."""
        frames, offsets = frame_of_slot(slots, self.spec.page_size), offset_of_slot(slots, self.spec.page_size)
        every = slice(None)
        where = {"cache": ..., "frame": (every, frames[:: self.spec.page_size]), "slot": (every, frames, offsets)}
        return {name: (array, where[axis]) for name, (axis, array) in self._pool.parts().items()}

    def _copy(self, plan: CopyPlan | PrefixHit, undo: Callable[[], None]) -> None:
        """Carry out copies; if they fail, undo what they are for (S26)."""
        if plan.src.size:
            before = self.manager.occupied if self._poison else None
            try:
                self.backend.copy_frames(self._pool.frame_arrays(), plan.src, plan.dst)
            except BaseException:
                undo()
                self._poison_freed(before)
                raise

    def _poison_freed(self, before: npt.NDArray[np.bool_] | None) -> None:
        """Poison the frames that held something before and are free now."""
        if before is not None:
            self._pool.poison(np.flatnonzero(before & ~self.manager.occupied))
