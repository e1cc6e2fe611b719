"""From a configuration to machine code: unit, NVRTC, resources, cache, and ahead-of-time builds."""
