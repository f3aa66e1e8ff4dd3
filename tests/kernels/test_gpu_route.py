"""The route of a GPU, walked without one: all of Numba but the driver, on streams that are as late as they may be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.meta.sources import ROOT

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

from pagedref_cuda._runtime import SIMULATOR
from pagedref_cuda._runtime.detect import missing_compiler

pytestmark = pytest.mark.skipif(SIMULATOR or bool(missing_compiler()), reason="the compiler is not installed")


@pytest.fixture(scope="module")
def walked() -> dict[str, str]:
    """Return what each walk said; all of them in one process, which believes in a GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.gpu_routes"], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return {name: text for name, _, text in lines}


@pytest.mark.parametrize(
    "name",
    [
        "host_arrays",
        "read_only_and_strided_host_arrays",
        "arrays_that_stay_on_the_device",
        "arrays_on_a_stream",
        "arrays_on_two_streams",
        "device_arrays_first_and_a_stream_later",
        "host_caches_and_slots_on_a_stream",
        "metadata_on_the_device_is_not_waited_for",
        "room_is_used_again_on_its_own_stream_only",
        "sizes_from_numpy",
        "frames_through_pinned_buffers",
        "wrong_metadata_raises_when_a_result_is_read",
        "numbers_of_two_bytes",
        "fast_rungs_on_a_stream",
        "nothing_is_launched_for_nothing",
        "parts_of_device_arrays",
        "layers_and_a_model",
    ],
)
def test_walk(name: str, walked: dict[str, str]) -> None:
    assert walked[name] == "ok"


def test_launch_arguments_are_what_the_driver_takes() -> None:
    """What `flatten` gives is what cuda.core knows; NumPy's integers are refused as sizes of a grid."""
    import numpy as np

    core = pytest.importorskip("cuda.core")
    holder = pytest.importorskip("cuda.core._kernel_arg_handler").ParamHolder
    numbers = [np.dtype(f"{kind}{size}").type(1) for kind, size in zip("iiiiuuuuff", (1, 2, 4, 8) * 2 + (4, 8))]
    assert holder((0, 1 << 40, True, *numbers)).ptr
    assert core.LaunchConfig(grid=(3,), block=(128,), shmem_size=5).grid == (3, 1, 1)
    with pytest.raises(ValueError, match="must be an int"):
        core.LaunchConfig(grid=(np.int64(3),), block=(128,))
