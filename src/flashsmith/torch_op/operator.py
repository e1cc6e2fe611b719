"""The operators torch knows: torch.ops.flashsmith.forward and its variants, and backward.

`forward_with` takes the tables of a call in the order of `TABLE_ORDER` (api/tables.py), None for
those that it does not bring (the last ones may be left away), and returns an LSE without elements
where none is asked for. `forward_into` does the same in memory of the caller's. `forward_kept`
takes by name those that have a backward pass, and has gradients: torch follows no list with gaps.
`forward_cache` takes those of a server by name, and is the quickest of these.
`backward_bias` gives the gradient of the bias as its fourth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import torch
from torch import Tensor
from torch.compiler import is_compiling as is_compiling

from flashsmith.api.tables import KEPT_TABLES
from flashsmith.base.loose_types import Foreign
from flashsmith.torch_op import autograd, batching, cuda_kernel, fake_kernel
from flashsmith.torch_op.arguments import Argument, schema

Dims = tuple[Foreign, ...]  # where the mapped dimension of each argument is
_GIVEN = schema()
_TENSORS = "Tensor q, Tensor k, Tensor v"
_KEPT = ", ".join(f"Tensor? {name}" for name in KEPT_TABLES)
_SCHEMAS = {
    "forward": f"({_TENSORS}, {_GIVEN}) -> Tensor",
    "forward_lse": f"({_TENSORS}, {_GIVEN}) -> (Tensor, Tensor)",
    "forward_out": f"({_TENSORS}, Tensor(a!) out, Tensor(b!)? lse, {_GIVEN}) -> ()",
    "forward_with": f"({_TENSORS}, Tensor?[] tables, bool lse, {_GIVEN}) -> (Tensor, Tensor)",
    "forward_into": f"({_TENSORS}, Tensor?[] tables, Tensor(a!) out, Tensor(b!)? lse, "
    f"Tensor(c!)? workspace, {_GIVEN}) -> ()",
    "forward_kept": f"({_TENSORS}, {_KEPT}, {_GIVEN}) -> (Tensor, Tensor)",
    "forward_cache": f"({_TENSORS}, Tensor k_lengths, Tensor? block_table, {_GIVEN}) -> Tensor",
    "backward": f"(Tensor do, {_TENSORS}, Tensor o, Tensor lse, Tensor? dlse=None, {_GIVEN})"
    " -> (Tensor, Tensor, Tensor)",
    "backward_with": f"(Tensor do, {_TENSORS}, Tensor o, Tensor lse, Tensor? dlse, "
    f"Tensor?[] tables, {_GIVEN}) -> (Tensor, Tensor, Tensor)",
    "backward_bias": f"(Tensor do, {_TENSORS}, Tensor o, Tensor lse, Tensor? dlse, "
    f"Tensor?[] tables, {_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)",
}
_BACKWARD = ("backward", "backward_with", "backward_bias")
Operator = Callable[..., Foreign]  # of tensors and what else its schema says


def _late(module: str, name: str) -> Operator:
    """A function whose module is imported by its first call: a first call on a GPU has none."""

    @cache
    def found() -> Operator:
        operator: Operator = getattr(import_module(f"flashsmith.torch_op.{module}"), name)
        return operator

    return lambda *args: found()(*args)


def _on_devices(name: str) -> dict[str, Operator]:
    """What computes an operator, by the keys of torch's dispatcher."""
    if name in _BACKWARD:
        return {"CUDA": _late("cuda_backward", name), "CPU": _late("cpu_backward", name)}
    return {"CUDA": getattr(cuda_kernel, name), "CPU": _late("cpu_kernel", name)}


# A Library costs 6 µs a call where the custom_op decorator costs 19 (H200 host, torch 2.11).
_library = torch.library.Library("flashsmith", "DEF")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _key, _operator in _on_devices(_name).items():
        _library.impl(_name, _operator, _key)
    torch.library.register_fake(f"flashsmith::{_name}", getattr(fake_kernel, _name), lib=_library)

torch.library.register_autograd(
    "flashsmith::forward_lse", autograd.backward, setup_context=autograd.keep, lib=_library
)
torch.library.register_autograd(
    "flashsmith::forward_kept",
    autograd.backward_kept,
    setup_context=autograd.keep_tables,
    lib=_library,
)
for _name in _BACKWARD:
    torch.library.register_autograd(
        f"flashsmith::{_name}",
        autograd.refuse_second,
        setup_context=autograd.keep_nothing,
        lib=_library,
    )


def _cache_rule(forward_with: Operator) -> batching.Rule:
    """The rule of `forward_cache`: what is mapped is that of the operator with all tables."""
    rule = autograd.refusing_gradients(batching.one_by_one(forward_with))

    def mapped(info: batching.Info, in_dims: Dims, *args: Argument) -> tuple[Tensor, int]:
        tensors, tables, given = args[:3], list(args[3:5]), args[5:]
        dims = (*in_dims[:3], list(in_dims[3:5]), None, *in_dims[5:])
        found, _ = rule(info, dims, *tensors, tables, False, *given)
        return found[0], 0

    return mapped


_RULES = {
    "forward": lambda call: autograd.refusing_gradients(batching.folded(call)),
    "forward_lse": batching.folded,
    "forward_with": lambda call: autograd.refusing_gradients(batching.one_by_one(call)),
    "forward_kept": batching.one_by_one,
    "forward_cache": lambda call: _cache_rule(torch.ops.flashsmith.forward_with.default),
    "backward": batching.folded,
    "backward_with": batching.one_by_one,
    "backward_bias": batching.one_by_one,
}
for _name, _rule in _RULES.items():
    _call = getattr(torch.ops.flashsmith, _name).default
    torch.library.register_vmap(f"flashsmith::{_name}", _rule(_call), lib=_library)

# What a call refuses while torch.compile traces it.
_library.define("refuse(Tensor q, str error, str message) -> Tensor")
_library.impl("refuse", autograd.refuse_now, "CompositeExplicitAutograd")
torch.library.register_fake("flashsmith::refuse", fake_kernel.refuse, lib=_library)

# OpOverloads: calling one skips the choice among overloads.
forward = torch.ops.flashsmith.forward.default
forward_lse = torch.ops.flashsmith.forward_lse.default
forward_out = torch.ops.flashsmith.forward_out.default
forward_with = torch.ops.flashsmith.forward_with.default
forward_into = torch.ops.flashsmith.forward_into.default
forward_kept = torch.ops.flashsmith.forward_kept.default
forward_cache = torch.ops.flashsmith.forward_cache.default
backward = torch.ops.flashsmith.backward.default
backward_with = torch.ops.flashsmith.backward_with.default
backward_bias = torch.ops.flashsmith.backward_bias.default
refuse = torch.ops.flashsmith.refuse.default
