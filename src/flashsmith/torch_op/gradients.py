"""flash_attention_backward for torch tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from flashsmith.api.arrays.library import Array
from flashsmith.api.launches import gpu_device, host_device, launch_for
from flashsmith.api.options import CallOptions
from flashsmith.api.problems import gradient_problem_of
from flashsmith.api.tables import ArrayTables, in_order
from flashsmith.problem.signature import BIAS
from flashsmith.torch_op import operator
from flashsmith.torch_op.arguments import given_of
from flashsmith.torch_op.on_cpu import TORCH_RUNS
from flashsmith.torch_op.tables import as_tables, expanded
from flashsmith.torch_op.tensor_view import require_dense, tensor_view
from flashsmith.tuner.choose.choice import Choice


def differentiate(
    arrays: Mapping[str, Array],
    options: CallOptions,
    explain: bool,
    tables: ArrayTables,
    of_bias: bool = False,
) -> tuple[list[Tensor], Choice | None]:
    """dq, dk and dv (and that of the bias), and the choice if it is to be explained."""
    require_dense(arrays)
    tensors = (arrays.get(name) for name in ("do", "q", "k", "v", "o", "lse", "dlse"))
    if not tables:
        found = operator.backward(*tensors, *given_of(options))
        return list(found), _choice(arrays, options, {}) if explain else None
    made = as_tables(tables, arrays["q"])
    gradients = operator.backward_bias if of_bias else operator.backward_with
    found = gradients(*tensors, in_order(made), *given_of(options))
    return list(found), _choice(arrays, options, made, of_bias) if explain else None


def _choice(
    arrays: Mapping[str, Tensor],
    options: CallOptions,
    tables: Mapping[str, Tensor],
    of_bias: bool = False,
) -> Choice:
    """The choice that the operator made: it is kept with the launch."""
    views = {name: tensor_view(name, tensor) for name, tensor in arrays.items()}
    whole = expanded(tables, arrays["q"], arrays["k"], str(options.fact("layout")))
    of_tables = {name: tensor_view(name, table) for name, table in whole.items()}
    on_cpu = arrays["q"].device.type == "cpu"
    if on_cpu and options.backend != "emulator":
        return TORCH_RUNS
    device = host_device("emulator") if on_cpu else gpu_device(views["q"], options.backend)
    shape = tuple(tables[BIAS].shape) if of_bias else None
    problem = gradient_problem_of(views, options, of_tables, shape)
    return launch_for(device, problem, options, list(views.values())).choice
