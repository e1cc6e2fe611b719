"""flash_attention_backward: the gradients of attention, for whoever writes their own autograd."""

from __future__ import annotations

from flashsmith.api import gpu_call, host_call
from flashsmith.api.arrays import library_of_all, origin
from flashsmith.api.arrays.library import Array, ArrayOrTuple
from flashsmith.api.bias import reduced
from flashsmith.api.contents import require_contents
from flashsmith.api.options import checked_flag, checked_options
from flashsmith.api.tables import is_packed, take_tables, take_window
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.signature import BIAS


def flash_attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bshd",
    dlse: Array = None,
    dbias: bool = False,
    config: KernelConfig | str | None = None,
    backend: str | None = None,
    explain: bool = False,
    **facts: object,
) -> ArrayOrTuple:
    """(dq, dk, dv) of `flash_attention(q, k, v, ..., return_lse=True)`, whose results were o, lse.

    `do` is the gradient of o, `dlse` that of lse where there is one. The other arguments are those
    of the forward call; `config` is a configuration of backward kernels or its short form. With
    fewer heads in k and v than in q, dk and dv are summed over the query heads of a group. The same
    bits come out every time, unless `deterministic=False` or `config` allows sums in any order.
    What the gradients depend on of `sinks` is in lse: they may be given and are not looked at.
    With `dbias`, the gradient of `bias`, in its shape and type, is the fourth. With `explain`, a
    `Choice` is the last item.
    """
    take_window(facts)
    tables = {name: table for name, table in take_tables(facts).items() if name != "sinks"}
    options = checked_options(
        causal=causal, scale=scale, layout=layout, config=config, backend=backend, **facts
    )
    checked_flag("explain", explain)
    if checked_flag("dbias", dbias) and BIAS not in tables:
        raise ArgumentError(
            "dbias is True and no bias is given; pass the bias, or leave dbias out."
        )
    if settings.checks_calls():
        require_contents(q, k, options, tables)
    arrays = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do}
    arrays |= {} if dlse is None else {"dlse": dlse}
    without_batch = is_packed(tables) and len(getattr(q, "shape", ())) == 3
    if without_batch:
        arrays = {name: array[None] for name, array in arrays.items()}
    if origin(q) == "torch":
        from flashsmith.torch_op import gradients as torch_gradients

        found, choice = torch_gradients.differentiate(arrays, options, explain, tables, dbias)
    else:
        library = library_of_all(arrays)
        where = host_call if library.view("q", arrays["q"]).device == "cpu" else gpu_call
        found, choice = where.differentiate(library, arrays, options, explain, tables, dbias)
        if dbias:
            bias = tables[BIAS]
            found[3] = reduced(found[3], tuple(bias.shape)).astype(bias.dtype)
    if without_batch:
        found = [gradient[0] for gradient in found]
    return (*found, choice) if explain else tuple(found)
