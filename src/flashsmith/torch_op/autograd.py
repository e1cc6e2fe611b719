"""What autograd keeps of a forward call, what it asks for then, and what it is refused."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashsmith.api.options import CallOptions
from flashsmith.api.tables import KEPT_TABLES, by_name, in_order, without_gradient
from flashsmith.base import errors
from flashsmith.base.errors import Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.kernels.width import require_trained_width
from flashsmith.problem.signature import BIAS
from flashsmith.torch_op.arguments import Argument, options_of, without_config
from flashsmith.torch_op.batching import Info, Rule, folded, one_by_one
from flashsmith.torch_op.tensor_view import refuse_gradients

_NO_TABLES: Mapping[str, Tensor] = {}
_KEPT_TENSORS = 7  # dO, Q, K, V, O, LSE and dLSE
_GIVEN = _KEPT_TENSORS + len(in_order(_NO_TABLES))
Context = Foreign  # torch's, of one call
Input = Argument  # or a tensor: of an operator


def wants_gradient(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> bool:
    """Whether autograd will ask for a gradient of this call."""
    if not torch.is_grad_enabled():
        return False
    if q.requires_grad or k.requires_grad or v.requires_grad:
        return True
    return any(table.requires_grad for table in tables) if tables else False


def refuse_tangents(tensors: Mapping[str, object]) -> None:
    """Raises in forward-mode differentiation, whose tangents the operators would drop silently."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and _has_tangent(tensor):
            raise Unsupported(
                f"{name} carries a tangent (torch.func.jvp, forward-mode differentiation); "
                f"flashsmith has reverse-mode gradients only; use torch.func.vjp or backward()."
            )


def _has_tangent(tensor: Tensor) -> bool:
    while torch._C._functorch.is_batchedtensor(tensor):  # vmap hides what is inside
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.is_floating_point() and forward_ad.unpack_dual(tensor).tangent is not None


def refuse_unknown_gradients(
    options: CallOptions, tables: Mapping[str, Tensor] = _NO_TABLES, d_head: int = 0
) -> None:
    """Raises for a call whose gradients no kernel computes, before it is computed in vain."""
    require_trained_width(d_head)
    name = without_gradient(options, tables)
    if name:
        raise Unsupported(
            f"{name} is given and a gradient is wanted; flashsmith has no backward pass with "
            f"{name} yet; call under torch.no_grad(), or train with torch's own attention."
        )
    slopes = tables.get("alibi_slopes")
    if slopes is not None and slopes.requires_grad:
        raise Unsupported(
            "alibi_slopes requires a gradient; flashsmith computes those of q, k, v, sinks and "
            "bias; pass alibi_slopes.detach()."
        )


def keep(ctx: Context, inputs: tuple[Input, ...], output: tuple[Tensor, Tensor]) -> None:
    """What a backward pass needs of the forward one: its inputs, O and LSE, no matrix of scores."""
    q, k, v, *given = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output)
    ctx.given = tuple(given)


def backward(ctx: Context, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of the operator `forward_lse`; none for what is not a tensor."""
    others = (None,) * len(ctx.given)
    if do is None and dlse is None:
        return (None, None, None, *others)
    kept = ctx.saved_tensors  # once: checkpoints compute it again for every time it is read
    do = torch.zeros_like(kept[3]) if do is None else do
    return (*_of_rows(kept, do, dlse, ctx.given), *others)


def _of_rows(
    kept: tuple[Tensor, ...],
    do: Tensor,
    dlse: Tensor | None,
    given: tuple[Argument, ...],
    tables: Mapping[str, Tensor] = _NO_TABLES,
    of_bias: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients of q, k and v; and of the bias, where it is asked for."""
    # A sum's gradient is one number with strides of 0.
    readable = do if do.stride(-1) == 1 else do.contiguous()
    of_lse = None if dlse is None else dlse.contiguous()
    given = without_config(given)
    if is_transformed():
        inputs = (readable, *kept, of_lse, *in_order(tables), *given)
        return tuple((GradientsWithBias if of_bias else Gradients).apply(*inputs))
    if tables:
        operators = torch.ops.flashsmith
        differentiate = (operators.backward_bias if of_bias else operators.backward_with).default
        return tuple(differentiate(readable, *kept, of_lse, in_order(tables), *given))
    return tuple(torch.ops.flashsmith.backward.default(readable, *kept, of_lse, *given))


def keep_tables(ctx: Context, inputs: tuple[Input, ...], output: tuple[Tensor, Tensor]) -> None:
    """The same of the operator `forward_kept`."""
    n_tensors = 3 + len(KEPT_TABLES)
    (q, k, v, *tables), given = inputs[:n_tensors], inputs[n_tensors:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, *tables)
    ctx.given = given


def backward_kept(
    ctx: Context, do: Tensor | None, dlse: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of the operator `forward_kept`: of q, k, v, sinks and bias."""
    others = (None,) * len(ctx.given)
    if do is None and dlse is None:
        return (None,) * (3 + len(KEPT_TABLES) + len(ctx.given))
    saved = ctx.saved_tensors  # once, as above
    kept, tables = saved[:5], dict(zip(KEPT_TABLES, saved[5:], strict=True))
    do = torch.zeros_like(kept[3]) if do is None else do
    sinks, of_tables = tables.pop("sinks"), dict[str, Tensor]()
    if sinks is not None:
        layout = options_of(ctx.given, lse=True).fact("layout")
        of_tables["sinks"] = _of_sinks(sinks, do, kept[3], kept[4], dlse, layout)
    read = {name: table for name, table in tables.items() if table is not None}
    of_bias = bool(ctx.needs_input_grad[3 + KEPT_TABLES.index(BIAS)])
    dq, dk, dv, *rest = _of_rows(kept, do, dlse, ctx.given, read, of_bias)
    if of_bias:
        of_tables[BIAS] = rest[0]
    return (dq, dk, dv, *(of_tables.get(name) for name in KEPT_TABLES), *others)


def _of_sinks(
    sinks: Tensor, do: Tensor, o: Tensor, lse: Tensor, dlse: Tensor | None, layout: str
) -> Tensor:
    """A sink's share of a row is e^(sink - LSE), and what it takes is what the row's keys lose."""
    delta = (do.float() * o).sum(-1)
    delta = delta if layout == "bhsd" else delta.transpose(1, 2)
    delta = delta if dlse is None else delta - dlse
    # A sink of -inf has none, also of a row that sees no key.
    share = torch.exp(sinks[:, None] - lse).nan_to_num(0.0)
    return -(share * delta).sum((0, 2))


def keep_nothing(ctx: Context, inputs: tuple[Input, ...], output: tuple[Tensor, ...]) -> None:
    """Gradients have none: there is nothing to keep."""


def refuse_second(ctx: Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Raises: gradients of gradients are not computed."""
    raise Unsupported(
        "a gradient of a gradient was asked for; flashsmith differentiates once; use torch's "
        "scaled_dot_product_attention with its math backend for second derivatives."
    )


def refusing_gradients(rule: Rule) -> Rule:
    """The rule for torch.vmap of an operator without gradients: it alone sees one is wanted."""

    def refuse(info: Info, in_dims: tuple[Input, ...], *args: Input) -> tuple[Input, Input]:
        q, k, v, *rest = args
        has_tables = bool(rest) and isinstance(rest[0], list | tuple)
        tables, given = (by_name(list(rest[0])), rest[2:]) if has_tables else ({}, rest)
        if wants_gradient(q, k, v, *tables.values()):
            refuse_unknown_gradients(options_of(tuple(given), lse=True), tables)
            refuse_gradients({"q": q, "k": k, "v": v, **tables})
        return rule(info, in_dims, *args)

    return refuse


class Attention(torch.autograd.Function):  # type: ignore[misc]  # torch does not type it
    """The operator under transforms of torch.func, which do not follow a registered formula."""

    @staticmethod
    def forward(*inputs: Input) -> tuple[Tensor, Tensor]:
        """O and LSE."""
        out, lse = torch.ops.flashsmith.forward_lse.default(*inputs)
        return out, lse

    @staticmethod
    def vmap(info: Info, in_dims: tuple[Input, ...], *args: Input) -> tuple[Input, Input]:
        """Under torch.vmap, where only the rule sees that a gradient is wanted."""
        if wants_gradient(*args[:3]):
            refuse_unknown_gradients(options_of(args[3:], lse=True))
        return folded(Attention.apply)(info, in_dims, *args)

    setup_context = staticmethod(keep)
    backward = staticmethod(backward)


class AttentionWithTables(torch.autograd.Function):  # type: ignore[misc]  # torch does not type it
    """The same with tables."""

    @staticmethod
    def forward(*inputs: Input) -> tuple[Tensor, Tensor]:
        """O and LSE."""
        out, lse = torch.ops.flashsmith.forward_kept.default(*inputs)
        return out, lse

    @staticmethod
    def vmap(info: Info, in_dims: tuple[Input, ...], *args: Input) -> tuple[Input, Input]:
        """The same."""
        n_tensors = 3 + len(KEPT_TABLES)
        tables = dict(zip(KEPT_TABLES, args[3:n_tensors], strict=True))
        brought = {name: table for name, table in tables.items() if table is not None}
        if wants_gradient(*args[:3], *brought.values()):
            refuse_unknown_gradients(options_of(args[n_tensors:], lse=True), brought)
        return one_by_one(AttentionWithTables.apply)(info, in_dims, *args)

    setup_context = staticmethod(keep_tables)
    backward = staticmethod(backward_kept)


class Gradients(torch.autograd.Function):  # type: ignore[misc]  # torch does not type it
    """Gradients under transforms: tensors as `backward_with` takes them, tables one by one."""

    @staticmethod
    def forward(*inputs: Input) -> tuple[Tensor, ...]:
        """dQ, dK and dV."""
        tensors, tables = inputs[:_KEPT_TENSORS], list(inputs[_KEPT_TENSORS:_GIVEN])
        if any(table is not None for table in tables):
            differentiate = torch.ops.flashsmith.backward_with.default
            return tuple(differentiate(*tensors, tables, *inputs[_GIVEN:]))
        return tuple(torch.ops.flashsmith.backward.default(*tensors, *inputs[_GIVEN:]))

    @staticmethod
    def vmap(info: Info, in_dims: tuple[Input, ...], *args: Input) -> tuple[Input, Input]:
        """Under torch.vmap."""
        has_tables = any(table is not None for table in args[_KEPT_TENSORS:_GIVEN])
        return (one_by_one if has_tables else folded)(Gradients.apply)(info, in_dims, *args)

    setup_context = staticmethod(keep_nothing)
    backward = staticmethod(refuse_second)


class GradientsWithBias(torch.autograd.Function):  # type: ignore[misc]  # torch does not type it
    """The same, and the gradient of the bias."""

    @staticmethod
    def forward(*inputs: Input) -> tuple[Tensor, ...]:
        """dQ, dK, dV and dBias."""
        tensors, tables = inputs[:_KEPT_TENSORS], list(inputs[_KEPT_TENSORS:_GIVEN])
        differentiate = torch.ops.flashsmith.backward_bias.default
        return tuple(differentiate(*tensors, tables, *inputs[_GIVEN:]))

    @staticmethod
    def vmap(info: Info, in_dims: tuple[Input, ...], *args: Input) -> tuple[Input, Input]:
        """Under torch.vmap."""
        return one_by_one(GradientsWithBias.apply)(info, in_dims, *args)

    setup_context = staticmethod(keep_nothing)
    backward = staticmethod(refuse_second)


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling()


def refuse_now(q: Tensor, error: str, message: str) -> Tensor:
    """Raises what a call refused when it was traced."""
    raise getattr(errors, error, Unsupported)(message)
