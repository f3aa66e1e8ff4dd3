"""The only place that touches Numba's internals: what can run here, how kernels are declared, launched and compiled.

Three cases: a GPU, Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``, chosen before numba is imported), or neither; in the
last one kernels can still be compiled (:func:`compile_ptx`), but not run.
"""

from __future__ import annotations

from pagedref_cuda._runtime.detect import SIMULATOR, device, ensure_available
from pagedref_cuda._runtime.kernels import KERNELS, Kernel, device_function, kernel, multiply_rounded
from pagedref_cuda._runtime.offline import compile_ptx, link_report
from pagedref_cuda._runtime.transfer import empty, readable, to_host, written

__all__ = [
    "KERNELS",
    "SIMULATOR",
    "Kernel",
    "compile_ptx",
    "device",
    "device_function",
    "empty",
    "ensure_available",
    "kernel",
    "link_report",
    "multiply_rounded",
    "readable",
    "to_host",
    "written",
]
