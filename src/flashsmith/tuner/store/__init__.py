"""Measurements: what one is, the file that keeps them, and how they are exchanged."""
