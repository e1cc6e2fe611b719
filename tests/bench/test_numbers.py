"""How near outputs are to the exact one: ours and those of peers, on the same tensors."""

import json
import sys
import types

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.bench.numbers import apart, compare_numbers, exact
from flashsmith.bench.peers import Peer, find_peers, peer_of_file
from flashsmith.check.tolerance import UNIT_ROUNDOFF
from flashsmith.cli.main import app
from flashsmith.cli.verbs.bench import number_rows
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.reference import reference
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles")
PROBLEM = AttentionProblem(2, 4, 2, 70, 70, 64, DType.BF16, causal=True)
SUITE = """about = "one small shape"
[[shape]]
name = "small"
batch = 1
heads = 2
kv_heads = 2
length = 70
d_head = 64
mask = "causal"
"""


def worse(problem, q, k, v):
    """A peer that gives heads first, a log-sum-exp, and an error of its own."""

    def call():
        out = exact(problem, q, k, v)
        out[0, 0, 0, 0] += 0.5
        return out.transpose(1, 2), torch.zeros(1)

    return call


def rounding_of(numbers):
    """Of the largest element of an output."""
    return UNIT_ROUNDOFF[PROBLEM.dtype] * numbers.output.abs().max()


@pytest.fixture(scope="module")
def found():
    peers = [*find_peers(["FlashAttention-2"]), Peer("worse", worse), *find_peers(["fa4"])]
    return compare_numbers(EmulatedDevice(), PROBLEM, [CONFIG], peers)


def test_a_set_is_compared_with_flash_attention_2_on_the_same_tensors(found):
    (ours,), (theirs, _) = found.ours, found.peers
    assert (ours.name, theirs.name) == (CONFIG.short_form(), "FlashAttention-2 (torch)")
    assert 0 < theirs.rms < rounding_of(theirs)
    assert 0.5 < ours.rms / theirs.rms < 2
    assert 0 < apart(ours, theirs) <= ours.worst + theirs.worst


def test_a_peers_error_is_its_own_whatever_order_it_gives(found):
    other = found.peers[1]
    assert other.worst == pytest.approx(0.5)
    assert apart(found.ours[0], other) > 0.4


def test_a_peer_that_cannot_run_is_named_with_the_reason(found):
    assert found.left_out == {"flash-attn 4": "No module named 'flash_attn'"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("fa2", ["FlashAttention-2 (torch)", "flash-attn 2"]),
        ("fa3", ["flash-attn 3"]),
        ("FlashAttention-2", ["FlashAttention-2 (torch)"]),
        ("fa", []),
    ],
)
def test_peers_answer_to_their_short_names(asked, found):
    assert [peer.name for peer in find_peers([asked])] == found


def test_flash_attention_3_is_compared_where_it_can_be_imported(monkeypatch):
    module = types.ModuleType("flash_attn_interface")

    def flash_attn_func(q, k, v, *, softmax_scale, causal):
        assert (softmax_scale, causal) == (PROBLEM.softmax_scale, True)
        return exact(PROBLEM, q, k, v).to(q.dtype), torch.zeros(1)

    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, module.__name__, module)
    compared = compare_numbers(EmulatedDevice(), PROBLEM, [], find_peers(["fa3"]))
    (theirs,) = compared.peers
    assert (theirs.name, compared.left_out) == ("flash-attn 3", {})
    assert 0 < theirs.worst <= rounding_of(theirs)


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
@pytest.mark.parametrize("key", ["prog", "hopper-prog"])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_a_set_is_as_near_as_flash_attention_2_and_3(key, causal):
    device, configs = default_device("cuda"), resolve_key(key)
    if key == "hopper-prog" and device.arch != "sm_90a":
        pytest.skip("needs sm_90a")
    dtype, d_head = configs[0].dtype, configs[0].d_head
    problem = AttentionProblem(2, 6, 2, 1000, 1000, d_head, dtype, causal=causal)
    compared = compare_numbers(device, problem, configs, find_peers(["fa2", "fa3"]))
    assert "FlashAttention-2 (torch)" in [peer.name for peer in compared.peers]
    for peer in compared.peers:
        assert {o.name: o.rms / peer.rms for o in compared.ours if o.rms > 1.5 * peer.rms} == {}


def test_the_exact_result_is_that_of_the_reference():
    random = np.random.default_rng(3)
    shapes = {"q": (2, 70, 4, 64), "k": (2, 70, 2, 64), "v": (2, 70, 2, 64)}
    bits = {
        n: to_bits(random.standard_normal(s, np.float32), DType.BF16) for n, s in shapes.items()
    }
    tensors = [torch.from_numpy(bits[name]).view(torch.bfloat16) for name in "qkv"]
    numbers = {name: from_bits(array, DType.BF16) for name, array in bits.items()}
    truth = reference(PROBLEM, numbers)["o"]
    np.testing.assert_allclose(exact(PROBLEM, *tensors).numpy(), truth, rtol=0, atol=1e-12)


def test_rows_state_both_errors_their_ratio_and_the_distance(found):
    first, second = number_rows(found)
    assert first["peer"] == "FlashAttention-2 (torch)"
    assert first["rms_ratio"] == pytest.approx(first["ours_rms"] / first["peer_rms"], rel=0.01)
    assert second["peer_worst"] == 0.5


def test_the_verb_takes_a_set_a_peer_of_a_file_and_any_device(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "peer.py").write_text(
        "import torch\n\n\ndef mine(problem, q, k, v):\n    return lambda: torch.zeros_like(q)\n"
    )
    assert peer_of_file(f"{tmp_path / 'peer.py'}:mine").name == "mine"
    arguments = ["bench", CONFIG.short_form(), "--suite", str(tmp_path / "suite.toml")]
    arguments += ["--peer", f"{tmp_path / 'peer.py'}:mine", "--numbers", "--json"]
    ran = CliRunner().invoke(app, arguments)
    (row,) = json.loads(ran.stdout)
    assert (row["shape"], row["peer"], row["config"]) == ("small", "mine", CONFIG.short_form())
    assert row["peer_rms"] > 10 * row["ours_rms"] > 0
    lacking = CliRunner().invoke(app, [*arguments, "--peers", "fa4"])
    assert "flash-attn 4 did not run: No module named 'flash_attn'" in lacking.stderr
    unknown = CliRunner().invoke(app, [*arguments, "--peers", "fa2,fa7"])
    assert "--peers is 'fa7'; peers are cuDNN, " in str(unknown.exception)
    refused = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "x.jsonl")])
    assert "--numbers and -o are both given" in str(refused.exception)
