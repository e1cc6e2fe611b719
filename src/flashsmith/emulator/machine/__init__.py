"""The emulated machine: warps, schedules, registers, memory accesses."""
