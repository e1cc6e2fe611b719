"""What every kernel's configuration offers to the rest of the package."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import OutOfResources, Unsupported
from flashsmith.base.fields import Knobs
from flashsmith.kernels.arguments import Arguments
from flashsmith.kernels.rules import Refusal, Rule, first_refusal
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs

if TYPE_CHECKING:
    from flashsmith.kernels.launch import Plan


class KernelConfig(Knobs):
    """One point of one kernel's space; subclasses are frozen, slotted, ordered dataclasses."""

    __slots__ = ()
    HEADER: ClassVar[str]  # what the generated unit includes
    PRELUDE: ClassVar[tuple[str, ...]]  # headers that the generated structs need
    CPP_ENTRY: ClassVar[str]  # the device function that is the kernel's body; empty: several are
    ARGUMENTS: ClassVar[type[Arguments]]  # of the kernel's one parameter
    HOST_HEADER: ClassVar[str] = ""  # of cuda/host: how a C program starts it; empty: it cannot
    OPERATION: ClassVar[str] = "forward"  # of problem/signature.py: what its plans compute
    SLICES_KEYS: ClassVar[bool] = False  # a row's keys are always shared out among ctas
    FIXES_REGISTERS: ClassVar[bool] = False  # by setmaxnreg; other kernels have what ptxas finds
    REFUSED_FACTS: ClassVar[tuple[str, ...]] = ()  # of a problem, that its kernels do not compute
    BUILD_RULES: ClassVar[tuple[Rule, ...]]  # what no compiler could build
    AUTOTUNE_RULES: ClassVar[tuple[Rule, ...]]  # what is not worth measuring

    dtype: DType
    d_head: int

    @property
    @abstractmethod
    def tile_q(self) -> int:
        """Rows of Q that one cta owns."""

    @property
    @abstractmethod
    def tile_k(self) -> int:
        """Rows of K and V of one step."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of one cta."""

    @abstractmethod
    def smem_bytes(self, elem_size: int = 2) -> int:
        """Dynamic shared memory of one cta."""

    @property
    def numeric_class(self) -> str:
        """What a row's bits follow from beside its own sequence; empty: from more than that."""
        return ""

    @classmethod
    @abstractmethod
    def runs_on(cls, arch_name: str) -> bool:
        """Whether the kernel exists for an architecture such as `sm_90a`."""

    @classmethod
    def named_sets(cls) -> Mapping[str, Callable[[], Sequence[KernelConfig]]]:
        """The sets of this kernel that a KEY may name."""
        return {}

    @classmethod
    def autotuning_grid(cls) -> Sequence[KernelConfig]:
        """The points that tuning starts from, before `AUTOTUNE_RULES`."""
        return ()

    @classmethod
    def candidates(cls, problem: AttentionProblem, arch: Arch) -> Sequence[KernelConfig]:
        """What to run where nothing was measured, best first; none: another kernel is asked."""
        return ()

    @classmethod
    def is_last_resort(cls, problem: AttentionProblem) -> bool:
        """Whether another kernel that computes the problem does better, by the request alone."""
        del problem
        return False

    def drawback(self, problem: AttentionProblem) -> str:
        """Why a winner on other problems is not to be taken for this one, or nothing."""
        del problem
        return ""

    def depends_on_batch(self, problem: AttentionProblem) -> str:
        """Why a row's bits may depend on what else is in the batch; empty where they do not."""
        del problem
        return ""

    def refused_problem(self, problem: AttentionProblem) -> str:
        """Why its kernels do not compute facts together that they compute alone, or nothing."""
        del problem
        return ""

    @property
    def repeats_bits(self) -> bool:
        """Whether the same inputs give the same bits every time."""
        return True

    @abstractmethod
    def plan(self, problem: AttentionProblem, sm_count: int) -> Plan:
        """The launches of this configuration on a problem that it computes."""

    def kernels(self) -> tuple[KernelConfig, ...]:
        """What is compiled for the launches of a plan, a configuration each: mostly itself."""
        return (self,)

    def kernel_name(self, needs: Needs) -> str:
        """The `extern "C"` name of the kernel: profilers show which configuration ran."""
        return f"flashsmith_{self.identifier()}__{needs.identifier()}"

    def refusal(self) -> Refusal | None:
        """Why no kernel of this configuration can be built, or None."""
        return first_refusal(self.BUILD_RULES, self)

    def autotune_refusal(self) -> Refusal | None:
        """Why this configuration is not worth measuring, or None."""
        return first_refusal(self.AUTOTUNE_RULES, self)

    def refused_build(self, spill_bytes: int, remarks: Sequence[str]) -> Refusal | None:
        """Why what the compiler made of this configuration must not be used, or None."""
        return None

    @classmethod
    def judges_builds(cls) -> bool:
        """Whether some builds are refused; of other kernels nobody has to look at the build."""
        return cls.refused_build is not KernelConfig.refused_build

    def require_buildable(self, arch: Arch | None = None) -> None:
        """Raises unless the configuration can be built, and fits a cta of `arch` if given."""
        refusal = self.refusal()
        if refusal is not None:
            raise Unsupported(f"{self.short_form()}: {refusal}.")
        if arch is None:
            return
        if not self.runs_on(arch.name):
            raise Unsupported(
                f"{self.short_form()}: {self.NAME} does not exist for {arch.name}; "
                f"choose another architecture or kernel."
            )
        if self.smem_bytes() > arch.max_smem_per_block:
            raise OutOfResources(
                self.short_form(),
                f"bytes of shared memory a block on {arch.name}",
                self.smem_bytes(),
                arch.max_smem_per_block,
                "choose smaller tiles",
            )
