"""What can run kernels here: a GPU, Numba's simulator, or nothing."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import numpy as np

from pagedref.errors import BackendUnavailable


def _mend_numpy() -> None:
    """Give numba-cuda up to 0.30 the name that NumPy 2.5 removed; it asks for it at its first compilation."""
    old = tuple(int(part) for part in version("numba-cuda").split(".")[:2]) <= (0, 30)
    if old and not hasattr(np, "row_stack"):
        vars(np)["row_stack"] = np.vstack


_mend_numpy()

from numba import config, cuda  # noqa: E402  (after the name is there)

if getattr(cuda, "implementation", "") != "NVIDIA":
    raise ImportError("numba-cuda (numba's own CUDA target is not used)")

SIMULATOR = bool(config.ENABLE_CUDASIM)
"""Whether kernels run in Numba's simulator."""

_HELP = (
    'a GPU and pip install "pagedref[cuda]"; or, without a GPU, the simulator: '
    'pip install "pagedref[cudasim]" and set NUMBA_ENABLE_CUDASIM=1 before Python starts '
    "(NUMBA_ENABLE_CUDASIM=1 pagedref demo)"
)


@cache
def _found() -> str | None:
    """Name what runs kernels, or return None."""
    if SIMULATOR:
        return "simulator"
    if not cuda.is_available():
        return None
    name = cuda.get_current_device().name
    return f"gpu: {name.decode() if isinstance(name, bytes) else name}"


def ensure_available() -> None:
    """Raise unless kernels can run here.

    Raises
    ------
    BackendUnavailable
        There is neither a GPU nor the simulator; the text says what to install or set.
    """
    device()


def device() -> str:
    """Return what runs the kernels.

    Returns
    -------
    str
        ``"gpu: NAME"`` or ``"simulator"``.

    Raises
    ------
    BackendUnavailable
        There is neither; the text says what to install or set.
    """
    found = _found()
    if found is None:
        raise BackendUnavailable(
            f"pagedref_cuda: backend 'cuda' cannot run here, got no GPU and no simulator, need {_HELP}"
        )
    return found
