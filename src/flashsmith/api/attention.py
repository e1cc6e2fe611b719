"""flash_attention: arrays in, attention out, on whatever device they belong to."""

from __future__ import annotations

import sys
from collections.abc import Callable

from flashsmith.api.arrays import is_traced, library_of, origin
from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.options import (
    LSE,
    CallOptions,
    checked_config,
    checked_flag,
    checked_options,
    common_options,
)
from flashsmith.api.padding import (
    common_width,
    narrowed,
    needs_columns,
    require_no_out,
    said,
    scaled_by,
    widened,
)
from flashsmith.api.refusals import refused
from flashsmith.api.tables import (
    NO_TABLES,
    ArrayTables,
    is_packed,
    take_tables,
    take_window,
    without_batch,
)
from flashsmith.base import settings
from flashsmith.base.errors import FlashsmithError
from flashsmith.kernels.kernel import KernelConfig

TorchAttend = Callable[
    [Array, Array, Array, Array, CallOptions, bool, ArrayTables, Array], tuple[Array, Array, Array]
]


def flash_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bshd",
    return_lse: bool = False,
    out: Array = None,
    config: KernelConfig | str | None = None,
    backend: str | None = None,
    explain: bool = False,
    workspace: Array = None,
    **facts: object,
) -> ArrayOrTuple:
    """softmax(scale · Q Kᵀ) V of 4-D arrays in float16 or bfloat16, as an array of the same kind.

    `causal` aligns the diagonal bottom-right: the last query sees every key. `scale` is
    1/sqrt(d_head) unless given. Fewer heads in k and v than in q are shared by groups of query
    heads. `config` is a kernel configuration or its short form; `backend` is "cuda", "emulator" or
    None. `facts` are the other facts of a problem that callers may give, by the names of
    docs/configuration.md (`diagonal`: row i stands at key i + diagonal; `softcap`;
    `deterministic=False`: gradients may have other bits in every run, and be faster), and

    - `window=(left, right)`: a row sees so many keys before and behind its own position;
    - `sinks`: (heads,), a logit of each head that joins the denominator, and so the LSE;
    - `alibi_slopes`: (heads,) or (sequences, heads), scores less slope times distance;
    - `bias`: broadcastable to (batch, heads, queries, keys), a bool (True: the row sees the key) or
      numbers that are added to the scores, float32 or of q's type; read at any strides;
    - `k_lengths`, `q_lengths`, `k_starts`: (batch,) int32 on the arrays' device, of each sequence;
    - `block_table`: (batch, pages of a sequence) int32; k and v are pools, a page an entry;
    - `cu_seqlens_q`, `cu_seqlens_k`: (sequences + 1,) int32 there, where sequences begin that are
      packed in arrays (rows, heads, d_head) or a batch of one. With `k_lengths` and `block_table`
      in the place of the second, keys lie in pages.

    `workspace` is scratch memory for the call, (bytes,) uint8; `workspace_bytes` says how many.
    Returns out; (out, lse) with `return_lse`, lse being float32 (batch, heads, queries); and a
    `Choice` as the last item with `explain`.
    """
    try:
        options, tables = None, NO_TABLES
        if facts:
            take_window(facts)
            tables = take_tables(facts)
        if scale is None and backend is None and not facts:
            options = common_options(causal, None, layout, return_lse)
            if options is not None and config is not None:
                options = CallOptions(options.facts, checked_config(config))
        if options is None:
            given = {"causal": causal, "scale": scale, "layout": layout, "return_lse": return_lse}
            options = checked_options(config=config, backend=backend, **given, **facts)
        explain = explain is not False and checked_flag("explain", explain)
        return attend(
            q, k, v, options, out=out, explain=explain, tables=tables, workspace=workspace
        )
    except FlashsmithError as error:
        return refused(error, q, 1 + (return_lse is True) + (explain is True))


def attend(
    q: Array,
    k: Array,
    v: Array,
    options: CallOptions,
    *,
    out: Array = None,
    explain: bool = False,
    tables: ArrayTables = NO_TABLES,
    workspace: Array = None,
) -> ArrayOrTuple:
    """The same with checked options."""
    if settings.checks_calls() and not is_traced(q, k, v, *tables.values()):
        from flashsmith.api.contents import require_contents

        require_contents(q, k, options, tables)
    if tables and is_packed(tables) and len(getattr(q, "shape", ())) == 3:
        keys = (k, v) if "block_table" in tables else (k[None], v[None])
        found = attend(
            *(q[None], *keys, options),
            out=out if out is None else out[None],
            explain=explain,
            tables=tables,
            workspace=workspace,
        )
        return without_batch(found, has_lse=bool(options.facts[LSE]))
    # The shorter question first: every call passes here.
    width = common_width(q, k, v, tables) if needs_columns(q, v) else 0
    if width:
        return _attend_padded(
            *(q, k, v, options, width),
            out=out,
            explain=explain,
            tables=tables,
            workspace=workspace,
        )
    if origin(q) == "torch":
        attend_torch = _torch_attend or _import_torch_attend()
        o, lse, choice = attend_torch(q, k, v, out, options, explain, tables, workspace)
    elif is_traced(q, k, v, *tables.values()):
        from flashsmith.jax_op.attention import attend as attend_traced

        o, lse, choice = attend_traced(q, k, v, out, options, explain, tables, workspace)
    else:
        from flashsmith.api import gpu_call, host_call

        library = library_of(q, k, v, out)
        where = host_call if library.view("q", q).device == "cpu" else gpu_call
        o, lse, choice = where.attend(library, (q, k, v), out, options, tables, explain, workspace)
    wants_lse = options.facts[LSE]
    if not (wants_lse or explain):
        return o
    results = [o] + ([lse] if wants_lse else []) + ([choice] if explain else [])
    return tuple(results)


_torch_attend: TorchAttend | None = None  # kept: the import statement takes 2 % of a call


def _import_torch_attend() -> TorchAttend:
    global _torch_attend
    from flashsmith.torch_op.attention import attend as found
    from flashsmith.torch_op.attention import is_compiling

    # Inside torch.compile a name that changes would make the next call compile again.
    if not is_compiling():
        _torch_attend = found
    return found


if hasattr(sys.modules.get("torch"), "library"):  # imported in full
    _import_torch_attend()


def _attend_padded(
    q: Array,
    k: Array,
    v: Array,
    options: CallOptions,
    width: int,
    *,
    out: Array,
    explain: bool,
    tables: ArrayTables,
    workspace: Array,
) -> ArrayOrTuple:
    """The same with zeros behind rows: they add nothing to scores, and are cut off the output."""
    require_no_out(out, q, v)
    wide = [widened(array, width) for array in (q, k, v)]
    scaled = scaled_by(q.shape[-1], options)
    found = attend(
        wide[0], wide[1], wide[2], scaled, explain=explain, tables=tables, workspace=workspace
    )
    if not isinstance(found, tuple):
        return narrowed(found, v.shape[-1])
    o, *rest = found
    if explain:
        rest[-1] = said(rest[-1], q, v, width)
    return narrowed(o, v.shape[-1]), *rest
