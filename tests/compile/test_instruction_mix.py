"""Instructions are counted once each, and nothing else is taken for one."""

import pytest

from flashsmith.base.errors import CompilerMissing, DamagedFile
from flashsmith.compile.machine import sass
from flashsmith.compile.machine.instruction_mix import ptx_mix, sass_mix

PTX = """\
.version 9.0
.target sm_80
.global .align 4 .u32 add = 13;
.visible .entry k(.param .u64 p)
.maxntid 128
{
	.reg .pred 	%p<2>;
	ld.param.u64 	%rd1, [p];
	// begin inline asm
	{cvt.rn.bf16x2.f32 %r1, %f1, %f2;}
	cp.async.cg.shared.global.L2::128B [%r2], [%rd1], 16;
	// end inline asm
$L__BB0_1:
	@%p1 bra 	$L__BB0_1;
	@!%p1 add.s32 	%r3, %r3, 1;
	add.s64 	%rd2, %rd1, 8; /* add.s64 %rd3, %rd1, 8; */
	ret;
}
"""
SASS = """\
        .global         k
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/              @!P5 IMAD.IADD R5, R5, 0x1, -R8 ;
        /*0020*/              @UP1 UIADD3 UR4, UR4, 0x1, URZ ;
        /*10030*/                   IMAD R5, R0, R153, RZ ;
        /*10040*/                   EXIT ;
"""


def test_ptx_opcodes_are_counted_without_directives_labels_and_comments():
    assert ptx_mix(PTX) == {"ld": 1, "cvt": 1, "cp": 1, "bra": 1, "add": 2, "ret": 1}
    assert ptx_mix(PTX, whole=True)["cp.async.cg.shared.global.L2::128B"] == 1
    assert ptx_mix(PTX, whole=True)["add.s64"] == 1


def test_sass_opcodes_are_counted_guarded_or_not():
    assert sass_mix(SASS) == {"LDC": 1, "IMAD": 2, "UIADD3": 1, "EXIT": 1}
    assert sass_mix(SASS, whole=True)["IMAD.IADD"] == 1


def test_a_cubin_that_nvdisasm_cannot_read_is_refused():
    with pytest.raises(DamagedFile, match="nvdisasm refused a cubin"):
        sass.disassemble(b"no cubin")


def test_a_missing_nvdisasm_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sass.sys, "path", [])
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    monkeypatch.setattr(sass, "TOOLKIT", tmp_path / "none")
    with pytest.raises(CompilerMissing, match="install nvidia-cuda-nvdisasm"):
        sass.find_nvdisasm()
