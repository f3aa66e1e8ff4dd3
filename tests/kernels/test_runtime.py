"""What runs, how it is chosen, and what is said where nothing does; each case in a process of its own, as numba and the
settings are read once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.meta.sources import ROOT

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

CALLS = """
import numpy as np
import pagedref_cuda
from pagedref import backends
from pagedref.errors import BackendUnavailable
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
DEVICE = """
from pagedref import backends
try: print(backends.get("cuda").device())
except backends.BackendUnavailable as error: print(error)
"""
NO_COMPILER = """
import numba.cuda.cudadrv.nvvm
numba.cuda.cudadrv.nvvm.NVVM = None
"""
GPU = subprocess.run(
    [sys.executable, "-c", "from numba import cuda; print(cuda.is_available())"],
    env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    capture_output=True,
    text=True,
    check=True,
).stdout.startswith("True")
SETTINGS = ("NUMBA_ENABLE_CUDASIM", "PAGEDREF_CUDA", "PAGEDREF_CUDA_CHECKS")


def run(code: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(GPU, reason="there is a GPU here")
def test_where_nothing_runs_every_call_says_what_to_try() -> None:
    from pagedref_cuda._runtime.detect import missing_compiler

    lines = run(("" if missing_compiler() else NO_COMPILER) + CALLS).splitlines()
    assert len(lines) == 8
    for line in lines:
        assert "NUMBA_ENABLE_CUDASIM=1" in line
        assert 'pip install "pagedref[cudasim]"' in line
        assert 'pip install "pagedref[cuda]"' in line


def test_without_numba_cuda_the_text_is_as_clear() -> None:
    text = run("import sys; sys.modules['numba'] = None\n" + DEVICE)
    assert "NUMBA_ENABLE_CUDASIM=1" in text
    assert 'pip install "pagedref[cudasim]"' in text
    assert 'pip install "pagedref[cuda]"' in text


def test_without_numba_cuda_the_emulator_can_be_imported_and_names_say_why_not() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from pagedref_cuda.emulator import Module\n"
        "import pagedref_cuda\n"
        "try: pagedref_cuda.emulate\n"
        "except ImportError as error: print(Module.__name__, error)\n"
        "print(hasattr(pagedref_cuda, '__wrapped__'))"
    )
    assert run(code) == (
        "Module pagedref_cuda.emulate needs numba-cuda: import of numba halted; None in sys.modules\nFalse\n"
    )


@pytest.mark.skipif(GPU, reason="there is a GPU here")
def test_emulator_is_taken_without_a_gpu_and_named() -> None:
    from pagedref_cuda._runtime import SIMULATOR
    from pagedref_cuda._runtime.detect import missing_compiler

    if SIMULATOR or missing_compiler():
        pytest.skip("the compiler is not installed")
    assert run(DEVICE) == "emulator (sm_90 PTX)\n"
    assert run(DEVICE, PAGEDREF_CUDA="emulator") == "emulator (sm_90 PTX)\n"
    assert "ran" in run(CALLS)
    assert "there is no GPU that numba-cuda can use, got PAGEDREF_CUDA=gpu" in run(DEVICE, PAGEDREF_CUDA="gpu")


@pytest.mark.parametrize("settings", [{"NUMBA_ENABLE_CUDASIM": "1"}, {"PAGEDREF_CUDA": "simulator"}])
def test_simulator_is_named(settings: dict[str, str]) -> None:
    assert run(DEVICE, **settings) == "simulator\n"
    if "PAGEDREF_CUDA" in settings:  # also where somebody has imported numba for the processor
        assert run(f"import numba\n{DEVICE}", **settings) == "simulator\n"


@pytest.mark.parametrize(
    ("settings", "before", "text"),
    [
        ({"PAGEDREF_CUDA": "gpu", "NUMBA_ENABLE_CUDASIM": "1"}, "", "PAGEDREF_CUDA=gpu and NUMBA_ENABLE_CUDASIM=1"),
        ({"PAGEDREF_CUDA": "emulator", "NUMBA_ENABLE_CUDASIM": "1"}, "", "the settings contradict each other"),
        ({"PAGEDREF_CUDA": "cpu"}, "", "PAGEDREF_CUDA is unknown, got 'cpu', need gpu, emulator or simulator"),
        (
            {"PAGEDREF_CUDA": "simulator"},
            "import numba.cuda",
            "numba.cuda was imported before the simulator was asked for",
        ),
    ],
)
def test_settings_that_contradict_are_one_line(settings: dict[str, str], before: str, text: str) -> None:
    said = run(f"{before}\n{DEVICE}", **settings)
    assert text in said
    assert said.count("\n") == 1


def test_an_unknown_level_of_checks_is_refused() -> None:
    code = (
        "from pagedref_cuda._runtime.checks import current_options\n"
        "from pagedref.errors import BackendUnavailable\n"
        "try: print(sorted(current_options().items()))\n"
        "except BackendUnavailable as error: print(error)"
    )
    assert "need all, default or none" in run(code, PAGEDREF_CUDA_CHECKS="some")
    assert "('races', True), ('strict', True), ('traffic', True)" in run(code, PAGEDREF_CUDA_CHECKS="all")
    assert "('races', False), ('strict', True)" in run(code)
    assert "('races', False), ('strict', False), ('traffic', False)" in run(code, PAGEDREF_CUDA_CHECKS="none")
