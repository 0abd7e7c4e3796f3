"""Tables of measurements: gzipped CSV files, and matrix products measured on a grid of (m, n, k),
interpolated between its sizes."""

import csv
import gzip
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path

from tandem.cost.curves import Curve, curve
from tandem.facts.errors import InvalidConfiguration

Row = dict[str, str]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a gzipped CSV file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)
    except (OSError, EOFError) as problem:
        raise InvalidConfiguration(f"tables: {path} cannot be read: {problem}") from problem


class GemmTable:
    """Seconds of [m, k] x [k, n] by sizes. Lines in n and in k: a product costs about
    a + b n + c k + d n k, of which that is the exact interpolation."""

    def __init__(self, kind: str, rows: Iterable[Mapping[str, str]]) -> None:
        self._points: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for row in rows:
            if row["gemm_dtype"] == kind:
                size = (int(row["n"]), int(row["k"]))
                point = (float(row["m"]), float(row["latency"]) * 1e-3)
                self._points.setdefault(size, []).append(point)
        if not self._points:
            raise InvalidConfiguration(f"tables: no matrix products were measured in {kind}")
        self._widths = sorted({n for n, _ in self._points})
        self._depths = sorted({k for _, k in self._points})

    def by_rows(self, n: float, k: float) -> Curve:
        """Seconds by m."""
        parts = [
            (share_n * share_k, dict(self._points[width, depth]))
            for width, share_n in _shares(self._widths, n)
            for depth, share_k in _shares(self._depths, k)
        ]
        heights = sorted(set.intersection(*(set(points) for _, points in parts)))
        return curve((m, fsum(share * points[m] for share, points in parts)) for m in heights)


def _shares(grid: Sequence[int], size: float) -> list[tuple[int, float]]:
    """The grid sizes around one and their shares: its own alone if it is on the grid or below it,
    beyond the grid along the last line."""
    right = bisect_right(grid, size)
    if not right:
        return [(grid[0], 1.0)]
    if grid[right - 1] == size:
        return [(grid[right - 1], 1.0)]
    right = min(right, len(grid) - 1)
    low, high = grid[right - 1], grid[right]
    share = (size - low) / (high - low)
    return [(low, 1.0 - share), (high, share)]
