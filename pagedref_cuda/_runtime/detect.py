"""What runs kernels here: a GPU, the emulator of compiled kernels, or Numba's simulator.

``PAGEDREF_CUDA`` chooses: ``gpu``, ``emulator`` or ``simulator``. Without it a GPU is taken if there is one, else the
emulator if the compiler is installed. ``NUMBA_ENABLE_CUDASIM=1`` means the simulator.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from pagedref.errors import BackendUnavailable

MODES = ("gpu", "emulator", "simulator")
ASKED = os.environ.get("PAGEDREF_CUDA", "").strip().lower()
_SIMULATOR_ASKED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

if ASKED == "simulator" and not _SIMULATOR_ASKED and "numba.cuda" not in sys.modules:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # numba.cuda decides when it is imported
    if "numba" in sys.modules:
        import_module("numba.core.config").reload_config()


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

EMULATED_CAPABILITY = (9, 0)
"""The architecture that kernels are compiled for when the emulator runs them."""

_HELP = (
    'a GPU and pip install "pagedref[cuda]"; or, without a GPU, the same package, whose compiler the emulator uses; or '
    'the simulator: pip install "pagedref[cudasim]" and set NUMBA_ENABLE_CUDASIM=1 before Python starts '
    "(NUMBA_ENABLE_CUDASIM=1 pagedref demo)"
)


def _refuse(wrong: str, got: str, need: str) -> BackendUnavailable:
    return BackendUnavailable(f"pagedref_cuda: {wrong}, got {got}, need {need}")


@cache
def missing_compiler() -> str:
    """Say why kernels cannot be compiled here; empty if they can.

    Returns
    -------
    str
        The reason.
    """
    if SIMULATOR:
        return "numba is in simulator mode"
    try:
        nvvm: Any = import_module("numba.cuda.cudadrv.nvvm")
        nvvm.NVVM()
    except Exception as error:
        return f"libNVVM cannot be loaded ({type(error).__name__}: {error})"
    try:
        nvrtc: Any = import_module("numba.cuda.cudadrv.nvrtc")
        nvrtc.get_supported_ccs()  # Numba asks for the architectures, also where nothing is C++
    except Exception as error:
        return f"NVRTC cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())})"
    return ""


@cache
def mode() -> str:
    """Return what runs the kernels.

    Returns
    -------
    str
        ``"gpu"``, ``"emulator"`` or ``"simulator"``.

    Raises
    ------
    BackendUnavailable
        The settings contradict each other, or what they ask for is not here; the text says what to install or set.
    """
    if ASKED and ASKED not in MODES:
        raise _refuse("PAGEDREF_CUDA is unknown", repr(ASKED), "gpu, emulator or simulator")
    if SIMULATOR:
        if ASKED in ("gpu", "emulator"):
            raise _refuse(
                "the settings contradict each other",
                f"PAGEDREF_CUDA={ASKED} and NUMBA_ENABLE_CUDASIM=1",
                "one of the two unset",
            )
        return "simulator"
    if ASKED == "simulator":
        raise _refuse(
            "numba.cuda was imported before the simulator was asked for",
            "PAGEDREF_CUDA=simulator without NUMBA_ENABLE_CUDASIM=1",
            "NUMBA_ENABLE_CUDASIM=1 before Python starts",
        )
    if ASKED != "emulator" and cuda.is_available():
        return "gpu"
    if ASKED == "gpu":
        raise _refuse("there is no GPU that numba-cuda can use", "PAGEDREF_CUDA=gpu", _HELP)
    if missing_compiler():
        raise _refuse("backend 'cuda' cannot run here", f"no GPU, no simulator, and {missing_compiler()}", _HELP)
    return "emulator"


def ensure_available() -> None:
    """Raise unless kernels can run here.

    Raises
    ------
    BackendUnavailable
        There is no GPU, no compiler for the emulator and no simulator; the text says what to install or set.
    """
    mode()


@cache
def device() -> str:
    """Return what runs the kernels, in words.

    Returns
    -------
    str
        ``"gpu: NAME"``, ``"emulator (sm_90 PTX)"`` or ``"simulator"``.

    Raises
    ------
    BackendUnavailable
        None of them is here; the text says what to install or set.
    """
    found = mode()
    if found == "gpu":
        name = cuda.get_current_device().name
        return f"gpu: {name.decode() if isinstance(name, bytes) else name}"
    if found == "emulator":
        return "emulator (sm_{}{} PTX)".format(*EMULATED_CAPABILITY)
    return found


def compute_capability() -> tuple[int, int]:
    """Return the architecture that kernels run on, such as (9, 0); the simulator counts as (9, 0).

    Returns
    -------
    pair of int
        Major and minor number.
    """
    if mode() == "gpu":
        major, minor = cuda.get_current_device().compute_capability
        return int(major), int(minor)
    return EMULATED_CAPABILITY
