"""PTX to machine code with nvJitLink (``pagedref[cuda]``)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pagedref.errors import BackendUnavailable

__all__ = ["link", "link_report"]


def link(
    ptx: str | list[str], compute_capability: tuple[int, int] = (9, 0), max_registers: int | None = None
) -> tuple[bytes, str]:
    """Assemble PTX to machine code.

    Parameters
    ----------
    ptx : str or list of str
        From :func:`compile_ptx`; several texts are linked together.
    compute_capability : pair of int
        Such as (9, 0).
    max_registers : int, optional
        Most registers of a thread.

    Returns
    -------
    cubin : bytes
        Machine code.
    log : str
        What the assembler reports: registers, stack, spills.

    Raises
    ------
    BackendUnavailable
        nvJitLink is not installed.
    """
    try:
        linker: Any = import_module("cuda.bindings.nvjitlink")
        arguments = ["-arch=sm_{}{}".format(*compute_capability), "-verbose"]
        if max_registers is not None:
            arguments.append(f"-maxrregcount={max_registers}")
        handle = linker.create(len(arguments), arguments)
    except Exception as error:
        raise BackendUnavailable(
            f'link_report: nvJitLink cannot be loaded, got {error}, need pip install "pagedref[cuda]"'
        ) from error
    try:
        for number, text in enumerate([ptx] if isinstance(ptx, str) else ptx):
            data = text.encode()
            linker.add_data(handle, linker.InputType.PTX, data, len(data), f"{number}.ptx")
        linker.complete(handle)
        log = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, log)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
    finally:
        linker.destroy(handle)
    return bytes(cubin), log.decode(errors="replace").rstrip("\0")


def link_report(ptx: str, compute_capability: tuple[int, int] = (9, 0), max_registers: int | None = None) -> str:
    """Assemble PTX and return what the assembler reports: registers, stack, spills.

    Parameters
    ----------
    ptx : str
        From :func:`compile_ptx`.
    compute_capability : pair of int
        Such as (9, 0).
    max_registers : int, optional
        Most registers of a thread.

    Returns
    -------
    str
        The log of nvJitLink.

    Raises
    ------
    BackendUnavailable
        nvJitLink is not installed.
    """
    return link(ptx, compute_capability, max_registers)[1]
