"""One case for each fault of public systems that touches attention, addresses or stored forms.

A case takes a backend, tries the whole kind of mistake and raises AssertionError with what is wrong; its right answers
are those of the report or of the rule that settles it. What concerns an operation is asked of the backend; a function
of the specification beside the operations (slopes, page arithmetic) is the backend's own where it has one, and that of
the reference otherwise. Each case names the mutants that have its fault: deliberately wrong backends
(:mod:`pagedref.conformance.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pagedref.conformance.fault_cases import _addresses, _masks, _quantised, _states
from pagedref.conformance.fault_cases._tools import NotHere

__all__ = ["FAULT_CASES", "FaultCase", "NotHere"]


@dataclass(frozen=True)
class FaultCase:
    """A fault, the case that shows it, and who has it.

    Attributes
    ----------
    number : str
        Of the fault: ``P01`` ...
    run : callable
        Takes a backend.
    mutants : tuple of str
        Keys of :data:`pagedref.conformance.MUTANTS`.
    layer : str
        Where the fault lives: ``addressing``, ``attention``, ``merge``, ``quantise``, ``cache`` or ``call``.
    stores : tuple of str
        Storage types that the case needs.
    beyond : tuple of str
        Operations that it needs beside those that every backend has.
    """

    number: str
    run: Callable[[Any], None]
    mutants: tuple[str, ...]
    layer: str
    stores: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The right behaviour, in a line."""
        return (self.run.__doc__ or "").splitlines()[0]


_CASES = {**_addresses.CASES, **_masks.CASES, **_states.CASES, **_quantised.CASES}
_LATENT = ("mla_decode", "mla_prefill")
_BYTES = ("int8", "float8_e4m3fn", "float8_e5m2")

FAULT_CASES: MappingProxyType[str, FaultCase] = MappingProxyType(
    {
        case.number: case
        for case in (
            FaultCase("P01", _CASES["P01"], ("slots_in_32_bits", "slot_arithmetic_in_32_bits"), "addressing"),
            FaultCase("P02", _CASES["P02"], ("frame_stride_in_32_bits",), "addressing", stores=("int8",)),
            FaultCase("P05", _CASES["P05"], ("mla_tail_times_zero",), "attention", beyond=_LATENT),
            FaultCase("P06", _CASES["P06"], ("zero_times_nan",), "attention"),
            FaultCase("P07", _CASES["P07"], ("finite_sentinel", "maximum_from_sentinel"), "attention"),
            FaultCase("P08", _CASES["P08"], ("mean_for_empty_rows", "nan_for_empty_rows"), "attention"),
            FaultCase("P09", _CASES["P09"], ("plus_infinity_for_empty",), "attention"),
            FaultCase("P10", _CASES["P10"], ("merge_of_nothing_is_nan",), "merge"),
            FaultCase("P12", _CASES["P12"], ("mask_top_left",), "attention"),
            FaultCase("P13", _CASES["P13"], ("length_of_the_whole_prompt",), "cache"),
            FaultCase("P15", _CASES["P15"], ("last_page_from_page_count", "long_last_page_accepted"), "addressing"),
            FaultCase("P17", _CASES["P17"], ("window_one_too_wide",), "attention"),
            FaultCase("P20", _CASES["P20"], ("window_rolls_early",), "attention"),
            FaultCase("P23", _CASES["P23"], ("softcap_after_mask", "softcap_after_bias"), "attention"),
            FaultCase("P24", _CASES["P24"], ("geometric_slopes", "bias_sign_flipped"), "attention"),
            FaultCase("P25", _CASES["P25"], ("sink_in_every_split", "sink_lost_in_empty_split"), "attention"),
            FaultCase("P27", _CASES["P27"], ("heads_rounded_down",), "call"),
            FaultCase("P28", _CASES["P28"], ("mla_scale_from_rank",), "attention", beyond=_LATENT),
            FaultCase("P30", _CASES["P30"], ("merge_in_base_two", "lse_in_base_two"), "merge"),
            FaultCase("P32", _CASES["P32"], ("inverse_scale_in_float16",), "quantise", stores=("uint8", *_BYTES)),
            FaultCase("P33", _CASES["P33"], ("cast_without_clamp",), "quantise", stores=_BYTES),
            FaultCase("P35", _CASES["P35"], ("scale_from_the_wider_buffer",), "quantise", stores=("uint8", *_BYTES)),
            FaultCase("P36", _CASES["P36"], ("slot_minus_one",), "addressing"),
        )
    }
)
"""The cases by number, with mutants and layer."""
