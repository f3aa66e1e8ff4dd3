"""The parts of the GPU run, each in a process of its own: a fault in one does not stop the others."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

Report = dict[str, Any]
Save = Callable[[Report], None]
ROOT = Path(__file__).resolve().parents[1]


OVER = "stopped when its time was over"


def bounded(command: list[str], seconds: float) -> tuple[str, int | None]:
    """Run a command from the root of the repository; return output and exit status, None if its time was over.

    All of it ends then, what it started too.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=max(1.0, seconds))[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


class Timer:
    """Seconds that are left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the part must end."""
        return self._end - time.monotonic()


def environment(timer: Timer, quick: bool, save: Save) -> None:
    """What the numbers are measured on."""
    import pagedref
    import pagedref_cuda
    from benchmarks import gpu_peers
    from pagedref_cuda import _runtime

    report: Report = {
        "runs on": pagedref_cuda.device(),
        "pagedref": pagedref.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "compiled for": "sm_{}{}".format(*_runtime.compute_capability()),
    }
    for package in ("numba-cuda", "numba", "numpy", "ml_dtypes", "cuda-toolkit", "nvidia-nvjitlink"):
        try:
            report[package] = version(package)
        except PackageNotFoundError:
            report[package] = "missing"
    report |= gpu_peers.installed()
    if _runtime.mode() == "gpu":
        from numba import cuda

        from benchmarks.gpu_timing import Clock

        device = cuda.get_current_device()
        names = {"MULTIPROCESSOR_COUNT": "multiprocessors", "L2_CACHE_SIZE": "L2 bytes", "CLOCK_RATE": "clock kHz"}
        report |= {ours: int(getattr(device, theirs, 0)) for theirs, ours in names.items()}
        report["memory bytes"] = int(cuda.current_context().get_memory_info().total)
        smi = shutil.which("nvidia-smi")
        if smi:
            query = [smi, "--query-gpu=driver_version,clocks.max.mem,power.limit", "--format=csv,noheader"]
            report["driver, memory clock, power limit"] = subprocess.run(
                query, capture_output=True, text=True, timeout=20
            ).stdout.strip()
        save(report)
        report["copy bytes per second"] = Clock().copy_bandwidth()
    save(report)


def conformance(timer: Timer, quick: bool, save: Save) -> None:
    """Every check of the suite on the device, then the tests of it, if pytest is here and time is left."""
    import pagedref_cuda
    from pagedref.conformance import CHECKS
    from pagedref.conformance.layer_checks import LAYER_CHECKS
    from pagedref.contract import DTYPES
    from pagedref_cuda import _runtime, layers

    report: Report = {"passed": 0, "failed": {}, "not reached": 0}
    quick = quick or _runtime.mode() != "gpu"

    def attempt(name: str, check: Callable[[], None]) -> None:
        if timer.left < 5:
            report["not reached"] += 1
            return
        try:
            check()
            report["passed"] += 1
        except Exception as error:
            report["failed"][name] = f"{type(error).__name__}: {error}"[:300]

    for name, layer_check in list(LAYER_CHECKS.items())[: 3 if quick else None]:
        for seed in range(1 if quick else 5):
            attempt(f"{name} {seed}", lambda: layer_check(layers, np.random.default_rng(seed)))  # noqa: B023
    save(report)
    for dtype in [kind for kind in ("float32",) if kind in DTYPES["cuda"]["storage"]]:
        for name, check in list(CHECKS.items())[: 4 if quick else None]:
            attempt(f"{name} {dtype}", lambda: check(pagedref_cuda, dtype))  # noqa: B023
    save(report)
    if quick or importlib.util.find_spec("pytest") is None or timer.left < 20:
        return
    command = [sys.executable, "-m", "pytest", "tests/conformance", "tests/kernels", "--pagedref-backend", "cuda", "-q"]
    output, status = bounded([*command, "-p", "no:cacheprovider", "--maxfail=25"], timer.left - 5)
    lines = output.strip().splitlines() or ["?"]
    report["pytest failures"] = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    report["pytest"] = lines[-1]
    if status is None:
        marks = "".join(re.findall(r"^[.FEsx]+", output, re.MULTILINE))
        report["pytest"] = f"{OVER}: {len(marks)} tests done, {marks.count('F')} failed"
    save(report)


def _measure(case: Any, row: Report, clock: Any, bandwidth: float) -> None:
    """Enter the counts or the times of a case into a row."""
    from benchmarks import gpu_timing

    call = case.make()
    with gpu_timing.recorded() as launches:
        call()
    row["kernels"] = [kernel.name for kernel, *_ in launches]
    if clock is None:
        row["counts"] = gpu_timing.counts_of(launches)
        return
    row["time"] = clock.seconds(lambda: gpu_timing.repeat(launches))
    row["call"] = clock.call_seconds(call)
    row["share of copy"] = case.num_bytes / row["time"]["median"] / bandwidth


def table(group: str) -> Callable[[Timer, bool, Save], None]:
    """Return the part that measures one group of cases: all of ours first, then what peers do, while time is left."""

    def measure(timer: Timer, quick: bool, save: Save) -> None:
        from benchmarks import gpu_cases, gpu_peers, gpu_timing
        from pagedref_cuda import _runtime

        on_gpu = _runtime.mode() == "gpu"
        clock = gpu_timing.Clock() if on_gpu else None
        bandwidth = clock.copy_bandwidth() if clock is not None else 0.0
        cases = list(gpu_cases.cases(group, tiny=quick or not on_gpu))
        rows: list[Report] = [
            {"name": case.name, "bytes": case.num_bytes, "flops": case.flops, "peers": {}, "error": "not reached"}
            for case in cases
        ]

        def attempt(row: Report, key: str, work: Callable[[], object]) -> Any:
            try:
                return work()
            except Exception as error:
                row[key] = f"{type(error).__name__}: {error}"[:300]
                return None

        for case, row in zip(cases, rows, strict=True):
            if timer.left > 8:
                del row["error"]
                attempt(row, "error", lambda: _measure(case, row, clock, bandwidth))  # noqa: B023
                save({"rows": rows})
        for case, row in zip(cases, rows, strict=True):
            for name, prepare in gpu_peers.peers(case) if clock is not None else ():
                if timer.left > 6:
                    found = attempt(row["peers"], name, lambda: clock.seconds(prepare(), 0.3))  # noqa: B023
                    if found is not None:
                        row["peers"][name] = found
                    save({"rows": rows})
        save({"rows": rows})

    return measure


def model(timer: Timer, quick: bool, save: Save) -> None:
    """Tokens per second of a model wholly in kernels: SmolLM2 if its file is here, else (and on the emulator) tiny."""
    from pagedref.models.checkpoint import load_checkpoint
    from pagedref.models.hub import PUBLISHED, cache_directory, resolve_model
    from pagedref.models.transformer import Transformer
    from pagedref_cuda import _runtime
    from pagedref_cuda.runner import Runner

    there = (cache_directory() / PUBLISHED["smollm2"].filename).exists()
    on_gpu = _runtime.mode() == "gpu"
    name = "smollm2" if there and on_gpu and not quick else "tiny"
    report: Report = {"model": name, "note": "" if there else "the file of SmolLM2 is not here", "runs": {}}
    tokens = 64 if on_gpu and not quick else 4
    prompt = list(range(5, 5 + (128 if on_gpu and not quick else 8)))

    def run(transformer: Any, batch: int, count: int) -> tuple[list[int], float, float]:
        pages = batch * -(-(len(prompt) + count) // 16)
        make = getattr(transformer, "make_cache", None)
        spec = transformer.cache_spec(16)
        if make is None:
            from pagedref.kv_cache import PagedKVCache

            cache = PagedKVCache(spec, pages)
        else:
            cache = make(spec, pages)
        sequences = [cache.add() for _ in range(batch)]
        new, found, seconds = [prompt] * batch, [], []
        for _ in range(count):
            start = time.perf_counter()
            step = cache.begin(sequences, [len(ids) for ids in new])
            ends = np.cumsum(step.num_tokens) - 1
            best = transformer.greedy(cache, step, np.concatenate([np.asarray(ids) for ids in new]), ends)
            cache.commit(step)
            seconds.append(time.perf_counter() - start)
            found.append(int(best[0]))
            new = [[int(token)] for token in best]
        return found, seconds[0], sum(seconds[2:]) / max(1, len(seconds[2:]))

    def load() -> Any:
        return load_checkpoint(resolve_model(name))

    checkpoint = load()
    expected, _, _ = run(Transformer(checkpoint.config, checkpoint.weights), 1, min(tokens, 16))
    for dtype in ("float32",) if quick or not on_gpu else ("float32", "bfloat16"):
        checkpoint = load()
        runner = Runner(checkpoint.config, checkpoint.weights, weight_dtype=dtype)
        for batch in (1,) if quick or not on_gpu else (1, 8, 64):
            if timer.left < 10:
                report["runs"][f"{dtype}, batch {batch}"] = "not reached"
                continue
            run(runner, batch, 2)  # compiled and warm
            found, first, each = run(runner, batch, tokens)
            entry: Report = {"same ids as NumPy": found[: len(expected)] == expected}
            if on_gpu:
                entry |= {"seconds to first token": first, "tokens per second": batch / each}
            report["runs"][f"{dtype}, batch {batch}"] = entry
            save(report)
    save(report)


def sanitizer(timer: Timer, quick: bool, save: Save) -> None:
    """compute-sanitizer over tiny shapes, if it is here."""
    from pagedref_cuda import _runtime

    tool = shutil.which("compute-sanitizer")
    if tool is None or _runtime.mode() != "gpu":
        save({"note": "compute-sanitizer is not here" if tool is None else "no GPU: the emulator has its own checks"})
        return
    report: Report = {}
    for check in ("memcheck", "racecheck"):
        if timer.left < 10:
            report[check] = "not reached"
            continue
        command = [tool, "--tool", check, sys.executable, "-m", "benchmarks.gpu", "--section", "decode", "--quick"]
        output, status = bounded(command, timer.left / 2)
        lines = [line for line in output.splitlines() if "SUMMARY" in line]
        report[check] = lines[-1].strip("= ") if lines else OVER if status is None else f"no summary, status {status}"
        save(report)
    save(report)


SECTIONS: dict[str, tuple[float, Callable[[Timer, bool, Save], None]]] = {
    # name: (share of the time, part)
    "environment": (0.06, environment),
    "decode": (0.24, table("decode")),
    "prefill": (0.08, table("prefill")),
    "cache": (0.06, table("cache")),
    "layers": (0.12, table("layers")),
    "model": (0.14, model),
    "conformance": (0.22, conformance),
    "sanitizer": (0.06, sanitizer),
}
