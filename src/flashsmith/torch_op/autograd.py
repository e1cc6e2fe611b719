"""What autograd keeps of a forward call, what it asks for then, and what it is refused."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashsmith.api.options import CALL_FACTS, CallOptions
from flashsmith.base import errors
from flashsmith.base.errors import Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.problem.attention import FACTS
from flashsmith.torch_op.arguments import Argument, without_config

# Facts of callers that no backward kernel knows.
_WITHOUT_GRADIENT = [
    name for name in CALL_FACTS.values() if FACTS[name].exact or name == "window_left"
]
Context = Foreign  # torch's, of one call
Input = Argument  # or a tensor: of an operator


def wants_gradient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether autograd will ask for a gradient of this call."""
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return bool(wanted)


def refuse_tangents(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises in forward-mode differentiation, whose tangents the operators would drop silently."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise Unsupported(
                f"{name} carries a tangent (torch.func.jvp, forward-mode differentiation); "
                f"flashsmith has reverse-mode gradients only; use torch.func.vjp or backward()."
            )


def refuse_unknown_gradients(options: CallOptions, *tables: str) -> None:
    """Raises for a call whose gradients no kernel computes, before it is computed in vain."""
    given = [name for name in _WITHOUT_GRADIENT if options.fact(name) != FACTS[name].absent]
    for name in (*given, *tables):
        raise Unsupported(
            f"{name} is given and a gradient is wanted; flashsmith has no backward pass with "
            f"{name} yet; call under torch.no_grad(), or train with torch's own attention."
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
    o = kept[3]
    do = torch.zeros_like(o) if do is None else do
    # A sum's gradient is one number with strides of 0.
    readable = do if do.stride(-1) == 1 else do.contiguous()
    of_lse = None if dlse is None else dlse.contiguous()
    differentiate = torch.ops.flashsmith.backward.default
    found = differentiate(readable, *kept, of_lse, *without_config(ctx.given))
    return (*found, *others)


class Attention(torch.autograd.Function):  # type: ignore[misc]  # torch does not type it
    """The operator under transforms of torch.func, which do not follow a registered formula."""

    @staticmethod
    def forward(*inputs: Input) -> tuple[Tensor, Tensor]:
        """O and LSE."""
        out, lse = torch.ops.flashsmith.forward_lse.default(*inputs)
        return out, lse

    setup_context = staticmethod(keep)
    backward = staticmethod(backward)


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def keep_nothing(ctx: Context, inputs: tuple[Input, ...], output: tuple[Tensor, ...]) -> None:
    """Gradients have none: there is nothing to keep."""


def refuse_second(ctx: Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Raises: gradients of gradients are not computed."""
    raise Unsupported(
        "a gradient of a gradient was asked for; flashsmith differentiates once; use torch's "
        "scaled_dot_product_attention with its math backend for second derivatives."
    )


def refuse_now(q: Tensor, error: str, message: str) -> Tensor:
    """Raises what a call refused when it was traced."""
    raise getattr(errors, error, Unsupported)(message)
