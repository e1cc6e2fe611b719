"""torch's backward passes as calls of their own: autograd would run them on streams of its own."""

from __future__ import annotations

from flashsmith.base.loose_types import TorchTensor
from flashsmith.bench.calls import Call
from flashsmith.problem.attention import AttentionProblem

_NO_DROPOUT = 0.0


def cudnn(problem: AttentionProblem, d_out: TorchTensor, *tensors: TorchTensor) -> Call:
    """cuDNN's gradients of one forward call, which is made here."""
    import torch

    aten = torch.ops.aten
    given, q, k, v = _heads_first(d_out, *tensors[:3])
    scale, causal = problem.softmax_scale, problem.causal
    made = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, _NO_DROPOUT, causal, False, scale=scale
    )
    out, lse, *boundaries, seed, offset, _ = made
    return lambda: aten._scaled_dot_product_cudnn_attention_backward(
        *(given, q, k, v, out, lse, seed, offset, None, *boundaries, _NO_DROPOUT, causal),
        scale=scale,
    )


def flash(problem: AttentionProblem, d_out: TorchTensor, *tensors: TorchTensor) -> Call:
    """The same of the FlashAttention-2 that torch has."""
    import torch

    aten = torch.ops.aten
    given, q, k, v = _heads_first(d_out, *tensors[:3])
    scale, causal = problem.softmax_scale, problem.causal
    made = aten._scaled_dot_product_flash_attention(q, k, v, _NO_DROPOUT, causal, scale=scale)
    out, lse, *boundaries, seed, offset, _ = made
    return lambda: aten._scaled_dot_product_flash_attention_backward(
        *(given, q, k, v, out, lse, *boundaries, _NO_DROPOUT, causal, seed, offset),
        scale=scale,
    )


def _heads_first(*tensors: TorchTensor) -> list[TorchTensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]
