"""What a launch held is free when it ends: no collector of cycles has to come by."""

import gc
import weakref

from flashsmith.check.cases import inputs_of, quick_cases
from flashsmith.emulator.machine import chunk
from flashsmith.kernels import parse_config
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays


def test_shared_memory_of_a_launch_is_free_at_its_end(monkeypatch):
    held = []

    class Noted(chunk.Shadow):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            held.append(weakref.ref(self))

    monkeypatch.setattr(chunk, "Shadow", Noted)
    config = parse_config("(FP16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles")
    case = quick_cases(config)[0]
    gc.collect()
    gc.disable()
    try:
        run_arrays(EmulatedDevice(), config, case.problem, inputs_of(case))
        assert held
        assert not any(shadow() for shadow in held)
    finally:
        gc.enable()
