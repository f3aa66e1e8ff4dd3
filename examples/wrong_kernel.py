"""Find out what is wrong with a kernel, and what is slow about it, without a GPU.

A matrix is transposed in three ways. The first writes one sector per number. The second goes through a tile of shared
memory, and all 32 lanes meet in one bank. The third pads the tile by a column. A fourth forgets a barrier.
It needs ``pip install "pagedref[cuda]"``: the kernels are compiled, and what was compiled is what runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref.errors import BackendUnavailable

SIZE, TILE, ROWS = 64, 32, 8


def kernels(cuda: Any) -> dict[str, Any]:
    float32 = np.float32

    def plain(x, y):
        column, row = cuda.grid(2)
        for r in range(row, SIZE, cuda.gridDim.y * ROWS):
            y[column, r] = x[r, column]

    def through_a_tile(width: int, wait: bool) -> Any:
        def tiled(x, y):
            tile = cuda.shared.array((TILE, width), float32)
            lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
            left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
            for r in range(warp, TILE, ROWS):
                tile[r, lane] = x[top + r, left + lane]
            if wait:
                cuda.syncthreads()
            for r in range(warp, TILE, ROWS):
                y[left + r, top + lane] = tile[lane, r]

        return tiled

    return {
        "plain": plain,
        "tile": through_a_tile(TILE, True),
        "padded tile": through_a_tile(TILE + 1, True),
        "no barrier": through_a_tile(TILE + 1, False),
    }


def measure() -> dict[str, tuple[float, float, int]]:
    """Return for each kernel the sectors per load and per store, and the worst conflict of banks."""
    from numba import cuda

    import pagedref_cuda
    from pagedref_cuda.emulator import RaceError

    x = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    found = {}
    for name, kernel in kernels(cuda).items():
        y = np.zeros_like(x)
        try:
            stats = pagedref_cuda.emulate(kernel, (2, 2), (TILE, ROWS), x, y)
        except RaceError as error:
            found[name] = (0.0, 0.0, 0)
            print(f"{name:12} {str(error).split(' (')[0]}")
            continue
        assert np.array_equal(y, x.T)
        traffic = stats.global_by_width()
        load, store = (traffic[kind, 4]["sectors"] / traffic[kind, 4]["requests"] for kind in ("ld", "st"))
        ways = max((row["max_ways"] for row in stats.accesses() if row["space"] == "shared"), default=0)
        found[name] = (load, store, ways)
        print(f"{name:12} {load:4.0f} sectors per load, {store:4.0f} per store, worst conflict of banks {ways}-way")
    return found


try:
    result = measure()
except (ImportError, BackendUnavailable) as error:
    print(f'skipped: {error}; pip install "pagedref[cuda]"')
    result = {}

assert result in ({}, {"plain": (4, 32, 0), "tile": (4, 4, 32), "padded tile": (4, 4, 1), "no barrier": (0, 0, 0)})
