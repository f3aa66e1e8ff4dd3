"""CUDA C++ to PTX with NVRTC: how Numba's helpers of half and bfloat16 arithmetic are compiled without a driver."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from pagedref.errors import BackendUnavailable

__all__ = ["cpp_to_ptx"]

_CPP: dict[tuple[bytes, tuple[int, int], bool], bytes] = {}


def cpp_to_ptx(source: str | bytes, name: str, compute_capability: tuple[int, int], fma: bool) -> bytes:
    """Compile CUDA C++ to PTX, asking no driver.

    Parameters
    ----------
    source : str or bytes
        The text.
    name : str
        For messages.
    compute_capability : pair of int
        Such as (9, 0).
    fma : bool
        Whether products and sums may be fused.

    Returns
    -------
    bytes
        PTX.

    Raises
    ------
    BackendUnavailable
        It does not compile, or the compiler's packages do not fit together.
    """
    text = source.encode() if isinstance(source, str) else bytes(source)
    key = text, compute_capability, fma
    if key in _CPP:
        return _CPP[key]
    pathfinder: Any = import_module("cuda.pathfinder")
    nvrtc: Any = import_module("cuda.bindings.nvrtc")
    compiler: Any = import_module("numba.cuda.compiler")
    paths: Any = import_module("numba.cuda.cuda_paths")

    def ok(result: Any, *values: Any) -> Any:
        if int(result) != 0:
            raise BackendUnavailable(f"compile_ptx: NVRTC failed, got {result}, need its packages of one version")
        return values[0] if values else None

    root = os.path.dirname(os.path.abspath(compiler.__file__))
    major = ok(*nvrtc.nvrtcVersion()[:2])
    folders = [
        os.path.join(root, "include", str(major)),
        paths.get_cuda_paths()["include_dir"].info,
        os.path.join(root, "memory_management"),
    ]
    cccl = pathfinder.locate_nvidia_header_directory("cccl")
    if cccl is not None:
        folders.append(cccl.abs_path)
    architecture = "--gpu-architecture=compute_{}{}".format(*compute_capability)
    arguments = [architecture, "-rdc=true", f"-fmad={'true' if fma else 'false'}", *(f"-I{path}" for path in folders)]
    program = ok(*nvrtc.nvrtcCreateProgram(text, str(name).encode(), 0, [], []))
    (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [item.encode() for item in arguments])
    if int(result) != 0:
        log = b" " * ok(*nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise BackendUnavailable(f"compile_ptx: {name} does not compile, got {log.decode()[:2000]}, need CUDA C++")
    ptx: bytes = b" " * ok(*nvrtc.nvrtcGetPTXSize(program))
    ok(*nvrtc.nvrtcGetPTX(program, ptx))
    nvrtc.nvrtcDestroyProgram(program)
    _CPP[key] = ptx
    return ptx
