"""How the tests of the fast rungs make calls, choose kernels and change kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda as twin
from pagedref.call import AttentionCall, attention_call
from pagedref.conformance.agreement import assert_state
from pagedref.conformance.cases import PagedCase, make_case, oracle
from pagedref.errors import BackendUnavailable
from pagedref_cuda import _runtime
from pagedref_cuda.fast import choose, prefill, steps

Array = npt.NDArray[Any]


def runs_compiled() -> bool:
    """Tell whether compiled kernels can run here: warps do not exist in the simulator."""
    try:
        return bool(_runtime.mode() in ("gpu", "emulator"))
    except BackendUnavailable:
        return False


COMPILED = pytest.mark.skipif(not runs_compiled(), reason="needs a GPU or the emulator")


def call_of(case: PagedCase, operation: str = "paged_decode") -> AttentionCall:
    """Return the checked call of a case."""
    keywords = {**case.keywords, **case.stored}
    names = ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")
    arrays = {name: getattr(case, name) for name in names}
    arrays |= {name: keywords.pop(name, None) for name in ("alibi_slopes", "sinks")}
    if operation == "paged_prefill":
        arrays["qo_indptr"] = case.qo_indptr
    return attention_call(operation, "cuda", arrays, keywords)


def decode_choice(call: AttentionCall, dtype: Any, rung: int = 5) -> choose.Choice | None:
    """Return the kernel of a decode call."""
    kinds = choose.kinds_of(call, dtype)
    if kinds is None:
        return None
    heads = call.dims["head_dim"], call.dims["v_head_dim"], call.group_size
    return choose.choose_decode(*heads, *kinds, _runtime.compute_capability(), rung)


def decode(case: PagedCase, rung: int = 5, split: int | None = None) -> Any:
    """Decode a case by one rung, with its own split or another."""
    call = call_of(case)
    choice = decode_choice(call, case.q.dtype, rung)
    assert choice is not None, "no fast kernel for this case"
    if split is not None:
        choice = replace(choice, split=split)
    state = steps.run_rows(call, case.q, case.k_cache, case.v_cache, choice)
    assert state is not None
    return state


def tiles(case: PagedCase) -> Any:
    """Prefill a case by tiles of rows."""
    call = call_of(case, "paged_prefill")
    kinds = choose.kinds_of(call, case.q.dtype)
    assert kinds is not None
    choice = choose.choose_prefill(
        call.dims["head_dim"], call.dims["v_head_dim"], *kinds, _runtime.compute_capability()
    )
    assert choice is not None, "no fast kernel for this case"
    state = prefill.run_prefill(call, case.q, case.k_cache, case.v_cache, choice)
    assert state is not None
    return state


def agrees(case: PagedCase, state: Any, what: str = "state") -> None:
    """Demand agreement with the oracle, and the type of the output."""
    assert state.out.dtype == case.q.dtype
    assert state.lse.dtype == np.float32
    assert_state(state, oracle(case), what)


def pairwise(axes: dict[str, tuple[Any, ...]], seed: int) -> list[dict[str, Any]]:
    """Choose cases in which every two values of two axes meet."""
    names = list(axes)
    left = {
        (a, i, b, j) for a, b in combinations(names, 2) for i, j in product(range(len(axes[a])), range(len(axes[b])))
    }
    rng = np.random.default_rng(seed)
    cases = []
    while left:
        a, i, b, j = min(left)
        best: tuple[int, dict[str, int]] = (-1, {})
        for _ in range(30):
            row = {name: int(rng.integers(len(values))) for name, values in axes.items()} | {a: i, b: j}
            met = {(x, row[x], y, row[y]) for x, y in combinations(names, 2)} & left
            best = max(best, (len(met), row), key=lambda pair: pair[0])
        row = best[1]
        left -= {(x, row[x], y, row[y]) for x, y in combinations(names, 2)}
        cases.append({name: axes[name][at] for name, at in row.items()})
    return cases


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two states are equal to the bit."""
    return all(
        np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes() for x, y in zip(a, b, strict=True)
    )


@contextmanager
def changed(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Lend a copy of a module of the fast rungs in which a piece of text is another one.

    The chooser takes its kernels from the copy meanwhile.
    """
    original = import_module(f"pagedref_cuda.fast.{module}")
    text = Path(str(original.__file__)).read_text()
    assert text.count(old) >= 1, f"{module} does not say {old!r}"
    copy = ModuleType(f"changed_{module}")
    copy.__file__ = original.__file__
    exec(compile(text.replace(old, new), f"changed {module}", "exec"), vars(copy))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, copy.__name__, copy)
        for cached in (choose.choose_decode, choose.choose_prefill):
            cached.cache_clear()
        if hasattr(choose, module):
            patch.setattr(choose, module, vars(copy)[module])
        yield copy
    for cached in (choose.choose_decode, choose.choose_prefill):
        cached.cache_clear()


__all__ = [
    "COMPILED", "agrees", "call_of", "changed", "decode", "decode_choice", "make_case",
    "pairwise", "same_bits", "tiles", "twin",
]  # fmt: skip
