"""PTX text: dialects, scopes, and what is said of text that cannot be read or run."""

import struct

import numpy as np
import pytest
from lanes import launch, run_lanes, text

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.machine.storage import storage_types
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.program import load
from flashsmith.emulator.ptx.instruction import Address, Imm, Pair, Reg, Special, Symbol, Vector
from flashsmith.emulator.ptx.parse import parse_kernel

STORE = "ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], %r1;"


def test_instructions_are_typed_with_their_operands_and_lines():
    body = """ld.global.v2.f32 {%f1, %f2}, [%rd1+-16];
        @!%p1 mov.u32 %r1, %tid.x;
        shfl.sync.up.b32 %r1|%p2, %r2, 0x10, 0, -1;"""
    kernel = parse_kernel(text(body, 1))
    first, second, third, _ = kernel.instructions
    assert (first.opcode, first.modifiers, first.type) == ("ld", ("global", "v2", "f32"), "f32")
    vector, address = first.operands
    assert isinstance(vector, Vector)
    assert isinstance(address, Address)
    assert address.offset == -16
    assert second.guard is not None
    assert second.guard.negated
    assert second.operands[1] == Special("%tid.x")
    assert second.line == first.line + 1
    assert isinstance(third.operands[0], Pair)
    assert third.operands[2:] == (Imm(16), Imm(0), Imm(-1))


def test_constants_are_read_in_every_notation():
    body = "mov.f32 %f1, 0f3F800000; mov.u32 %r1, 0xFF; mov.u32 %r2, 017; mov.b32 %r3, -1;"
    values = [i.operands[1] for i in parse_kernel(text(body, 0)).instructions[:4]]
    assert values == [Imm(0x3F800000, 32), Imm(255), Imm(15), Imm(-1)]


def test_names_inside_braces_hide_those_outside():
    body = """mov.u32 %r1, 1;
        { .reg .b32 %r1; .reg .pred p; mov.u32 %r1, 5; setp.eq.u32 p, %r1, 5; }
        { .reg .pred p; setp.eq.u32 p, %r1, 1; selp.u32 %d, %r1, 9, p; }"""
    assert run_lanes(body).tolist() == [1] * 32


def test_comments_do_not_move_line_numbers():
    body = "// one\n/* two\nthree */ mov.u32 %r1, 1;\nfrobnicate.u32 %r1, %r1;"
    plain = text(body, 0)
    line = next(n for n, t in enumerate(plain.splitlines(), 1) if "frobnicate" in t)
    with pytest.raises(EmulationError, match=rf"line {line}: frobnicate.u32: unknown opcode"):
        load(plain)


def test_everything_unknown_is_listed_at_once():
    body = "frob.u32 %r1, %r2;\nmov.u32 %r1, 3;\ntwiddle.f32 %f1, %f2;\ndiv.rm.f32 %f1, %f1, %f1;"
    with pytest.raises(EmulationError) as caught:
        load(text(body, 0))
    assert "frob.u32" in str(caught.value)
    assert "twiddle.f32" in str(caught.value)
    assert "div.rm.f32: rounding .rm of div" in str(caught.value)


def test_undeclared_registers_are_listed_with_their_lines():
    with pytest.raises(EmulationError, match=r"unreadable PTX: line \d+: .*%zz3.*line \d+: .*%q"):
        load(text("mov.u32 %zz3, 1;\nmov.u32 %r1, %q;", 0))


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_truncated_text_says_where_it_ends(keep):
    whole = text("mov.u32 %r1, 1;\n" * 30, 1)
    cut = whole[: int(len(whole) * keep)]
    with pytest.raises(EmulationError, match=r"truncated PTX|no \.entry|bad PTX"):
        load(cut)


def test_a_wrong_number_of_parameters_is_refused():
    program = load(text(STORE.replace("%r1", "%r50").replace("st", "mov.u32 %r50, 1; st", 1), 2))
    with pytest.raises(EmulationError, match="1 parameters given, the kernel takes 2"):
        program.launch((1, 1, 1), 32, 0, (bytes(8),), GlobalMemory())
    with pytest.raises(EmulationError, match="parameter 1 has 4 bytes, the kernel takes 8"):
        program.launch((1, 1, 1), 32, 0, (bytes(8), bytes(4)), GlobalMemory())


@pytest.mark.parametrize(
    ("grid", "threads", "smem", "words"),
    [
        ((2**31, 1, 1), 32, 0, "along x; 1 to 2,147,483,647"),
        ((1, 65536, 1), 32, 0, "65,536 blocks along y"),
        ((1, 1, 0), 32, 0, "0 blocks along z"),
        ((1, 1, 1), 1025, 0, "1025 threads"),
        ((1, 1, 1), 32, 300000, "300,000 bytes of shared memory"),
        ((1, 1, 1), 32, -1, "0 or more"),
    ],
)
def test_impossible_launches_say_what_is_possible(grid, threads, smem, words):
    with pytest.raises(EmulationError, match=words):
        load(text("mov.u32 %r1, 1;", 0)).launch(grid, threads, smem, (), GlobalMemory())


def test_registers_beyond_the_launch_bound_are_refused():
    bounded = text("mov.u32 %r1, 1;", 0).replace(")\n{", ")\n.maxntid 256, 1, 1\n.maxnreg 128\n{")
    program = load(bounded)
    program.launch((1, 1, 1), 256, 0, (), GlobalMemory(), registers=128)
    with pytest.raises(EmulationError, match=r"\.maxnreg of the kernel is 128"):
        program.launch((1, 1, 1), 256, 0, (), GlobalMemory(), registers=129)
    with pytest.raises(EmulationError, match=r"\.maxntid of the kernel is 256"):
        program.launch((1, 1, 1), 288, 0, (), GlobalMemory())
    with pytest.raises(EmulationError, match="gives a block 65,536 registers"):
        load(text("mov.u32 %r2, 1;", 0)).launch(
            (1, 1, 1), 1024, 0, (), GlobalMemory(), registers=80
        )


def test_a_module_of_two_kernels_needs_a_name():
    one = text("mov.u32 %r1, 1;\n" + STORE, 1)
    two = one + text("mov.u32 %r1, 2;\n" + STORE, 1).partition(".address_size 64")[2].replace(
        "probe", "other"
    )
    with pytest.raises(EmulationError, match="2 entries; name one of probe, other"):
        load(two)
    memory = GlobalMemory()
    out = memory.allocate(4)
    load(two, "other").launch((1, 1, 1), 1, 0, (struct.pack("<Q", out),), memory)
    assert memory.read(out, 4).tolist() == [2, 0, 0, 0]
    with pytest.raises(EmulationError, match="no entry third"):
        load(two, "third")


def test_structs_are_passed_by_their_bytes():
    ptx = text("ld.param.v2.u32 {%r1, %r2}, [args+8]; add.u32 %r1, %r1, %r2;\n" + STORE, 1)
    ptx = ptx.replace(".param .u64 p0", ".param .u64 p0,\n.param .align 8 .b8 args[24]")
    memory = GlobalMemory()
    out = memory.allocate(4)
    args = np.arange(6, dtype=np.uint32).tobytes()
    load(ptx).launch((1, 1, 1), 1, 0, (struct.pack("<Q", out), args), memory)
    assert memory.read(out, 4)[0] == 2 + 3


def test_jump_tables_send_each_lane_its_way():
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; table: .branchtargets a, b, c, d;
        brx.idx %r2, table; a: mov.u32 %r3, 10; bra done; b: mov.u32 %r3, 20; bra done;
        c: mov.u32 %r3, 30; bra done; d: mov.u32 %r3, 40; done: ld.param.u64 %rd1, [p0];
        mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r3;"""
    out, _ = launch(text(body, 1), [], 128, 1, 32)
    assert out.view(np.uint32).tolist() == [10, 20, 30, 40] * 8


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_registers_are_typed_by_opcode_in_every_dialect(target):
    # sm_100a text keeps floats in .b32 registers.
    x = np.array([1.5, -2.0] * 16, np.float32)
    body = "mul.f32 %r1, %a0, 0f40000000; add.f32 %f1, %r1, %a0; mov.b32 %d, %f1;"
    assert run_lanes(body, x, out=np.float32, target=target).tolist() == (3 * x).tolist()


def test_an_address_is_an_integer_whatever_register_holds_it():
    # sm_100a text keeps addresses and floats in .b32 alike; a sum of floats gives no hint.
    body = """mov.b32 %r5, tile; st.shared.f32 [%r5], 0f00000000; bar.warp.sync -1;
        red.shared.add.f32 [%r5], %a0; bar.warp.sync -1; ld.shared.f32 %d, [%r5];"""
    smem = "\t.shared .align 16 .b8 tile[16];"
    ones = np.ones(32, np.float32)
    one = body.replace("st.shared", "setp.eq.u32 %p1, %r50, 0; @%p1 st.shared")
    assert run_lanes(one, ones, out=np.float32, shared=smem).tolist() == [32.0] * 32
    floating = one.replace("mov.b32 %r5, tile", "mov.b32 %f9, tile; mov.b32 %r5, %f9")
    assert run_lanes(floating, ones, out=np.float32, shared=smem).tolist() == [32.0] * 32


def test_registers_that_hold_addresses_of_floats_are_kept_as_integers():
    kernel = parse_kernel(text("red.global.add.f32 [%rd1], %f1;", 1))
    kinds = dict(zip((r.name for r in kernel.registers), storage_types(kernel), strict=True))
    assert (kinds["%rd1"], kinds["%f1"]) == ("u64", "f32")


def test_operands_print_as_data():
    assert Reg("%r1", 3, "b32") == Reg("%r1", 3, "b32")
    assert Symbol("tile", 4).offset == 4
