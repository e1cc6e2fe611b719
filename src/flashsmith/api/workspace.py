"""How much scratch memory a call needs: for callers with an allocator of their own."""

from __future__ import annotations

from flashsmith.api.arrays import library_of, origin
from flashsmith.api.arrays.library import Array
from flashsmith.api.bias import broadcast_view, scores_shape
from flashsmith.api.launches import gpu_device, host_device, launch_for
from flashsmith.api.options import CallOptions, checked_options
from flashsmith.api.padding import common_width, needs_columns, scaled_by, widened
from flashsmith.api.problems import problem_of
from flashsmith.api.tables import (
    ArrayTables,
    is_packed,
    rows_of_tables,
    table_view,
    take_tables,
    take_window,
)
from flashsmith.problem.signature import BIAS


def workspace_bytes(q: Array, k: Array, v: Array, **asked: object) -> int:
    """Bytes of scratch that `flash_attention` needs for these arguments, as a `workspace`; or 0.

    They follow from shapes and options, not from what lengths and tables hold. A call that has not
    been made yet is planned and its kernels are compiled, as the call itself would do. For
    `flash_attn_with_kvcache`, give the caches as k and v and cache_seqlens as k_lengths.
    """
    take_window(asked)
    tables = take_tables(asked)
    options = checked_options(**asked)
    if is_packed(tables) and len(getattr(q, "shape", ())) == 3:
        q = q[None]
        k, v = (k, v) if "block_table" in tables else (k[None], v[None])
    width = common_width(q, k, v, tables) if needs_columns(q, v) else 0
    if width:
        options = scaled_by(q.shape[-1], options)
        q, k, v = (widened(array, width) for array in (q, k, v))
    if origin(q) == "torch":
        from flashsmith.torch_op.attention import scratch_bytes_of

        return scratch_bytes_of(q, k, v, options, tables)
    return _scratch_bytes_of((q, k, v), options, tables)


def _scratch_bytes_of(
    arrays: tuple[Array, Array, Array], options: CallOptions, tables: ArrayTables
) -> int:
    library = library_of(*arrays, None)
    views = [library.view(name, array) for name, array in zip("qkv", arrays, strict=True)]
    on_host = views[0].device == "cpu"
    rows = rows_of_tables(tables, views[0].shape[0])
    of_tables = {
        name: table_view(name, table, rows) if on_host else library.view(name, table)
        for name, table in tables.items()
    }
    if BIAS in of_tables:
        wanted = scores_shape(views[0].shape, views[1].shape, str(options.fact("layout")))
        of_tables[BIAS] = broadcast_view(of_tables[BIAS], wanted)
    problem = problem_of(views, options, of_tables)
    device = host_device(options.backend) if on_host else gpu_device(views[0], options.backend)
    return launch_for(device, problem, options, views).prepared.scratch_bytes
