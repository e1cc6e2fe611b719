"""What a GPU is, as data: limits, occupancy and peaks."""

from flashsmith.arch.architecture import ARCHES, Arch, get, of_capability
from flashsmith.arch.gpus import GPUS, Gpu, attainable_tflops, find_gpu
from flashsmith.arch.occupancy import Occupancy, occupancy

__all__ = [
    "ARCHES",
    "GPUS",
    "Arch",
    "Gpu",
    "Occupancy",
    "attainable_tflops",
    "find_gpu",
    "get",
    "occupancy",
    "of_capability",
]
