"""Where each state space lies among the 64-bit generic addresses."""

from __future__ import annotations

GLOBAL_BASE = 0x0010_0000_0000  # first address GlobalMemory gives out
FAR_BASE = 0x0200_0000_0000  # first address of buffers that lie far apart
SHARED_WINDOW = 0x7E00_0000_0000  # generic address of shared address 0
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7C00_0000_0000
SHARED_BASE = 1024  # shared variables begin here: sm_90 keeps the first KB, and 0 stays a null
WINDOW_BYTES = 1 << 40
