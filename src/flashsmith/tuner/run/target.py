"""What is tuned for: a GPU by name with its driver, or an architecture in the emulator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.measure.environment import environment_of
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.emulated import EmulatedDevice


@dataclass(frozen=True, slots=True)
class Target:
    """The part of a measurement's key that a whole run shares, and where its workers run."""

    device: str  # "cuda" or "emulator"
    gpu: str
    arch: str
    driver: str
    compiler: str
    sm_count: int
    environment: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def can_time(self) -> bool:
        """Whether times mean something here."""
        return self.device == "cuda"


def target_here(device: str, arch: str | None = None) -> Target:
    """The GPU of this machine, or the emulator of `arch`."""
    compiler = find_nvrtc().compiler
    opened = default_device("cuda") if device == "cuda" else EmulatedDevice(arch or "sm_90a")
    environment = environment_of(opened, compiler=compiler)
    return Target(
        device,
        opened.name,
        opened.arch,
        environment.driver,
        compiler,
        opened.sm_count,
        asdict(environment),
    )
