"""The families of models that load from Hugging Face directories: a table, one entry each.

An entry says how the family's ``config.json`` becomes a :class:`~pagedref.models.config.ModelConfig` and where each of
our weights lies in its files. Nothing else in the package knows a family.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pagedref.models.config import ModelConfig
from pagedref.models.families import _experts, _gemma, _gpt, _llama
from pagedref.models.families._entries import Names
from pagedref.models.families._family import Family
from pagedref.models.fields import refuse, token_ids

__all__ = ["FAMILIES", "Family", "Names", "config_from_hf"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _llama.LLAMA,
        "mistral": _llama.MISTRAL,
        "qwen2": _llama.QWEN2,
        "qwen3": _llama.QWEN3,
        "phi3": _llama.PHI3,
        "olmo2": _llama.OLMO2,
        "smollm3": _llama.SMOLLM3,
        "gemma": _gemma.GEMMA,
        "gemma2": _gemma.GEMMA2,
        "gemma3_text": _gemma.GEMMA3,
        "gpt2": _gpt.GPT2,
        "gpt_neox": _gpt.GPT_NEOX,
        "opt": _gpt.OPT,
        "bloom": _gpt.BLOOM,
        "mpt": _gpt.MPT,
        "falcon": _gpt.FALCON,
        "mixtral": _experts.MIXTRAL,
        "qwen3_moe": _experts.QWEN3_MOE,
        "gpt_oss": _experts.GPT_OSS,
        "deepseek_v2": _experts.DEEPSEEK_V2,
        "deepseek_v3": _experts.DEEPSEEK_V3,
    }
)
"""The families, by the ``model_type`` of their HF configuration."""


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """Read the contents of an HF ``config.json``.

    Parameters
    ----------
    hf : mapping
        In the present or in the older key style.

    Returns
    -------
    ModelConfig

    Raises
    ------
    ContractError
        One line: an unknown family, a missing or impossible size, a setting that is not supported.
    """
    name = _name(hf)
    family = FAMILIES[name]
    quantised = hf.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", quantised) if isinstance(quantised, Mapping) else quantised
        refuse("ModelConfig", "quantization_config", "is not supported", method, "weights of 16 or 32 bits")
    for key, values in family.neutral.items():
        value = hf.get(key)
        if value is not None and value not in values:
            refuse("ModelConfig", key, f"is not supported for {name}", value, str(values[0]))
    return ModelConfig(
        architecture=name,
        bos_token_id=min(token_ids(hf.get("bos_token_id")), default=None),
        eos_token_ids=token_ids(hf.get("eos_token_id")),
        dtype=str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")[:32],
        **family.read({**family.defaults, **hf}),
    )


def _name(hf: Mapping[str, Any]) -> str:
    """Return the family of a configuration, by ``architectures`` if that is there, else by ``model_type``."""
    named = hf.get("architectures")
    if isinstance(named, list) and named:
        for name, family in FAMILIES.items():
            if named[0] in family.architectures:
                return name
        refuse("ModelConfig", "architectures", "is not supported", named[0], f"a model of {', '.join(FAMILIES)}")
    kind = hf.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        refuse("ModelConfig", "model_type", "is not supported", kind, ", ".join(FAMILIES))
    return str(kind)
