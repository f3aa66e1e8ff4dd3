"""Every libdevice function compiles to PTX that the emulator covers;
the mathematical ones agree with float64 references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special as sp

from pagedref_cuda.emulator import Module

nb = pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda  # noqa: E402
from numba.cuda import libdevice, types  # noqa: E402
from numba.cuda.libdevicefuncs import functions  # noqa: E402

R = np.random.default_rng(0)
X = R.standard_normal(256)
POS = np.abs(X) + 1e-3
UNIT = np.tanh(X)
BIG = X * 20
F1 = {
    "exp": (np.exp, BIG),
    "exp2": (np.exp2, BIG),
    "exp10": (lambda x: 10.0**x, X),
    "expm1": (np.expm1, X),
    "log": (np.log, POS),
    "log2": (np.log2, POS),
    "log10": (np.log10, POS),
    "log1p": (np.log1p, POS),
    "sin": (np.sin, BIG),
    "cos": (np.cos, BIG),
    "tan": (np.tan, X),
    "asin": (np.arcsin, UNIT),
    "acos": (np.arccos, UNIT),
    "atan": (np.arctan, BIG),
    "sinh": (np.sinh, X),
    "cosh": (np.cosh, X),
    "tanh": (np.tanh, X),
    "asinh": (np.arcsinh, BIG),
    "acosh": (np.arccosh, POS + 1),
    "atanh": (np.arctanh, UNIT * 0.99),
    "sqrt": (np.sqrt, POS),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POS),
    "cbrt": (np.cbrt, BIG),
    "rcbrt": (lambda x: 1 / np.cbrt(x), POS),
    "erf": (sp.erf, X),
    "erfc": (sp.erfc, X),
    "erfinv": (sp.erfinv, UNIT * 0.9),
    "erfcx": (sp.erfcx, POS),
    "tgamma": (sp.gamma, POS + 0.5),
    "lgamma": (sp.gammaln, POS + 3),
    "floor": (np.floor, BIG),
    "ceil": (np.ceil, BIG),
    "trunc": (np.trunc, BIG),
    "rint": (np.rint, BIG),
    "round": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), BIG),
    "fabs": (np.abs, X),
    "sinpi": (lambda x: np.sin(np.pi * x), X),
    "cospi": (lambda x: np.cos(np.pi * x), X),
    "normcdf": (sp.ndtr, X),
    "j0": (sp.j0, POS),
    "j1": (sp.j1, POS),
    "y0": (sp.y0, POS),
    "y1": (sp.y1, POS + 1),
    "logb": (lambda x: np.floor(np.log2(np.abs(x))), X),
}
F2 = {
    "pow": (np.power, POS, X),
    "atan2": (np.arctan2, X, X[::-1]),
    "fmod": (np.fmod, BIG, POS + 0.5),
    "hypot": (np.hypot, X, BIG),
    "fmax": (np.fmax, X, X[::-1]),
    "fmin": (np.fmin, X, X[::-1]),
    "fdim": (lambda a, b: np.maximum(a - b, 0), X, X[::-1]),
    "copysign": (np.copysign, X, X[::-1]),
    "remainder": (lambda a, b: np.array([math.remainder(x, y) for x, y in zip(a, b)]), BIG, POS + 0.5),
    "nextafter": (np.nextafter, X, X[::-1]),
}


def kernel(f, n):
    ns = {"cuda": cuda, "f": f}
    a = ", ".join(f"a{k}" for k in range(n))
    exec(f"def k({a}, o):\n    i = cuda.grid(1)\n    o[i] = f({', '.join(f'a{k}[i]' for k in range(n))})\n", ns)
    return ns["k"]


@pytest.mark.parametrize("name", sorted(F1) + sorted(F2))
@pytest.mark.parametrize("dt", [np.float32, np.float64])
def test_value(name, dt):
    ref, *args = F1.get(name) or F2[name]
    f = getattr(libdevice, name + ("f" if dt is np.float32 else ""))
    a = [np.asarray(x, dt).copy() for x in args]
    o = np.zeros(256, dt)
    nb.launch(kernel(f, len(a)), 2, 128, *a, o, lineinfo=False)
    with np.errstate(all="ignore"):
        e = ref(*a) if name == "nextafter" else ref(*[x.astype(np.float64) for x in a])
    tol = (2e-6, 1e-6) if dt is np.float32 else (1e-13, 1e-14)
    assert np.allclose(o, e, rtol=tol[0], atol=tol[1]), (name, np.abs(o - e).max())


def test_all_functions_are_covered():
    bad = []
    for name, (ret, args) in sorted(functions.items()):
        f = getattr(libdevice, name.replace("__nv_", ""))
        ins, outs = [a for a in args if not a.is_ptr], [a for a in args if a.is_ptr]
        nout = len(outs) + (str(ret) != "none")
        ns = {"cuda": cuda, "f": f}
        a = ", ".join(f"a{k}" for k in range(len(ins)))
        call = ", ".join(f"a{k}[i]" for k in range(len(ins)))
        body = (
            f"o[i] = f({call})"
            if nout == 1
            else f"r = f({call}); " + "; ".join(f"o[i, {j}] = r[{j}]" for j in range(nout))
        )
        exec(f"def k({a}, o):\n    i = cuda.grid(1)\n    {body}\n", ns)
        sig = [types.Array(x.ty, 1, "C") for x in ins] + [types.Array(types.float64, 1 if nout == 1 else 2, "C")]
        bad += [(name, u) for u in Module(nb.compile_ptx(ns["k"], sig)).unsupported()]
    assert not bad, bad[:5]
