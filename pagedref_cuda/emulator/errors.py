"""Everything that the emulator objects to is an EmulatorError."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base class; `.line` is the 1-based PTX line (or None), `.loc` the (file, line) of the source when known."""

    line: int | None = None
    loc: tuple[str, int] | None = None


class PtxSyntaxError(EmulatorError):
    """The text is not PTX this parser understands."""


class Unsupported(EmulatorError):
    """A legal-looking instruction, modifier or feature that the emulator does not model (it never guesses)."""


class MemoryFault(EmulatorError):
    """Out-of-bounds, read-only or misaligned access."""


class UninitialisedRead(EmulatorError):
    """A read of shared/local memory or of a register that nothing has written."""


class AsyncHazard(EmulatorError):
    """The destination of a cp.async was used before the copy was waited for."""


class RaceError(EmulatorError):
    """Two threads touch the same shared byte in one barrier interval, at least one of them writing."""


class BarrierError(EmulatorError):
    """Deadlock, divergent barrier, or a warp-collective whose lanes cannot all arrive."""


class Trap(EmulatorError):
    """The kernel executed trap / brkpt / an assertion."""


class StepLimit(EmulatorError):
    """The launch executed more group steps than max_steps."""
