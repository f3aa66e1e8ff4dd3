"""How long a step takes: the stated model of a machine, in whole nanoseconds.

A step that computes `t` tokens (prompt tokens that are read, and one for each row that decodes) while the running
requests store `c` tokens takes::

    step + token * t + cached * c + (bytes moved between tiers) / bandwidth

Whole numbers add up to the same in any order, so a run of steps of which nothing happens is passed in one go, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number

__all__ = ["UNIT", "Service"]

NANO = 10**9


@dataclass(frozen=True)
class Service:
    """The cost of a step.

    Parameters
    ----------
    step : int
        Nanoseconds of a step by itself: the weights are read once.
    token : int
        Nanoseconds for each token that is computed.
    cached : int
        Nanoseconds for each stored token of a running request: it is read once in each step. A request in a sliding
        window reads what is inside.
    host_bandwidth, disk_bandwidth : float
        Bytes per second between the pool and the slower tiers; nothing else is computed meanwhile.

    Notes
    -----
    The defaults are what the data sheet of one NVIDIA A100 with 40 GB says of a model of 13 billion parameters in 16
    bits, OPT-13B: 26 GB of weights and 819,200 bytes of a cached token at 1,555 GB/s, 26 GFLOP a token at half of 312
    TFLOP/s; PCIe 4.0 at 25 GB/s, and a disk at 5 GB/s. They are computed from these numbers, not fitted to anything.

    Examples
    --------
    >>> Service().seconds(computed=2048, cached=0)
    0.358736
    >>> UNIT.seconds(computed=2048, cached=0)
    1.0
    """

    step: int = 16_720_000
    token: int = 167_000
    cached: int = 527
    host_bandwidth: float = 25e9
    disk_bandwidth: float = 5e9

    def __post_init__(self) -> None:
        for name in ("step", "token", "cached"):
            whole_number("Service", name, getattr(self, name))
        if self.step + self.token == 0:
            raise ContractError("Service: step is wrong, got 0 with token 0, need a step that takes time")
        for name in ("host_bandwidth", "disk_bandwidth"):
            if not getattr(self, name) > 0:
                raise ContractError(f"Service: {name} is wrong, got {getattr(self, name)}, need a number > 0")

    def duration(self, computed: int, cached: int) -> int:
        """Return the nanoseconds of a step.

        Parameters
        ----------
        computed, cached : int
            Tokens that are computed, and that are read.

        Returns
        -------
        int
        """
        return self.step + self.token * computed + self.cached * cached

    def seconds(self, computed: int, cached: int) -> float:
        """Return the seconds of a step (see `duration`)."""
        return self.duration(computed, cached) / NANO

    def moving(self, host: int, disk: int, bytes_per_token: int) -> int:
        """Return the nanoseconds of moving slots between the pool and slower tiers.

        Parameters
        ----------
        host, disk : int
            Slots.
        bytes_per_token : int
            Bytes of one.

        Returns
        -------
        int
        """
        time = host / self.host_bandwidth + disk / self.disk_bandwidth
        return round(time * bytes_per_token * NANO)


UNIT = Service(step=NANO, token=0, cached=0)
"""Every step takes one second, whatever is in it: results count steps."""
