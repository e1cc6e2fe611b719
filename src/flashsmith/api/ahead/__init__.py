"""Kernels before they are needed: compiled ahead, or replaced by others until they are there."""
