"""``exp``, ``log`` and ``tanh`` of ordered arithmetic in kernels: the very functions of the reference, compiled.

:mod:`pagedref.attention.elementary` is written so that a compiler of kernels takes its bodies as they are. What they
call must be compiled too, so each body gets our functions for the names that it uses. Kernels that call them are
declared with ``fma=False``, and then have the bits of NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from pagedref.attention import elementary
from pagedref_cuda._runtime import device_function

__all__ = ["ordered_exp", "ordered_log", "ordered_lse", "ordered_tanh"]


def _compiled(function: Callable[..., Any], **calls: Any) -> Any:
    """Return a device function with the body of `function`, which calls `calls` by these names."""
    code: Any = function.__code__
    return device_function(FunctionType(code, {**elementary.__dict__, **calls}, function.__name__))


_select = _compiled(elementary.select)
_log_parts = _compiled(elementary._log_parts, select=_select)
_log_of_others = _compiled(elementary._log_of_others, select=_select)

ordered_exp = _compiled(elementary.ordered_exp)
ordered_tanh = _compiled(elementary.ordered_tanh, select=_select, ordered_exp=ordered_exp)
ordered_lse = _compiled(elementary.ordered_lse, select=_select, _log_parts=_log_parts, _log_of_others=_log_of_others)
ordered_log = _compiled(elementary.ordered_log, select=_select, _log_parts=_log_parts, _log_of_others=_log_of_others)
