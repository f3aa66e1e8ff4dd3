"""What a replay adds up, in memory that does not depend on how long it runs."""

from __future__ import annotations

from math import floor, log

__all__ = ["FEW", "POINTS", "Quantiles", "Series"]

WIDTH = log(1.01)  # a bin of `Quantiles` is one percent wide
POINTS = 2048
FEW = 512


class Quantiles:
    """Distribution of times in bins of one percent: exact mean and largest, quantiles to half a percent."""

    def __init__(self) -> None:
        self.count = self.total = self.largest = 0
        self._bins: dict[int, int] = {}

    def add(self, value: int) -> None:
        """Take in a time in nanoseconds."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        key = floor(log(value) / WIDTH) if value > 0 else -1
        self._bins[key] = self._bins.get(key, 0) + 1

    @property
    def mean(self) -> float:
        """Mean in seconds, 0 if there is none."""
        return self.total / self.count / 1e9 if self.count else 0.0

    def at(self, part: float) -> float:
        """Return the time in seconds that a part of all does not exceed."""
        left = part * self.count
        for key in sorted(self._bins):
            left -= self._bins[key]
            if left <= 0:
                middle = 1.01 ** (key + 0.5) if key >= 0 else 0.0
                return min(middle, self.largest) / 1e9
        return 0.0


class Series:
    """Points over time, at most `most`: when there are more, every second one goes, and fewer are taken from then on.

    Parameters
    ----------
    columns : tuple of str
        Names of the numbers of a point; the first is the time.
    most : int
        Points at most.
    """

    def __init__(self, columns: tuple[str, ...], most: int = POINTS) -> None:
        self.columns, self.most = columns, most
        self.points: list[tuple[float, ...]] = []
        self.extra: list[object] = []  # beside each point, whatever is wanted
        self._every, self._seen = 1, 0

    def wants(self) -> bool:
        """Tell whether the next point will be kept, and count it."""
        self._seen += 1
        return self._seen % self._every == 0

    def add(self, point: tuple[float, ...], extra: object = None) -> None:
        """Keep a point."""
        self.points.append(point)
        self.extra.append(extra)
        if len(self.points) > self.most:
            del self.points[1::2], self.extra[1::2]
            self._every *= 2

    def column(self, name: str) -> list[float]:
        """Return one number of all points."""
        at = self.columns.index(name)
        return [point[at] for point in self.points]
