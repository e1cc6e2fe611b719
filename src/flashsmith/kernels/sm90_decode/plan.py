"""How few query rows are laid out on sm_90: as on sm_80, with tensor maps of the caches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

from flashsmith.kernels.arguments import TensorArg, TensorMapSpec, maps_obstacle
from flashsmith.kernels.launch import Call, Plan
from flashsmith.kernels.sm80_decode import plan as sm80_plan
from flashsmith.kernels.sm80_decode.arguments import DecodeArguments
from flashsmith.kernels.sm90_decode.arguments import Sm90DecodeArguments
from flashsmith.kernels.sm90_decode.config import PANEL_COLUMNS, Sm90DecodeConfig
from flashsmith.problem.attention import AttentionProblem

MAPPED = {"k": "k_map", "v": "v_map"}


@dataclass(frozen=True, slots=True)
class Sm90DecodeLaunch(sm80_plan.DecodeLaunch):
    """One launch: sequences whose q tiles have a counter each."""

    def arguments(self, call: Call) -> Sm90DecodeArguments:
        """The kernel's one parameter."""
        shared = super(Sm90DecodeLaunch, self).arguments(call)
        told = {field.name: getattr(shared, field.name) for field in fields(DecodeArguments)}
        box_rows = cast(Sm90DecodeConfig, self.config).box_rows(self.problem)
        maps = self._maps(call)
        return Sm90DecodeArguments(
            **told, box_rows=box_rows, k_map=maps["k_map"], v_map=maps["v_map"]
        )

    def obstacle(self, call: Call) -> str:
        """Why a tensor map cannot describe these caches, or an empty text."""
        return maps_obstacle(self._maps(call))

    def _maps(self, call: Call) -> dict[str, TensorMapSpec]:
        config, problem = cast(Sm90DecodeConfig, self.config), self.problem
        box_rows = config.box_rows(problem)
        return {map_name: _map(problem, call[name], box_rows) for name, map_name in MAPPED.items()}


def _map(problem: AttentionProblem, arg: TensorArg, box_rows: int) -> TensorMapSpec:
    rows, outer = (problem.page, problem.pages) if problem.page else (problem.k_len, problem.batch)
    dims = (problem.d_head, rows, problem.kv_heads, outer)
    n_bytes = problem.dtype.bytes
    strides = tuple(
        # A dimension of one element may have any stride; the map asks for a plausible one.
        stride * n_bytes if extent > 1 else problem.d_head * n_bytes
        for stride, extent in zip(
            (arg.seq_stride, arg.head_stride, arg.batch_stride), dims[1:], strict=True
        )
    )
    return TensorMapSpec(
        address=arg.address,
        element_bytes=n_bytes,
        dims=dims,
        strides_bytes=strides,
        box=(PANEL_COLUMNS, box_rows, 1, 1),
        is_bf16=problem.dtype.name == "BF16",
    )


def plan_decode(config: Sm90DecodeConfig, problem: AttentionProblem, sm_count: int) -> Plan:
    """The launches of `config` on `problem`: mostly one, more where counters are too few."""
    return sm80_plan.plan_decode(config, problem, sm_count, Sm90DecodeLaunch)
