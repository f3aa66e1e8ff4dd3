"""From a family and the names in a file to one entry for each weight."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pagedref.models.config import ModelConfig
from pagedref.models.families._family import Family
from pagedref.models.families._stored import EachExpert
from pagedref.models.fields import refuse
from pagedref.models.weights import Entry, layer_shapes, weight_shapes

__all__ = ["Names"]


class Names:
    """Know where the weights of a model lie in a file.

    Parameters
    ----------
    family : Family
        Its entry in the table.
    config : ModelConfig
        The geometry.
    tensors : collection of str
        Names of all tensors of the file.
    """

    def __init__(self, family: Family, config: ModelConfig, tensors: Collection[str]) -> None:
        self._family, self._config, self._tensors = family, config, tensors
        embed = family.stored("embed")[0].tensor
        self._prefix = next((given for given in family.prefixes if given + embed in tensors), family.prefixes[0])

    def entries(self) -> list[Entry]:
        """Return one entry for each weight of the model.

        Returns
        -------
        list of Entry

        Raises
        ------
        ContractError
            The file has fewer tensors than the configuration has layers or experts.
        """
        config, most = self._config, len(self._tensors)
        each = any(isinstance(stored, EachExpert) for stored in self._family.names.values())
        experts = config.experts.count if config.experts is not None and each else 0
        for what, number in (("layers", config.num_layers), ("experts", experts)):
            if number > most:
                refuse("load_checkpoint", "the file", "has too few tensors", most, f"those of {number} {what}")
        found = []
        layer, shapes = -1, dict(weight_shapes(config))
        of_layer: Mapping[str, tuple[int, ...]] = {}
        for name in shapes:
            kind = name.rpartition(".")[2]
            if kind == name:
                found.append(self._entry(name, kind, shapes, ""))
                continue
            number = int(name.split(".")[1])
            if number != layer:
                layer, of_layer = number, layer_shapes(config, number)
            found.append(self._entry(name, kind, of_layer, self._family.layer.format(number)))
        return found

    def tied(self) -> str:
        """Return the name of the output projection."""
        return self._full(self._family.stored("lm_head")[0].tensor, "")

    def is_harmless(self, tensor: str) -> bool:
        """Tell whether a tensor may be left unread."""
        return re.fullmatch(f"({re.escape(self._prefix)})?({self._family.harmless})", tensor) is not None

    def _full(self, tensor: str, layer: str) -> str:
        return tensor[1:] if tensor.startswith("/") else f"{self._prefix}{layer}{tensor}"

    def _entry(self, name: str, kind: str, shapes: Mapping[str, tuple[int, ...]], layer: str) -> Entry:
        """Return the entry of one weight: of several places the first that the file has."""
        places = self._family.stored(kind)
        beside = self._family.stored(kind.removesuffix("_bias"))  # a bias lies where its weight does
        known = [at for at, place in enumerate(beside) if self._full(place.tensor, layer) in self._tensors]
        chosen = places[known[0] if known and len(places) == len(beside) else 0]
        tensors = tuple(self._full(tensor, layer) for tensor in chosen.tensors(self._config))
        shape = chosen.shape(kind, shapes, self._config)
        return Entry(name, tensors, shape, lambda arrays: chosen.take(kind, shapes, self._config, arrays))
