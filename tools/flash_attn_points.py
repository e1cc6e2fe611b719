"""The points of flash-attn's own test grids that `flash_attn_grid.py` calls its functions at.

Each grid multiplies the values that flash-attn's tests try. Of each, points are drawn by a seed: a
sample that holds every value and every pair of values of different lists, then any.
"""

from __future__ import annotations

import itertools
import random

DTYPES = ("float16", "bfloat16")
WIDTHS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LENGTHS = (
    *((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256)),
    *((1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)),
)
COMMON = {
    "dtype": DTYPES,
    "heads": ((6, 6), (6, 1), (6, 2)),
    "deterministic": (False, True),
    "alibi": (False, True),
    "local": (False, True),
    "causal": (False, True),
    "d": WIDTHS,
    "dropout": (0.0, 0.0, 0.0, 0.17),
    "softcap": (0.0, 50.0),
}
PACKED = {"kvpacked": (False, True), "empty": (False, True)}
SHORT = ((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (108, 256), (1023, 1024))
CACHED = (
    *((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048)),
    *((16, 20000), (1, 131072), (128, 128)),
)
GRIDS = {
    "flash_attn_func": {**COMMON, "lengths": LENGTHS},
    "flash_attn_kvpacked_func": {**COMMON, "lengths": LENGTHS},
    "flash_attn_qkvpacked_func": {
        **COMMON,
        "heads": ((6, 6),),
        "lengths": tuple((n, n) for n in (97, 128, 200, 384, 768, 1024, 1025, 2048)),
    },
    "flash_attn_func, short rows": {**COMMON, "lengths": (*SHORT, *(x[::-1] for x in SHORT))},
    "flash_attn_varlen_func": {**COMMON, **PACKED, "lengths": LENGTHS},
    "flash_attn_varlen_qkvpacked_func": {
        **COMMON,
        "heads": ((6, 6),),
        "empty": (False, True),
        "lengths": tuple((n, n) for n in (97, 128, 200, 257, 384, 512, 768, 1025, 2048)),
    },
    "flash_attn_varlen_func, short rows": {**COMMON, **PACKED, "lengths": SHORT},
    "flash_attn_varlen_func, pages": {
        **COMMON,
        "dropout": (0.0,),
        "deterministic": (False,),
        "lengths": SHORT,
        "page": (16, 256),
    },
    "flash_attn_with_kvcache": {
        "dtype": DTYPES,
        "heads": ((6, 6), (6, 1), (6, 3)),
        "num_splits": (1, 0),
        "new": (False, True),
        "alibi": (False, True),
        "local": (False, True),
        "causal": (False, True),
        "rotary": (0.0, 0.0, 0.5, 1.0),
        "interleaved": (False, True),
        "page": (0, 16, 256),
        "leftpad": (False, False, True),
        "batch_idx": (False, True),
        "d": (32, 59, 64, 80, 128, 256),
        "lengths": CACHED,
    },
}


def points_of(grid: dict, count: int, seed: str) -> list[dict]:
    """At least every pair of values, then any, until there are `count`."""
    draw = random.Random(seed)
    names = list(grid)

    def pairs(point):
        """What a point shows; of one with dropout, which is refused, only that."""
        held = itertools.combinations(names, 2)
        if "dropout" in grid and grid["dropout"][point["dropout"]]:
            held = ((a, b) for a, b in held if "dropout" in (a, b))
        return {(a, point[a], b, point[b]) for a, b in held}

    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in range(len(grid[a]))
        for y in range(len(grid[b]))
    }
    drawn = []
    while missing or len(drawn) < count:
        point = {name: draw.randrange(len(grid[name])) for name in names}
        if missing:
            a, x, b, y = min(missing)
            tries = [
                {n: draw.randrange(len(grid[n])) for n in names} | {a: x, b: y} for _ in range(8)
            ]
            point = max(tries, key=lambda p: len(pairs(p) & missing))
            missing -= pairs(point)
        drawn.append(point)
    return [{name: grid[name][at] for name, at in point.items()} for point in drawn]
