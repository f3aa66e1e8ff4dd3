"""What runs, and what is said where nothing does; each case in a process of its own, as numba decides once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.meta.sources import ROOT

pytest.importorskip("pagedref_cuda", reason="numba-cuda is not installed", exc_type=ImportError)

CALLS = """
import numpy as np
from numba import cuda
import pagedref_cuda
from pagedref import backends
from pagedref.errors import BackendUnavailable
if cuda.is_available():
    print("GPU")
    raise SystemExit
one = np.zeros((1, 1, 1), np.float32)
cache = np.zeros((1, 1, 1, 1), np.float32)
index = np.zeros(1, np.int64)
pages = np.array([0, 1]), index, index + 1
calls = [
    lambda: backends.get("cuda"),
    lambda: pagedref_cuda.device(),
    lambda: pagedref_cuda.append_kv(one, one, cache, cache, index),
    lambda: pagedref_cuda.gather_kv(cache, cache, *pages),
    lambda: pagedref_cuda.copy_frames([cache], index[:0], index[:0]),
    lambda: pagedref_cuda.merge_states(cache, one),
    lambda: pagedref_cuda.paged_decode(one, cache, cache, *pages),
    lambda: pagedref_cuda.paged_prefill(one, np.array([0, 1]), cache, cache, *pages),
]
for call in calls:
    try:
        call()
    except BackendUnavailable as error:
        print(error)
    else:
        print("ran")
"""


def run(code: str, *, simulator: bool) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    if simulator:
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_without_gpu_or_simulator_every_call_says_what_to_try() -> None:
    lines = run(CALLS, simulator=False).splitlines()
    if lines == ["GPU"]:
        pytest.skip("there is a GPU here")
    assert len(lines) == 8
    for line in lines:
        assert "NUMBA_ENABLE_CUDASIM=1" in line
        assert 'pip install "pagedref[cudasim]"' in line
        assert 'pip install "pagedref[cuda]"' in line


def test_without_numba_cuda_the_text_is_as_clear() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from pagedref import backends\n"
        "try: backends.get('cuda')\n"
        "except backends.BackendUnavailable as error: print(error)"
    )
    text = run(code, simulator=False)
    assert "NUMBA_ENABLE_CUDASIM=1" in text
    assert 'pip install "pagedref[cudasim]"' in text
    assert 'pip install "pagedref[cuda]"' in text


def test_simulator_is_named() -> None:
    code = "from pagedref import backends; print(backends.get('cuda').device())"
    assert run(code, simulator=True) == "simulator\n"
