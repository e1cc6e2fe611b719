"""flash_attention for torch tensors: the checks that need no values, and the operator."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling as is_compiling

from flashsmith.api.arrays.library import Array
from flashsmith.api.launches import (
    call_of,
    explained,
    gpu_device,
    host_device,
    launch_for,
)
from flashsmith.api.options import LSE, CallOptions
from flashsmith.api.problems import problem_of
from flashsmith.api.tables import KEPT_TABLES, NO_TABLES, ArrayTables, listed
from flashsmith.base.errors import Unsupported
from flashsmith.torch_op import operator
from flashsmith.torch_op.arguments import given_of
from flashsmith.torch_op.autograd import (
    Attention,
    AttentionWithTables,
    is_transformed,
    refuse_tangents,
    refuse_unknown_gradients,
    wants_gradient,
)
from flashsmith.torch_op.cuda_kernel import current_stream
from flashsmith.torch_op.fake_kernel import empty_lse, empty_output
from flashsmith.torch_op.on_cpu import TORCH_RUNS, is_emulated
from flashsmith.torch_op.tables import as_tables, expanded
from flashsmith.torch_op.tensor_view import (
    are_jagged,
    autocast,
    is_autocast,
    refuse_out,
    require_dense,
    require_tensors,
    tensor_view,
)
from flashsmith.tuner.choose.choice import Choice

_NO_TENSORS: Mapping[str, Tensor] = {}


def attend(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    options: CallOptions,
    explain: bool,
    tables: ArrayTables = NO_TABLES,
    workspace: Array = None,
) -> tuple[Tensor, Tensor | None, Choice | None]:
    """Output, log-sum-exp (or None), and the choice if it is to be explained."""
    if are_jagged(q, k, v, out):
        return _attend_jagged(q, k, v, out, options, explain, tables, workspace)
    if forward_ad._current_level >= 0:
        refuse_tangents({"q": q, "k": k, "v": v, **tables})
    if is_autocast(q):
        q, k, v = autocast(q), autocast(k), autocast(v)
    if workspace is not None or (tables and out is not None):
        of_tables = as_tables(tables, q)
        return _attend_into(q, k, v, out, options, explain, of_tables, workspace)
    if tables:
        return _attend_with(q, k, v, options, explain, as_tables(tables, q))
    given, wants_lse = given_of(options), options.facts[LSE]
    lse = None
    if wants_gradient(q, k, v):  # which needs the log-sum-exp
        refuse_unknown_gradients(options, d_head=q.shape[-1])
        if out is not None:
            refuse_out(q, k, v)
        kept = Attention.apply if is_transformed() else operator.forward_lse
        out, lse = kept(q, k, v, *given)
    elif out is None and is_transformed():  # what is mapped does not show the gradients it wants
        out, lse = Attention.apply(q, k, v, *given)
    elif out is not None:
        lse = empty_lse(q, options.fact("layout")) if wants_lse else None
        operator.forward_out(q, k, v, out, lse, *given)
    elif wants_lse:
        out, lse = operator.forward_lse(q, k, v, *given)
    else:
        out = operator.forward(q, k, v, *given)
    if not explain:
        return out, lse, None
    options = options.with_fact("lse", lse is not None)  # of the kernel that ran
    return out, lse, _choice(_named(q, k, v, out, lse), options)


def _attend_jagged(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    options: CallOptions,
    explain: bool,
    tables: ArrayTables,
    workspace: Array,
) -> tuple[Tensor, Tensor | None, Choice | None]:
    """The same of nested tensors, whose values are packed sequences."""
    from flashsmith.torch_op.jagged import taken_apart

    parts = taken_apart(q, k, v, out, str(options.fact("layout")), tables)
    whole = {**tables, **parts.boundaries}
    found, lse, choice = attend(*parts.rows, None, options, explain, whole, workspace)
    return (*parts.packed_again(found, lse), choice)


def _attend_with(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: CallOptions,
    explain: bool,
    tables: dict[str, Tensor],
) -> tuple[Tensor, Tensor | None, Choice | None]:
    """The same with tables."""
    wants_lse, given = bool(options.facts[LSE]), given_of(options)
    wants = wants_gradient(q, k, v, *tables.values())  # which needs the log-sum-exp
    if wants:
        refuse_unknown_gradients(options, tables, q.shape[-1])
    is_mapped = is_transformed()
    if wants or (is_mapped and set(KEPT_TABLES).issuperset(tables)):
        kept = AttentionWithTables.apply if is_mapped else operator.forward_kept
        found, lse = kept(q, k, v, *(tables.get(name) for name in KEPT_TABLES), *given)
    elif not wants_lse and not is_mapped and _are_of_a_cache(tables):
        lengths, table = tables["k_lengths"], tables.get("block_table")
        found, lse = operator.forward_cache(q, k, v, lengths, table, *given), None
    else:
        found, lse = operator.forward_with(q, k, v, listed(tables), wants_lse, *given)
    lse = lse if wants_lse else None
    choice = _choice(_named(q, k, v, found, lse), options, tables) if explain else None
    return found, lse, choice


def _are_of_a_cache(tables: Mapping[str, Tensor]) -> bool:
    return "k_lengths" in tables and len(tables) == 1 + ("block_table" in tables)


def _attend_into(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Array,
    options: CallOptions,
    explain: bool,
    tables: dict[str, Tensor],
    workspace: Array,
) -> tuple[Tensor, Tensor | None, Choice | None]:
    """The same in memory that the caller brings: output, scratch, or both."""
    if workspace is not None:
        require_dense({"workspace": workspace})
    if wants_gradient(q, k, v, *tables.values()):
        name = "out" if out is not None else "workspace"
        raise Unsupported(
            f"{name} is given and a gradient is asked for; autograd cannot follow a call that "
            f"writes into the caller's memory; do not pass {name}, or call under torch.no_grad()."
        )
    out = empty_output(q, v) if out is None else out
    lse = empty_lse(q, options.fact("layout")) if options.facts[LSE] else None
    operator.forward_into(q, k, v, listed(tables), out, lse, workspace, *given_of(options))
    choice = _choice(_named(q, k, v, out, lse), options, tables) if explain else None
    return out, lse, choice


def scratch_bytes_of(
    q: Tensor, k: Tensor, v: Tensor, options: CallOptions, tables: ArrayTables
) -> int:
    """Scratch memory that a call needs; none where torch's own attention computes it."""
    require_tensors(q, k, v, None)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    whole = expanded(as_tables(tables, q), q, k, str(options.fact("layout")))
    problem = problem_of(views, options, {n: tensor_view(n, t) for n, t in whole.items()})
    on_cpu = q.device.type == "cpu"
    if on_cpu and not is_emulated(options):
        return 0
    device = host_device("emulator") if on_cpu else gpu_device(views[0], options.backend)
    return launch_for(device, problem, options, views).prepared.scratch_bytes


def _named(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor | None) -> dict[str, Tensor]:
    named = {"q": q, "k": k, "v": v, "o": o} | ({} if lse is None else {"lse": lse})
    return {name: tensor.detach() for name, tensor in named.items()}


def _choice(
    tensors: Mapping[str, Tensor],
    options: CallOptions,
    tables: Mapping[str, Tensor] = _NO_TENSORS,
) -> Choice:
    """The choice that the operator made: it is kept with the launch."""
    q = tensors["q"]
    views = [tensor_view(name, tensor) for name, tensor in tensors.items()]
    whole = expanded(tables, q, tensors["k"], str(options.fact("layout")))
    of_tables = {name: tensor_view(name, table) for name, table in whole.items()}
    if q.device.type == "cpu" and not is_emulated(options):
        return TORCH_RUNS
    on_cpu = q.device.type == "cpu"
    device = host_device("emulator") if on_cpu else gpu_device(views[0], options.backend)
    problem = problem_of(views[:3], options, of_tables)
    launch = launch_for(device, problem, options, views[:3])
    if on_cpu or any(view.obstacle() for view in views[:3]):  # copies would have to be made again
        return launch.choice
    call = call_of([*views, *of_tables.values()], problem.layout)
    return explained(launch, call, current_stream(q.get_device()))
