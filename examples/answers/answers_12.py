"""Answers to the exercises of tutorial 12."""

from types import SimpleNamespace

import numpy as np

from pagedref.attention import paged_decode
from pagedref.conformance import diagnose, make_case, oracle
from pagedref.conformance.slips import SLIPS

SLIP = {slip.name: slip for slip in SLIPS}

# Answers
# 1. "kv head by modulo: h % num_kv_heads". With one kv head, or as many as query heads, nobody would notice.
modulo = SimpleNamespace(paged_decode=SLIP["kv_head_by_modulo"].backend.paged_decode)
assert [named.names for named in diagnose(modulo).named] == [("kv_head_by_modulo",)]

# 2. The one with ``sm_scale=0.0``: it counts as "not given", so the default is taken. Right is a mean, because with a
#    scale of 0 all keys weigh the same. The diagnosis: "an sm_scale of 0 is taken as not given".
short = SimpleNamespace(paged_decode=SLIP["scale_0_is_default"].backend.paged_decode)
assert [named.names for named in diagnose(short).named] == [("scale_0_is_default",)]
case = make_case(1, [1], [4], sm_scale=0.0)
assert np.allclose(oracle(case).out[0, 0], case.values[0][:, 0].mean(axis=0))

# 3. A dialect: some public libraries mean it so. The verdict says where to convert, and a merge of such an lse with a
#    natural one would be wrong by a factor of 1.44 in the exponent.
bits = SimpleNamespace(paged_decode=lambda *a, **k: (paged_decode(*a, **k).out, paged_decode(*a, **k).lse / np.log(2)))
(named,) = diagnose(bits).named
assert named.names == ("lse_base_2",) and named.dialect
