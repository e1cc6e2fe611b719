"""A compiler that plants a fault in five kernels: what the tuner must survive."""

import os

from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.compile.unit import unit_source
from flashsmith.kernels import get_kernel_configs

CONFIGS = [c for c in get_kernel_configs("64,32") if c.dtype.name == "BF16"][:7]
FAULTS = dict(zip(CONFIGS, ("trap", "hang", "out of bounds", "wrong", "crash"), strict=False))
CODE = {
    "trap": 'asm volatile("trap;");',
    "hang": 'asm volatile("{ FOREVER: bra FOREVER; }");',
    "out of bounds": "*reinterpret_cast<volatile float*>(args.o.address + (1ull << 42)) = 1.0f;",
}


def planted_compile(config, needs, arch):
    fault = FAULTS.get(config)
    if fault is None:
        return compile_kernel(config, needs, arch)
    if fault == "crash":
        os.abort()
    source = unit_source(config, needs)
    call = f"{config.CPP_ENTRY}<kConfig, kNeeds>(args);"
    assert source.count(call) == 1
    if fault == "wrong":
        changed = call.replace("(args)", "(wrong)")
        body = f"auto wrong = args; wrong.scale_log2 *= 1.5f; {changed}"
    else:
        body = f"{CODE[fault]} {call}"
    return compile_text(source.replace(call, body), config.kernel_name(needs), arch)
