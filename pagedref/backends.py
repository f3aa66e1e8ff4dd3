"""Find a backend by its name.

A backend is any module or object that has the operations of the contract under their names. If it also has a function
``ensure_available()``, that is called before the backend is handed out, and raises BackendUnavailable where it cannot
run. ``numpy`` and ``cuda`` are built in, others are found through the entry-point group ``pagedref.backends``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from pagedref.contract import OPERATIONS
from pagedref.errors import BackendUnavailable

__all__ = ["available", "check", "get", "layers", "load"]

_GROUP = "pagedref.backends"
_BUILT_IN = {"numpy": "pagedref.attention", "cuda": "pagedref_cuda"}
_LAYERS = {"numpy": "pagedref.layers", "cuda": "pagedref_cuda.layers"}
_INSTALL = {
    "cuda": 'pip install "pagedref[cuda]" for a GPU or, without one, the emulator; or pip install "pagedref[cudasim]" '
    "and NUMBA_ENABLE_CUDASIM=1 in the environment for the simulator",
}


def available() -> list[str]:
    """Return the names of the backends that are known, whether or not they can run here.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> {"cuda", "numpy"} <= set(available())
    True
    """
    from importlib.metadata import entry_points

    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=_GROUP))})


def get(name: str) -> Any:
    """Return the operations of a backend.

    Parameters
    ----------
    name : str
        ``"numpy"``, ``"cuda"`` or the name of an entry point in the group ``pagedref.backends``.

    Returns
    -------
    module or object
        Has every operation of :data:`pagedref.contract.OPERATIONS` as an attribute.

    Raises
    ------
    BackendUnavailable
        The name is unknown, the backend cannot run here, or it lacks an operation.

    Examples
    --------
    >>> get("numpy").merge_states.__name__
    'merge_states'
    """
    if name in _BUILT_IN:
        try:
            return check(import_module(_BUILT_IN[name]), repr(name))
        except ImportError as error:
            raise BackendUnavailable(
                f"get: name {name!r} needs a package that is missing, got {error}, "
                f"need {_INSTALL.get(name, 'pip install pagedref')}"
            ) from error
    from importlib.metadata import entry_points

    points = [point for point in entry_points(group=_GROUP) if point.name == name]
    if not points:
        known = ", ".join(available())
        raise BackendUnavailable(f"get: name is not a backend, got {name!r}, need one of {known}")
    try:
        backend = points[0].load()
    except ImportError as error:
        raise BackendUnavailable(f"get: backend {name!r} cannot be imported, got {error}, need its package") from error
    return check(backend, repr(name))


def load(name: str) -> Any:
    """Return a backend that may lack operations, by its name or from any module.

    Parameters
    ----------
    name : str
        ``module:attribute``, found from the working directory as well, or a name as in :func:`get`.

    Returns
    -------
    module or object

    Raises
    ------
    BackendUnavailable
        There is no such module or attribute, or the name is unknown.

    Examples
    --------
    >>> load("pagedref.attention:state").merge_states.__name__
    'merge_states'
    """
    if ":" not in name:
        return get(name)
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except (ImportError, ValueError, SyntaxError) as error:
        text = f"{type(error).__name__}: {error}"
        raise BackendUnavailable(
            f"load: module {module_name!r} cannot be imported, got {text}, need a module on the path or in the working "
            "directory"
        ) from error
    for part in filter(None, path.split(".")):
        if not hasattr(found, part):
            raise BackendUnavailable(
                f"load: {name} is not there, got no attribute {part!r} of {module_name}, need module:attribute"
            )
        found = getattr(found, part)
    return found


def layers(name: str) -> Any:
    """Return the layers by which models compute beside attention.

    Parameters
    ----------
    name : str
        Name of a backend. Those of NumPy serve every backend that has none of its own.

    Returns
    -------
    module
        Has every operation of :data:`pagedref.contract.LAYER_OPERATIONS` as an attribute.

    Raises
    ------
    BackendUnavailable
        The name is unknown, or the backend cannot run here.

    Examples
    --------
    >>> layers("numpy").rms_norm.__name__
    'rms_norm'
    """
    get(name)
    return import_module(_LAYERS.get(name, _LAYERS["numpy"]))


def check(backend: Any, name: str) -> Any:
    """Return a backend that has every operation and can run here.

    Parameters
    ----------
    backend : module or object
        The backend.
    name : str
        For the error text.

    Returns
    -------
    module or object
        The same.

    Raises
    ------
    BackendUnavailable
        It lacks an operation, or its ``ensure_available`` says that it cannot run here.
    """
    missing = [operation for operation in OPERATIONS if not callable(getattr(backend, operation, None))]
    if missing:
        raise BackendUnavailable(
            f"get: backend {name} lacks operations, got none of {', '.join(missing)}, need all of the contract"
        )
    ensure_available = getattr(backend, "ensure_available", None)
    if callable(ensure_available):
        ensure_available()
    return backend
