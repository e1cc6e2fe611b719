"""Compiling: PTX, cubin and figures of one program, options in the key, errors that say where."""

import pytest

from flashsmith.base.errors import ArgumentError, CompileError
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.machine.cubin import code_hash
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.compile.unit import UnitOptions

SOURCE = """\
extern "C" __global__ void add_one(float* p) {
    __shared__ float s[64];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[63 - threadIdx.x] + 1.0f;
}
"""


def test_ptx_cubin_and_figures_come_from_one_program(cache):
    kernel = compile_text(SOURCE, "add_one", "sm_80", cache=cache)
    assert ".target sm_80" in kernel.ptx
    assert ".entry add_one" in kernel.ptx
    assert kernel.cubin.startswith(b"\x7fELF")
    assert 0 < kernel.resources.registers < 64
    assert (kernel.resources.static_smem_bytes, kernel.resources.barriers) == (256, 1)
    assert kernel.compiler.startswith("nvrtc 1")
    assert sorted(file.name for file in kernel.folder.iterdir()) == [
        "artefact.json",
        "artefact.sha256",
        "kernel.cu",
        "kernel.cubin",
        "kernel.log",
        "kernel.ptx",
    ]


def test_line_info_and_debug_are_other_kernels(cache):
    plain = compile_text(SOURCE, "add_one", "sm_80", cache=cache)
    lines = compile_text(
        SOURCE, "add_one", "sm_80", options=UnitOptions(line_info=True), cache=cache
    )
    debug = compile_text(SOURCE, "add_one", "sm_80", options=UnitOptions(debug=True), cache=cache)
    assert len({plain.key, lines.key, debug.key}) == 3
    assert ".loc" not in plain.ptx
    assert ".loc" in lines.ptx
    assert code_hash(lines.cubin) == code_hash(plain.cubin)
    assert code_hash(debug.cubin) != code_hash(plain.cubin)


def test_another_name_alone_leaves_the_machine_code_as_it_is(cache):
    one = compile_text(SOURCE, "add_one", "sm_90a", cache=cache)
    other = compile_text(SOURCE.replace("add_one", "other"), "other", "sm_90a", cache=cache)
    changed = compile_text(SOURCE.replace("63", "62"), "add_one", "sm_90a", cache=cache)
    assert one.cubin != other.cubin
    assert code_hash(one.cubin) == code_hash(other.cubin) != code_hash(changed.cubin)


def test_a_failed_unit_shows_its_sentence_and_is_kept(cache):
    source = 'static_assert(sizeof(int) == 8, "int: it has 4 bytes here");\n' + SOURCE
    with pytest.raises(
        CompileError, match=r"add_one: does not compile: .*it has 4 bytes"
    ) as caught:
        compile_text(source, "add_one", "sm_80", cache=cache)
    kept = caught.value.source_path
    assert (kept / "kernel.cu").read_text() == source
    assert "it has 4 bytes here" in (kept / "kernel.log").read_text()
    assert str(kept) in str(caught.value)


def test_an_architecture_nvrtc_does_not_know_is_a_compile_error(cache):
    with pytest.raises(CompileError, match="gpu-architecture"):
        compile_text(SOURCE, "add_one", "sm_13", cache=cache)


@pytest.mark.parametrize("arch", ["90a", "compute_90", "sm_", "sm_90b", "sm_90a,sm_80"])
def test_an_architecture_that_is_none_is_refused(cache, arch):
    with pytest.raises(ArgumentError, match=r"arch is .*such as 'sm_90a'"):
        compile_text(SOURCE, "add_one", arch, cache=cache)


def test_a_debug_unit_has_a_process_of_its_own(cache, monkeypatch):
    # NVRTC keeps the effect of -G: later kernels of the same process came out with spills.
    made_here = []
    compile_here = nvrtc.compile_program
    monkeypatch.setattr(
        nvrtc, "compile_program", lambda *unit: made_here.append(unit) or compile_here(*unit)
    )
    debug = compile_text(SOURCE, "add_one", "sm_80", options=UnitOptions(debug=True), cache=cache)
    assert made_here == []
    assert debug.cubin.startswith(b"\x7fELF")
    with pytest.raises(CompileError, match="expected a"):
        compile_text("int x", "x", "sm_80", options=UnitOptions(debug=True), cache=cache)
    compile_text(SOURCE, "add_one", "sm_80", cache=cache)
    assert len(made_here) == 1
