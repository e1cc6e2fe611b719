"""How near configurations and peers come to the exact result, on the same tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flashsmith.base.dtypes import to_bits
from flashsmith.base.errors import Unsupported
from flashsmith.base.loose_types import TorchTensor
from flashsmith.bench.peers import NOT_COMPUTED, Peer, reason_of
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import exact_facts
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import run_arrays

_ROWS = 1024  # of the scores that are held in float64 at a time


@dataclass(frozen=True, slots=True)
class Nearness:
    """One output against the exact one: errors as numbers, not relative to anything."""

    name: str
    rms: float
    worst: float
    output: TorchTensor  # float64, (batch, row, head, d)


@dataclass(frozen=True, slots=True)
class Numbers:
    """One problem: our configurations and the peers that run it."""

    problem: AttentionProblem
    ours: tuple[Nearness, ...]
    peers: tuple[Nearness, ...]
    left_out: Mapping[str, str]  # peers that did not run it, and why


def compare_numbers(
    device: Device, problem: AttentionProblem, configs: Sequence[KernelConfig], peers: list[Peer]
) -> Numbers:
    """Runs everyone on the same normal inputs; torch's part is on the GPU where there is one."""
    import torch

    others = exact_facts(problem)
    if others:
        raise Unsupported(f"{others[0]} is asked for; peers are compared without it; leave it out.")

    random = np.random.default_rng(0)
    inputs = {
        role.name: to_bits(random.standard_normal(role.shape(problem), np.float32), problem.dtype)
        for role in signature_of(problem).inputs(problem)
    }
    kind = {"FP16": torch.float16, "BF16": torch.bfloat16}[problem.dtype.name]
    where = "cuda" if device.can_time else "cpu"
    q, k, v = (torch.from_numpy(inputs[name]).view(kind).to(where) for name in "qkv")
    truth = exact(problem, q, k, v)
    ours = []
    for config in configs:
        bits = run_arrays(device, config, problem, inputs)["o"]
        output = torch.from_numpy(bits).view(kind).to(where)
        ours.append(_nearness(config.short_form(), output, truth))
    theirs = []
    left_out: dict[str, str] = {}
    for peer in peers:
        if not peer.computes(problem):
            left_out[peer.name] = NOT_COMPUTED
            continue
        try:
            with torch.no_grad():
                output = peer.make(problem, q, k, v)()
        # What a foreign library raises for a shape it does not take is not known beforehand.
        except Exception as error:  # noqa: BLE001
            left_out[peer.name] = reason_of(error)
            continue
        theirs.append(_nearness(peer.name, _rows_first(output, truth), truth))
    return Numbers(problem, tuple(ours), tuple(theirs), left_out)


def exact(problem: AttentionProblem, q: TorchTensor, k: TorchTensor, v: TorchTensor) -> TorchTensor:
    """The output in float64, where the tensors are; some rows of one head at a time."""
    import torch

    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    hides = problem.mask.hides
    visible = torch.from_numpy(problem.mask.visible()).to(q.device) if hides else None
    for batch in range(problem.batch):
        for head in range(problem.heads):
            keys, values = (t[batch, :, head // problem.group].double() for t in (k, v))
            for begin in range(0, problem.q_len, _ROWS):
                rows = slice(begin, begin + _ROWS)
                scores = q[batch, rows, head].double() @ keys.T * problem.softmax_scale
                if visible is not None:
                    scores = scores.masked_fill(~visible[rows], -torch.inf)
                # Rows that see no key are 0.
                out[batch, rows, head] = torch.softmax(scores, -1).nan_to_num(0.0) @ values
    return out


def _rows_first(output: TorchTensor, truth: TorchTensor) -> TorchTensor:
    """A peer's output in (batch, row, head, d) order; some give more than it, some heads first."""
    found = output[0] if isinstance(output, tuple) else output
    orders = [found, found.transpose(1, 2)]
    fitting = [order for order in orders if order.shape == truth.shape]
    return min(fitting, key=lambda order: float((order.double() - truth).square().mean()))


def _nearness(name: str, output: TorchTensor, truth: TorchTensor) -> Nearness:
    numbers = output.double()
    off = (numbers - truth).abs()
    return Nearness(name, float(off.square().mean().sqrt()), float(off.max()), numbers)


def apart(one: Nearness, other: Nearness) -> float:
    """The largest difference of two outputs."""
    return float((one.output - other.output).abs().max())
