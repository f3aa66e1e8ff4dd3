"""Answers to the exercises of tutorial 10."""

import numpy as np

from pagedref import CacheSpec
from pagedref.attention.quantize import dequantize, quantize
from pagedref.kv_format import KVFormat

# Answers
# 1. A thousand million bytes, less than a page at the end:
tokens = {}
for name in ("float32", "int8", "int4"):
    spec = CacheSpec(30, 3, 64, page_size=16, kv_format=KVFormat.named(name, 64))
    tokens[name] = 10**9 // spec.bytes_per_frame * 16
assert tokens == {"float32": 21_696, "int8": 81_696, "int4": 115_728}

# 2. Thirtyfold, as the step does: for all 63 others with one scale; with groups, for the 31 beside it, and the other 32
#    keep their step.

# 3. Fifteen steps from -8 to 8 are 16/15 apart, and the zero point, an integer, cannot lie in their middle. Zero comes
#    back exactly; 8 lies half-way between two steps, and is rounded or cut to the smaller. That is an error of 7 %
#    which points the same way in nearly every key that should match: it adds up where others cancel.
int4 = KVFormat.named("int4", 64)
stored, scale, zero = quantize(np.tile(np.float32([-8, 0, 8, 0]), 16)[None], int4)
assert np.unique(dequantize(stored, int4, scale, zero).astype(float).round(2)).tolist() == [-7.47, 0.0, 7.47]
