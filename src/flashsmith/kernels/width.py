"""Which head dimensions the kernels take, whatever their family."""

from __future__ import annotations

from flashsmith.arch import get
from flashsmith.base.errors import Unsupported

D_HEAD_STEP = 8  # elements of one 16-byte access
MAX_D_HEAD = 512  # of the widest kernel: forward, on mma.sync, not in pages
MAX_TRAINED_D_HEAD = 256  # of the widest with gradients, and of those that read pages
_Q_TILE, _KV_TILE, _V_COLS = 64, 32, 256  # of the widest kernel: rows of Q and of K and V, columns


def too_wide(d_head: int) -> str:
    """What a kernel for a d_head above the widest would take; empty where it is not above."""
    if d_head <= MAX_D_HEAD:
        return ""
    width = 1 << (d_head - 1).bit_length()  # tiles are powers of two wide
    n_bytes = 2 * (_Q_TILE * width + _KV_TILE * (width + _V_COLS))
    return (
        f"tiles of {width:,} columns would take {n_bytes:,} bytes of shared memory, of which a "
        f"block has {get('sm_80').max_smem_per_block:,} on sm_80 and "
        f"{get('sm_90a').max_smem_per_block:,} on sm_90a; "
    )


def require_width(d_head: int, advice: str) -> None:
    """Raises, with the advice, unless some kernel computes this head dimension."""
    if not 0 < d_head <= MAX_D_HEAD or d_head % D_HEAD_STEP:
        raise Unsupported(
            f"d_head is {d_head}; the kernels take multiples of {D_HEAD_STEP} up to {MAX_D_HEAD}; "
            f"{too_wide(d_head)}{advice}."
        )


def require_trained_width(d_head: int) -> None:
    """Raises unless some kernel computes gradients of this head dimension."""
    if d_head > MAX_TRAINED_D_HEAD:
        raise Unsupported(
            f"d_head is {d_head} and a gradient is wanted; the backward kernels take up to "
            f"{MAX_TRAINED_D_HEAD}; compute it without gradients (torch.no_grad()), or train with "
            f"another attention."
        )


def require_paged_width(d_head: int) -> None:
    """Raises unless some kernel that reads pages computes this head dimension."""
    if MAX_TRAINED_D_HEAD < d_head <= MAX_D_HEAD:
        raise Unsupported(
            f"d_head is {d_head}; the kernels that read pages, or sequences by cache_batch_idx, "
            f"take up to {MAX_TRAINED_D_HEAD}; keep such a cache contiguous."
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
