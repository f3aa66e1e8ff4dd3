"""``import pagedref`` is cheap: at most 60 ms over ``import numpy``, and nothing heavy comes with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIMIT_MS = 60.0
RUNS = 7
# Loaded where they are used, never by the package itself.
HEAVY = ["scipy", "numba", "matplotlib", "gguf", "safetensors", "tokenizers", "torch", "pytest", "pagedref_cuda"]
PROBE = """
import json, sys, time
import numpy
before = time.perf_counter()
{statement}
cost = time.perf_counter() - before
print(json.dumps([cost * 1e3, sorted(sys.modules)]))
"""


def probe(statement: str, runs: int) -> tuple[float, list[str]]:
    """Run a statement in fresh processes; return its least cost in ms after numpy, and the modules then loaded."""
    results = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True
        )
        results.append(json.loads(done.stdout))
    return min(cost for cost, _ in results), results[0][1]


def test_import_is_cheap_and_light() -> None:
    cost, loaded = probe("import pagedref", RUNS)
    assert cost <= LIMIT_MS, f"import pagedref takes {cost:.1f} ms over numpy, at most {LIMIT_MS} ms"
    heavy = [name for name in HEAVY if name in loaded]
    assert not heavy, f"import pagedref loads {heavy}"


@pytest.mark.parametrize("statement", ["import time; time.sleep(0.065)", "import scipy.special"])
def test_probe_can_fail(statement: str) -> None:
    cost, loaded = probe(statement, 1)
    assert cost > LIMIT_MS or "scipy" in loaded
