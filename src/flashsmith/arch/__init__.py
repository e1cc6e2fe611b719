"""What a GPU is, as data: limits here, occupancy and peaks in modules of their own."""

from flashsmith.arch.architecture import ARCHES, Arch, get, of_capability

__all__ = ["ARCHES", "Arch", "get", "of_capability"]
