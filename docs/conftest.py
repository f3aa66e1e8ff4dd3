"""Leave out pages whose examples cannot run here."""

from __future__ import annotations

import os
from importlib.util import find_spec

# The twin's examples run in Numba's simulator.
collect_ignore = [] if find_spec("numba") and os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["cuda.rst"]
