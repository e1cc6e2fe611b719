"""A fact or a knob is one line: a toy of each, in a copy of the sources, arrives everywhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACT = (
    '    toy: int | None = fact(int, "a toy", absent=None, least=1, call="toy", option="--toy", '
    "changes_scores=True)\n"
)
KNOB = '    toy_words: int = knob((1, 2), "a toy knob", word="toy_{}", absent=1)\n'


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The sources with one line more in two files."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(ROOT / "src" / "flashsmith", folder / "flashsmith")
    for name, before, line in (
        ("problem/attention.py", "    layout: str = fact(", FACT),
        ("kernels/sm80_forward/config.py", "    optimized_softmax: bool = flag(", KNOB),
    ):
        path = folder / "flashsmith" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, line + before), encoding="utf-8")
    return folder


def run(copy, script):
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin", "HOME": str(copy)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_a_fact_arrives_in_texts_checks_needs_and_structs(copy):
    run(
        copy,
        """
from dataclasses import replace
from flashsmith import AttentionProblem, DType
from flashsmith.base.errors import ArgumentError
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.compile.unit import structs
from flashsmith.problem.text import problem_fields, problem_from_fields, problem_text
plain = AttentionProblem(1, 3, 3, 512, 512, 128, DType.BF16)
toy = replace(plain, toy=7)
assert "toy" not in problem_fields(plain) and problem_fields(toy)["toy"] == 7
assert problem_from_fields(problem_fields(toy)) == toy
assert "toy 7" in problem_text(toy) and "toy" not in problem_text(plain)
try:
    replace(plain, toy=0)
except ArgumentError as error:
    assert str(error) == "toy is 0; it must be an integer of at least 1 or None.", error
else:
    raise AssertionError
mma = "(BF16, 128, 64, 64, 4): load_0_0_0_tiles"
wgmma = "hopper(BF16, 128, 2, 128): kv_2+q_4+regs_240_24"
for text in (mma, wgmma):
    config = parse_config(text)
    assert "toy" in needs_of(config, toy) and "toy" not in needs_of(config, plain)
    assert not needs_of(config, toy).covers(needs_of(config, plain))
    assert config.kernel_name(needs_of(config, toy)) != config.kernel_name(needs_of(config, plain))
    assert "bool toy = required<bool>();  // a toy" in structs(type(config))
""",
    )


def test_a_fact_arrives_in_the_call_the_operator_the_command_and_the_page(copy):
    run(
        copy,
        """
import torch, subprocess, sys
from flashsmith import flash_attention
from flashsmith.base.errors import ArgumentError
from flashsmith.kernels.page import configuration_page
from flashsmith.torch_op.arguments import schema
assert "int? toy=None" in schema()
q = torch.zeros(1, 5, 3, 64, dtype=torch.float16)
try:
    flash_attention(q, q, q, toy=-1)
except ArgumentError as error:
    assert "toy is -1; it must be an integer of at least 1 or None" in str(error), error
else:
    raise AssertionError
assert flash_attention(q, q, q, toy=3).shape == q.shape  # by products: torch's own has no toy
assert flash_attention(q, q, q, toy=3, backend="emulator").shape == q.shape
assert "| `toy` |" in configuration_page()
for verb in (["run"], ["tune"], ["bench", "ladder"]):
    told = subprocess.run([sys.executable, "-m", "flashsmith", *verb, "--help"],
                          capture_output=True, text=True).stdout
    assert "--toy" in told and "A toy" in told, (verb, told)
""",
    )


def test_a_knob_arrives_in_texts_structs_space_and_page(copy):
    run(
        copy,
        """
from flashsmith.kernels import parse_config, get_kernel_configs
from flashsmith.compile.unit import structs
from flashsmith.kernels.page import configuration_page
old = "(BF16, 128, 64, 64, 4): load_0_0_0_tiles"
new = f"{old}+toy_2"
config = parse_config(new)
assert config.toy_words == 2 and config.short_form() == new
assert parse_config(old).toy_words == 1 and parse_config(old).short_form() == old
assert ".toy_words = 2" in config.to_cpp_struct()
assert "int toy_words = required<int>();  // a toy knob" in structs(type(config))
assert all(c.toy_words == 1 for c in get_kernel_configs("tune"))
assert "| `toy_words` | `toy_{}` | 1, 2 | a toy knob |" in configuration_page()
""",
    )
