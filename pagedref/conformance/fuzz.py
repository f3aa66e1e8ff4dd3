"""Random cases by hypothesis, shrunk to the smallest that fails, which prints as a script.

Hypothesis is optional: ``pip install "pagedref[conform]"``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from pagedref.conformance.agreement import assert_state
from pagedref.conformance.cases import PagedCase, make_case, oracle

__all__ = ["fuzz", "is_installed", "script", "spell"]


def is_installed() -> bool:
    """Tell whether hypothesis is there.

    Returns
    -------
    bool
    """
    return find_spec("hypothesis") is not None


def spell(recipe: dict[str, Any]) -> PagedCase:
    """Return the case of a recipe.

    Parameters
    ----------
    recipe : dict
        Arguments of :func:`~pagedref.conformance.cases.make_case` as plain numbers.

    Returns
    -------
    PagedCase
    """
    arguments = dict(recipe)
    for name in ("alibi_slopes", "sinks"):
        if name in arguments:
            arguments[name] = np.array(arguments[name], np.float32)
    if "mask" in arguments:
        parts = zip(arguments["mask"], recipe["kv_lens"], strict=True)
        arguments["mask"] = [np.array(part, bool).reshape(-1, keys) for part, keys in parts]
    return make_case(arguments.pop("seed"), arguments.pop("q_lens"), arguments.pop("kv_lens"), **arguments)


def script(recipe: dict[str, Any], operation: str, backend: str) -> str:
    """Return a script that shows a failing case.

    Parameters
    ----------
    recipe : dict
        As in :func:`spell`.
    operation : str
        ``decode`` or ``prefill``.
    backend : str
        ``module:attribute``, or the name of a backend.

    Returns
    -------
    str
        At most ten lines.

    Examples
    --------
    >>> print(script({"seed": 0, "q_lens": [1], "kv_lens": [2], "window": 1}, "decode", "my_module:adapter"))
    from pagedref import backends
    from pagedref.conformance import assert_state, oracle
    from pagedref.conformance.fuzz import spell
    <BLANKLINE>
    backend = backends.load('my_module:adapter')
    case = spell({'seed': 0, 'q_lens': [1], 'kv_lens': [2], 'window': 1})
    print("got", case.decode(backend), "need", oracle(case)[:2], sep="\\n")
    assert_state(case.decode(backend), oracle(case))
    """
    return "\n".join(
        (
            "from pagedref import backends",
            "from pagedref.conformance import assert_state, oracle",
            "from pagedref.conformance.fuzz import spell",
            "",
            f"backend = backends.load({backend!r})",
            f"case = spell({recipe!r})",
            f'print("got", case.{operation}(backend), "need", oracle(case)[:2], sep="\\n")',
            f"assert_state(case.{operation}(backend), oracle(case))",
        )
    )


def _recipes(operation: str, dtype: str, lacking: frozenset[str]) -> Any:
    """Return a strategy of recipes; small ones first, so that what fails shrinks to little."""
    from hypothesis import strategies as st

    @st.composite
    def recipes(draw: st.DrawFn) -> dict[str, Any]:
        count = draw(st.integers(1, 3))
        kv_lens = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
        rows = st.just(1) if operation == "decode" else st.integers(0, 4)
        kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        heads = kv_heads * group
        recipe: dict[str, Any] = {
            "seed": draw(st.integers(0, 1000)),
            "q_lens": draw(st.lists(rows, min_size=count, max_size=count)),
            "kv_lens": kv_lens,
            "page_size": draw(st.integers(1, 5)),
            "num_kv_heads": kv_heads,
            "group_size": group,
            "head_dim": draw(st.sampled_from([1, 4, 8])),
            "dtype": dtype,
        }
        per_head = st.lists(st.sampled_from([0.0, 0.5, -1.0, 2.0]), min_size=heads, max_size=heads)
        options = {
            "spread": st.sampled_from([0.0, 10.0]),
            "v_head_dim": st.sampled_from([1, 5]),
            "sm_scale": st.sampled_from([1.0, -0.5]),
            "window": st.integers(1, 12),
            "attention_chunk": st.integers(1, 12),
            "softcap": st.sampled_from([0.5, 5.0]),
            "alibi_slopes": per_head,
            "sinks": per_head,
        }
        if operation == "prefill":
            options["causal"] = st.just(False)
        for name in draw(st.sets(st.sampled_from(sorted(set(options) - lacking)), max_size=3)):
            recipe[name] = draw(options[name])
        return recipe

    return recipes()


def fuzz(
    backend: Any,
    operation: str,
    *,
    examples: int = 50,
    dtype: str = "float32",
    lacking: frozenset[str] = frozenset(),
    not_judged: Any = lambda error: False,
) -> tuple[dict[str, Any], str] | None:
    """Try random cases; return the smallest that fails.

    Parameters
    ----------
    backend : module or object
        The backend.
    operation : str
        ``decode`` or ``prefill``.
    examples : int
        Cases.
    dtype : str
        Type of queries and caches.
    lacking : frozenset of str
        Keywords that the backend does not offer.
    not_judged : callable, optional
        Tells whether an error means that something is not offered.

    Returns
    -------
    (recipe, text) or None
        The recipe, and what is wrong with the answer.

    Examples
    --------
    >>> import pagedref.attention
    >>> fuzz(pagedref.attention, "decode", examples=5) is None
    True
    """
    from hypothesis import HealthCheck, Phase, given, settings

    smallest: dict[str, Any] = {}

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
    )  # fmt: skip
    @given(_recipes(operation, dtype, lacking))
    def attempt(recipe: dict[str, Any]) -> None:
        case = spell(recipe)
        try:
            assert_state(getattr(case, operation)(backend), oracle(case), operation)
        except Exception as error:
            if not_judged(error):
                return
            smallest.update(recipe=recipe, text=str(error))
            raise

    try:
        attempt()
    except Exception as error:
        if not smallest:
            raise
        return smallest["recipe"], smallest["text"] or str(error)
    return None
