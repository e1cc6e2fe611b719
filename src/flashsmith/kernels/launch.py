"""What a problem becomes on a kernel: launches, each with its geometry and its arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.arguments import NO_SCORES, Arguments, ScoresArg, TensorArg
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import BIAS_CHUNK, Needs
from flashsmith.problem.signature import BIAS, TABLES

WORKSPACE = "workspace"  # beside the tensors of the signature: memory that the device keeps
SCRATCH = "scratch"  # the same: memory of a call, from its caller or else from the device
Call = Mapping[str, TensorArg]  # where the tensors of a call lie, by the names of its signature


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Blocks, threads and shared memory of one launch."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    cluster: int = 1
    # It may begin while the launch before it ends: its kernel waits for what it needs of that one.
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel laid out for a problem; depends on shapes, not on addresses."""

    config: KernelConfig
    problem: AttentionProblem
    needs: Needs
    geometry: LaunchGeometry
    # Device memory of the launch, or 0; counters at its start are found zero and left so.
    workspace_bytes: int = 0
    # Memory in which the launches of a plan hand results to each other, or 0; what it holds before
    # and after a call means nothing. Launches of one plan say the same.
    scratch_bytes: int = 0
    # What of this launch decides, beside the configuration, in which order sums are taken.
    sum_order: str = ""
    # Whether tiles are split so that no cta waits for the others' last wave.
    ends_together: bool = False
    # How every tile is cut along the keys and what that follows from, in words, where it is.
    cut: str = ""

    @abstractmethod
    def arguments(self, call: Call) -> Arguments:
        """The kernel's one parameter, for tensors that lie where `call` says."""

    def obstacle(self, call: Call) -> str:
        """Why the kernel cannot read or write tensors with these strides, or an empty text."""
        del call
        return ""


def scores_arg(launch: Launch, call: Call) -> ScoresArg:
    """Where the bias of a call lies; nowhere where it brings none.

    Raises where the kernel reads several keys at once and they do not lie at such places.
    """
    found, problem = call.get(BIAS, NO_SCORES), launch.problem
    assert isinstance(found, ScoresArg)
    n_bytes = TABLES[BIAS].element_bytes(problem)
    count = BIAS_CHUNK if "bias_keys_chunks" in launch.needs else 2
    if problem.bias and not (
        "bias_keys_apart" in launch.needs or found.lie_by(count, n_bytes, problem.k_len)
    ):
        raise ArgumentError(
            f"bias begins at {found.address:#x} with strides {found.batch_stride}, "
            f"{found.head_stride}, {found.seq_stride} and {found.key_stride}; every {count} keys "
            f"must lie side by side at multiples of {count}; say bias_keys 'apart'."
        )
    return found


Plan = tuple[Launch, ...]  # of one problem: run one after the other
