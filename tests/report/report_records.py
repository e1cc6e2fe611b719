"""Records as a GPU run would write them, for tests of the report."""

from flashsmith.kernels import get_kernel_configs
from flashsmith.measure.record import Record

ENVIRONMENT = {
    "device": "NVIDIA H200",
    "arch": "sm_90a",
    "commit": "abc",
    "date": "2026-11-15",
    "compiler": "nvrtc 13.0",
}
CONFIGS = get_kernel_configs("prog")


def record(
    suite,
    name,
    length,
    median_us,
    *,
    d_head=128,
    causal=False,
    void=False,
    date="2026-11-15",
    ratio=(1.1, 1.05, 1.2),
):
    what = {"suite": suite, "name": name, "batch": 2, "heads": 16, "kv_heads": 16}
    what |= {"q_len": length, "k_len": length, "d_head": d_head, "dtype": "FP16"}
    what |= {"causal": causal, "diagonal": None, "layout": "bshd"}
    flops = 4 * 2 * 16 * length * length * d_head
    result = {"median_us": median_us, "p20_us": median_us, "p80_us": median_us, "rounds": 21}
    result |= {"tflops": flops / median_us / 1e6, "control": 1.0, "void": void}
    result |= dict(zip(("ratio", "ratio_p20", "ratio_p80"), ratio, strict=True))
    return Record(what, result, {**ENVIRONMENT, "date": date})


def profiled(name, length, tensor_pct, **what):
    """What a profiler counted of one launch."""
    base = record("profile", name, length, 100.0, **what)
    counted = {"duration_us": 100.0, "registers": 168.0, "l2_hit_pct": 91.5}
    result = {**counted, "tensor_pct": tensor_pct, "tflops": base.result["tflops"]}
    return Record(base.what, result, base.environment)
