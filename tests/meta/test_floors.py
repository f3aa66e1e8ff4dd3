"""A module imports only what stands on a lower floor (architecture): read from the source, lazy imports too."""

from __future__ import annotations

import ast

import pytest

from tests.meta.sources import Import, all_modules, imports, is_package, modules

# Lowest first. Names on one line stand beside each other and do not import each other.
FLOORS = [
    {"errors", "_files"},
    {"numerics", "addressing", "kv_format", "tensor_file"},
    {"contract"},
    {"validate"},
    {"storage"},
    {"options"},
    {"call"},
    {"mla_call"},
    {"cache_spec"},
    {"ragged"},
    {"layouts", "save_file"},
    {"backends"},
    {"memory", "attention"},
    {"_step", "_pool", "layers"},
    {"_open_steps"},
    {"_cache_files"},
    {"_latent_pages"},
    {"kv_cache"},
    {"grouped_cache"},
    {"scheduling"},
    {"models"},
    {"engine", "simulate", "conformance"},
    {"plotting"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}

# The command stands above the package's front door, so it may go through it.
ABOVE_THE_PACKAGE = {"cli", "__main__"}

# What the twin may take from the reference.
CUDA_MAY_USE = {
    *("errors", "numerics", "addressing", "contract", "validate", "storage", "options", "call", "mla_call"),
    *("ragged", "backends", "kv_format"),
}
CUDA_MAY_USE_DEEP = {
    *("pagedref.attention.state", "pagedref.attention.rotary", "pagedref.attention.elementary"),
    *("pagedref.attention.ordered", "pagedref.attention.levels", "pagedref.attention._level_checks"),
    "pagedref.attention._by_level",
}
# A whole model on the device: what describes the model, and the cache that it reads and whose pages are swapped.
RUNNER_MAY_USE = {"models", "kv_cache", "cache_spec", "layers", "memory"}
# Internals of Numba and llvmlite have one place each.
CUDA_INTERNALS = {"pagedref_cuda._runtime", "pagedref_cuda._ptx"}
NUMBA_OPEN = {"numba", "numba.cuda", "numba.types", "numba.cuda.types", "numba.cuda.libdevice", "numba.extending"}


def resolve(item: Import, known: set[str]) -> str:
    """Name the module that an import reaches: ``from pagedref import errors`` reaches ``pagedref.errors``."""
    longest = f"{item.module}.{item.name}" if item.name else item.module
    return longest if longest in known else item.module


def part(module: str) -> str:
    """Name the floor's word: ``memory`` of ``pagedref.memory.frames``; empty for the package itself."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else ""


def wrong_in_pagedref(text: str, module: str, known: set[str], *, package: bool = False) -> list[str]:
    """List the imports of one module of ``pagedref`` that break the floors."""
    wrong = []
    here = part(module)
    for item in imports(text, module, package=package):
        target = resolve(item, known)
        top = target.split(".")[0]
        if top in {"numba", "llvmlite", "pagedref_cuda", "torch"}:
            wrong.append(f"{module}:{item.line} imports {target}: the reference never does")
        if top != "pagedref" or module == "pagedref":
            continue
        there = part(target)
        if not there and here in ABOVE_THE_PACKAGE:
            continue
        if not there:
            wrong.append(f"{module}:{item.line} takes {item.name or 'it'!r} from the package itself, which is above")
        elif there not in FLOOR or here not in FLOOR:
            wrong.append(f"{module}:{item.line} imports {target}, one of the two has no floor: add it to FLOORS")
        elif there != here and FLOOR[there] >= FLOOR[here]:
            wrong.append(f"{module}:{item.line} imports {target}: floor {FLOOR[there]} is not below {FLOOR[here]}")
    return wrong


def wrong_in_cuda(text: str, module: str, known: set[str], *, package: bool = False) -> list[str]:
    """List the imports of one module of ``pagedref_cuda`` that it may not make."""
    wrong = []
    for item in imports(text, module, package=package):
        target = resolve(item, known)
        top = target.split(".")[0]
        if top == "pagedref":
            allowed = part(target) in CUDA_MAY_USE or target in CUDA_MAY_USE_DEEP
            if part(module) == "runner":
                allowed = allowed or part(target) in RUNNER_MAY_USE
            if not allowed:
                wrong.append(f"{module}:{item.line} imports {target}, not on the list of the architecture")
        internal = top == "llvmlite" or (top == "numba" and item.module not in NUMBA_OPEN)
        if internal and module not in CUDA_INTERNALS and part(module) != "_runtime":
            wrong.append(f"{module}:{item.line} imports {target}: internals are imported in _runtime and _ptx only")
    return wrong


KNOWN = set(all_modules())


def test_every_module_has_a_floor() -> None:
    assert {part(name) for name in modules("pagedref")} - {""} <= set(FLOOR)


def test_pagedref_imports_downward_only() -> None:
    wrong = []
    for name, path in modules("pagedref").items():
        wrong += wrong_in_pagedref(path.read_text(), name, KNOWN, package=is_package(name))
    assert not wrong, "\n".join(wrong)


def test_pagedref_cuda_imports_what_it_may() -> None:
    wrong = []
    for name, path in modules("pagedref_cuda").items():
        wrong += wrong_in_cuda(path.read_text(), name, KNOWN, package=is_package(name))
    assert not wrong, "\n".join(wrong)


def test_memory_never_sees_numbers_of_k_or_v() -> None:
    """``memory`` decides and returns plans: no parameter of it is an array of keys or values."""
    names = {"k", "v", "key", "value", "k_cache", "v_cache", "keys", "values"}
    wrong = [
        f"{module}:{node.lineno} {node.name}({argument.arg})"
        for module, path in modules("pagedref").items()
        if part(module) == "memory"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.arg in names
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pagedref.errors", "from pagedref.addressing import page_of"),
        ("pagedref.numerics", "from pagedref import addressing"),
        ("pagedref.memory.frames", "from ..attention import state"),
        ("pagedref.memory.frames", "def f():\n    from pagedref.attention.state import merge_states"),
        ("pagedref.attention.decode", "if TYPE_CHECKING:\n    import pagedref.memory"),
        ("pagedref.attention.decode", "from pagedref import __version__"),
        ("pagedref.backends", "import pagedref_cuda"),
        ("pagedref.models.transformer", "from numba import njit"),
        ("pagedref.models.transformer", "from pagedref.cli import main"),
    ],
)
def test_floor_check_can_fail(module: str, text: str) -> None:
    assert wrong_in_pagedref(text, module, KNOWN | {"pagedref.attention.state", "pagedref.addressing"})


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pagedref_cuda.decode", "from pagedref.attention.decode import paged_decode"),
        ("pagedref_cuda.decode", "from pagedref.memory import FrameAllocator"),
        ("pagedref_cuda.decode", "import pagedref"),
        ("pagedref_cuda.decode", "from pagedref.models import transformer"),
        ("pagedref_cuda.decode", "from numba.cuda.dispatcher import CUDADispatcher"),
        ("pagedref_cuda.decode", "import llvmlite.ir"),
    ],
)
def test_cuda_check_can_fail(module: str, text: str) -> None:
    assert wrong_in_cuda(text, module, KNOWN)


def test_checks_let_the_good_pass() -> None:
    known = {"pagedref.errors", "pagedref.attention.state", "pagedref.memory.frames"}
    text = "from ..errors import OutOfFrames\nfrom .frames import X"
    assert not wrong_in_pagedref(text, "pagedref.memory.manager", known)
    assert not wrong_in_cuda("from pagedref.attention.state import AttentionState", "pagedref_cuda.state", known)
    assert not wrong_in_cuda("from numba import cuda\nfrom numba.cuda import types", "pagedref_cuda.state", known)
