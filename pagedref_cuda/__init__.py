"""The CUDA twin of :mod:`pagedref.attention`: same names, signatures and errors, computed by Numba kernels.

This module is the backend ``cuda``. It runs on a GPU, or without one on :mod:`pagedref_cuda.emulator`, which executes
what was compiled (``pip install "pagedref[cuda]"`` for both), or in Numba's simulator, to step through kernels
(``pip install "pagedref[cudasim]"`` and ``NUMBA_ENABLE_CUDASIM=1`` in the environment). ``PAGEDREF_CUDA=gpu``,
``emulator`` or ``simulator`` chooses; :func:`device` says which it is.

Without numba-cuda only the emulator can be imported; every other name raises ImportError.
"""

from __future__ import annotations

from typing import Any, NoReturn

try:
    from pagedref_cuda._runtime import (
        KERNELS,
        Counts,
        DeviceArray,
        counting,
        device,
        emulate,
        emulator_options,
        ensure_available,
        in_kind,
        to_device,
    )
except ImportError as error:
    _MISSING = str(error)

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"pagedref_cuda.{name} needs numba-cuda: {_MISSING}")

else:
    from pagedref.attention.state import AttentionState
    from pagedref.contract import EXTENDED_OPERATIONS, OPERATIONS
    from pagedref_cuda import layers
    from pagedref_cuda.cache import append_kv, copy_frames, gather_kv
    from pagedref_cuda.cascade import cascade_attention, cascade_mla, split_kv
    from pagedref_cuda.decode import paged_decode
    from pagedref_cuda.mla import mla_decode, mla_prefill
    from pagedref_cuda.ordered import ordered_decode, ordered_prefill
    from pagedref_cuda.poison import find_poison
    from pagedref_cuda.prefill import paged_prefill
    from pagedref_cuda.state import merge_states

    __all__ = [
        "KERNELS",
        "AttentionState",
        "Counts",
        "DeviceArray",
        "append_kv",
        "cascade_attention",
        "cascade_mla",
        "copy_frames",
        "counting",
        "device",
        "emulate",
        "emulator_options",
        "ensure_available",
        "find_poison",
        "gather_kv",
        "layers",
        "merge_states",
        "mla_decode",
        "mla_prefill",
        "ordered_decode",
        "ordered_prefill",
        "paged_decode",
        "paged_prefill",
        "split_kv",
        "to_device",
        "transformer",
    ]

    def transformer(config: Any, weights: dict[str, Any]) -> Any:
        """Return what computes a model: wholly in kernels where they can, else NumPy with attention in kernels.

        Parameters
        ----------
        config : ModelConfig
            The model.
        weights : dict of str to array of float32
            By the names of :mod:`pagedref.models.weights`; empty afterwards.

        Returns
        -------
        pagedref_cuda.runner.Runner or pagedref.models.Transformer
        """
        from pagedref_cuda import runner

        return runner.transformer(config, weights)

    # The operations take arrays of other libraries, and return arrays of the same.
    for _name in {*OPERATIONS, *EXTENDED_OPERATIONS} & set(__all__):
        globals()[_name] = in_kind(globals()[_name])
