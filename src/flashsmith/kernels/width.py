"""Which head dimensions the kernels take, whatever their family."""

from __future__ import annotations

from flashsmith.arch import get
from flashsmith.base.errors import Unsupported

D_HEAD_STEP = 8  # elements of one 16-byte access
MAX_D_HEAD = 256  # of the widest kernel


# Of O a warp holds at least 16 rows of 4 bytes a number in the registers of its 32 threads.
O_BYTES = 16 * 4 // 32  # a thread and column
MAX_O_BYTES = O_BYTES * MAX_D_HEAD


def too_wide(d_head: int) -> str:
    """What a d_head above the widest would need of a thread; empty where it is not above."""
    if d_head <= MAX_D_HEAD:
        return ""
    return (
        f"a thread would hold {O_BYTES * d_head:,} bytes of O in registers and the kernels have "
        f"room for {MAX_O_BYTES}; "
    )


def require_width(d_head: int, advice: str) -> None:
    """Raises, with the advice, unless some kernel computes this head dimension."""
    if not 0 < d_head <= MAX_D_HEAD or d_head % D_HEAD_STEP:
        raise Unsupported(
            f"d_head is {d_head}; the kernels take multiples of {D_HEAD_STEP} up to {MAX_D_HEAD}; "
            f"{too_wide(d_head)}{advice}."
        )


def require_one_width(d_qk: int, d_v: int) -> None:
    """Raises unless queries and values are equally wide, where no kernel takes a narrower v."""
    if d_qk == d_v:
        return
    found = f"q has d_head {d_qk} and v has {d_v}; the kernels need one d_head"
    if max(d_qk, d_v) <= MAX_D_HEAD:
        raise Unsupported(f"{found}; pad the smaller one with zeros.")
    # A q tile, and of K and V a kv block in use and one under way; 64 rows and 16 bits each.
    n_bytes = 64 * 2 * (d_qk + 2 * (d_qk + d_v))
    if n_bytes <= get("sm_90a").max_smem_per_block:  # registers end before
        require_width(max(d_qk, d_v), "use another implementation")
    raise Unsupported(
        f"{found} up to {MAX_D_HEAD}. Tiles of 64 rows as wide as those of latent attention (MLA) "
        f"would take {n_bytes:,} bytes of shared memory, and a block has at most "
        f"{get('sm_90a').max_smem_per_block:,}; expand the latents to heads of up to {MAX_D_HEAD}, "
        f"or use another implementation."
    )
