"""PTX on the CPU: parse, translate to numpy, schedule warps, check hazards, count events."""
