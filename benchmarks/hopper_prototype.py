"""The prototype that the Hopper kernels are held against: its variants and its tile orders."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from hopper_shapes import Tensors

from flashsmith.measure.interleaved import Contender

NAME = "prototype"
# Variants that its own record names as the best of a cell, by d_head and mask.
VARIANTS = {
    (64, False): ("192x128e0", "192x128e0r0"),
    (64, True): ("192x128e0", "192x128e0r0"),
    (128, False): ("128x128", "128x128p1", "192x80e0", "192x80e0k20"),
    (128, True): ("128x128", "128x128p1", "192x80e0"),
    (256, False): ("128x64", "128x64h", "128x64c2"),
    (256, True): ("128x64h", "128x64p1h"),
}
# Section in MB and factor of the short tiles that the prototype's own record has for causal cells.
ORDERS = {
    (64, 512): (4, 0),
    (64, 1024): (16, None),
    (64, 2048): (4, None),
    (64, 4096): (32, 1.5),
    (64, 8192): (32, 1.5),
    (64, 16384): (32, None),
    (128, 512): (16, 0),
    (128, 1024): (32, 0),
    (128, 2048): (16, None),
    (128, 4096): (32, None),
    (128, 8192): (64, None),
    (128, 16384): (32, None),
    (256, 512): (32, 0),
    (256, 1024): (4, None),
    (256, 2048): (16, 1.5),
    (256, 4096): (32, 1.5),
    (256, 8192): (32, 1.5),
    (256, 16384): (64, 1.5),
}


class Prototype:
    """The prototype's kernels, loaded by its own script from `folder`/cubins."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.module = importlib.import_module("yardstick")
        self.folder = folder
        self.loaded: dict[str, Any] = {}  # Any: the prototype's own class

    def contenders(self, t: Tensors, *, causal: bool) -> Iterator[Contender]:
        """Its variants for a cell, with the tile order its record names."""
        d, length = t.q.shape[3], t.q.shape[1]
        section, tail = ORDERS.get((d, length), (32, None)) if causal else (0, None)
        for name in VARIANTS[d, causal]:
            file = f"{name}-{'c' if causal else 'f'}"
            if file not in self.loaded:
                path = self.folder / "cubins" / f"{file}.cubin"
                self.loaded[file] = self.module.Var(str(path))
            o = torch.empty_like(t.q)
            lse = torch.empty(t.q.shape[0], t.q.shape[2], length, device="cuda")
            made = self.loaded[file].make(t.q, t.k, t.v, o, lse, secmb=section, T=tail)
            yield _held(f"{NAME} {name}", made, (t, o, lse))


def _held(name: str, run: Any, tensors: tuple[object, ...]) -> Contender:  # Any: as above
    """The run with what it reads and writes: a launch knows addresses only."""

    def launch(stream: int) -> None:
        assert tensors
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            run()

    return Contender(name, launch)
