"""Kernels built before they are asked for: bundles, a C library, a registry."""
