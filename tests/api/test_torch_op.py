"""The torch operator: compiled, exported, faked and captured like torch's own."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from placed_arrays import Placement, placed_inputs, require_right
from torch._subclasses.fake_tensor import FakeTensorMode

import flashsmith
from flashsmith import flash_attention
from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case
from flashsmith.problem.attention import AttentionProblem

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
CASE = Case("operator", AttentionProblem(2, 6, 2, 70, 203, 64, DType.BF16, causal=True))
SHORT = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(device, layout="bshd", case=CASE, placement=None):
    placed = placed_inputs(case, placement or Placement(), layout)
    return [item.torch(case.problem.dtype, device) for item in placed]


def heads_first(q, k, v):
    return [t.transpose(1, 2) for t in (q, k, v)]


CALLS = {
    "plain": lambda q, k, v: flash_attention(q, k, v),
    "causal": lambda q, k, v: flash_attention(q, k, v, causal=True),
    "scale": lambda q, k, v: flash_attention(q, k, v, scale=0.3),
    "lse": lambda q, k, v: flash_attention(q, k, v, return_lse=True),
    "bhsd": lambda q, k, v: flash_attention(*heads_first(q, k, v), layout="bhsd"),
    "out": lambda q, k, v: flash_attention(q, k, v, out=torch.empty_like(q)),
    "flash_attn_func": lambda q, k, v: flashsmith.flash_attn_func(q, k, v, causal=True),
    "sdpa": lambda q, k, v: flashsmith.scaled_dot_product_attention(
        *heads_first(q, k, v), is_causal=True, enable_gqa=True
    ),
}


def same(ours, theirs):
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


# Sizes that are traced as numbers or as symbols; what symbols change is seen on the CPU.
TRACED = [
    *(("cpu", dynamic) for dynamic in (False, True)),
    pytest.param("cuda", False, marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("where", "dynamic"), TRACED)
@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_is_one_graph_with_the_same_bits(name, dynamic, where):
    torch._dynamo.reset()
    call = CALLS[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    same(compiled(*tensors(where)), call(*tensors(where)))


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return flash_attention(q, k, v, causal=True) + 1


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_calls_the_operator(strict, where):
    arrays = tensors(where)
    exported = torch.export.export(Model(), tuple(arrays), strict=strict)
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert torch.ops.flashsmith.forward.default in targets
    same(exported.module()(*arrays), Model()(*arrays))


LOADED = """
import sys

import torch

import flashsmith

program = torch.export.load(sys.argv[1] + "/model.pt2")
arrays, out = torch.load(sys.argv[1] + "/called.pt")
print(torch.equal(program.module()(*arrays), out))
"""


def test_an_exported_model_gives_the_same_numbers_in_another_process(tmp_path):
    arrays = tensors("cpu")
    torch.export.save(torch.export.export(Model(), tuple(arrays)), tmp_path / "model.pt2")
    torch.save((arrays, Model()(*arrays)), tmp_path / "called.pt")
    command = [sys.executable, "-c", LOADED, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr


def test_an_exported_model_takes_other_lengths():
    batch, rows = torch.export.Dim("batch", max=64), torch.export.Dim("rows", min=2, max=4096)
    arrays = tensors("cpu")
    exported = torch.export.export(
        Model(), tuple(arrays), dynamic_shapes=({0: batch, 1: rows}, {0: batch}, {0: batch})
    )
    shorter = [arrays[0][:1, :17], arrays[1][:1], arrays[2][:1]]
    same(exported.module()(*shorter), Model()(*shorter))


@pytest.mark.parametrize("placement", [Placement(), Placement("bhsd"), Placement("bsdh")])
def test_fake_and_meta_tensors_have_the_real_shapes_and_strides(placement):
    arrays = tensors("cpu", placement=placement)
    real = flash_attention(*arrays, return_lse=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = flash_attention(*(mode.from_tensor(t) for t in arrays), return_lse=True)
    meta = flash_attention(*(t.to("meta") for t in arrays), return_lse=True)
    for made in (fake, meta):
        for ours, theirs in zip(made, real, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert [t.stride() for t in fake] == [t.stride() for t in real]


def test_a_bad_call_is_refused_for_meta_tensors():
    with pytest.raises(ValueError, match="d_head is 520"):
        flash_attention(*[torch.empty(1, 2, 3, 520, device="meta", dtype=torch.float16)] * 3)


@pytest.mark.parametrize("where", WHERE)
def test_torchs_own_checks_of_operators_pass(where):
    q, k, v = tensors(where)
    lse = torch.empty(2, 6, 70, device=where)
    lengths = torch.tensor([5, 70], dtype=torch.int32, device=where)
    for operator, arguments in (
        (torch.ops.flashsmith.forward.default, (q, k, v, None, True)),
        (torch.ops.flashsmith.forward_lse.default, (q, k, v, 0.3)),
        (torch.ops.flashsmith.forward_out.default, (q, k, v, torch.empty_like(q), lse)),
        (torch.ops.flashsmith.forward_cache.default, (q, k, v, lengths, None, True)),
    ):
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("where", WHERE)
def test_inference_mode_and_no_grad_serve_weights_that_require_gradients(where):
    q, k, v = tensors(where)
    parameter = torch.nn.Parameter(q)
    with torch.no_grad():
        same(flash_attention(parameter, k, v), flash_attention(q, k, v))
    with torch.inference_mode():
        assert flash_attention(parameter, k, v).is_inference()
    assert flash_attention(parameter, k, v).requires_grad


def test_the_output_lies_in_memory_as_q_does():
    q, k, v = tensors("cpu", layout="bhsd", placement=Placement("bhsd"))
    assert flash_attention(q, k, v, layout="bhsd").is_contiguous()
    q, k, v = heads_first(*tensors("cpu"))
    out = flash_attention(q, k, v, layout="bhsd")
    assert out.transpose(1, 2).is_contiguous()


def test_an_expanded_query_gets_an_output_of_its_own():
    q, k, v = tensors("cpu")
    out = flash_attention(q[:1].expand(2, -1, -1, -1), k, v)
    assert 0 not in out.stride()
    assert torch.equal(out[0], flash_attention(q[:1], k[:1], v[:1])[0])


def test_no_keys_give_0_and_minus_infinity_on_the_cpu():
    q = torch.ones(2, 70, 3, 64, dtype=torch.float16)
    out, lse = flash_attention(q, q[:, :0], q[:, :0], return_lse=True)
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_torchs_attention_on_the_cpu_is_right_for_every_alignment():
    out, lse = flash_attention(*tensors("cpu"), causal=True, return_lse=True)
    require_right(CASE, "bshd", out.float().numpy(), lse.numpy())
    masked = Case("masked rows", AttentionProblem(1, 3, 1, 203, 70, 64, DType.BF16, causal=True))
    out, lse = flash_attention(*tensors("cpu", case=masked), causal=True, return_lse=True)
    require_right(masked, "bshd", out.float().numpy(), lse.numpy())


def test_the_emulator_runs_a_compiled_call_with_a_configuration():
    torch._dynamo.reset()

    def call(q, k, v):
        return flash_attention(q, k, v, causal=True, config=SHORT, backend="emulator")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    out = compiled(*tensors("cpu"))
    require_right(CASE, "bshd", out.float().numpy())


gpu = pytest.mark.gpu


@gpu
def test_the_inductor_compiles_a_call():
    torch._dynamo.reset()
    compiled = torch.compile(Model(), fullgraph=True)
    same(compiled(*tensors("cuda")), Model()(*tensors("cuda")))


@gpu
@pytest.mark.parametrize("name", ["causal", "lse", "out"])
def test_a_captured_call_replays_with_fresh_inputs(name):
    call = CALLS[name]
    arrays = tensors("cuda")
    call(*arrays)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*arrays)
    for seed in range(3):
        torch.manual_seed(seed)
        for tensor in arrays:
            tensor.normal_()
        graph.replay()
        torch.cuda.synchronize()
        same(captured, call(*arrays))


@gpu
def test_streams_do_not_disturb_each_other():
    arrays = [tensors("cuda", case=Case(f"stream {i}", CASE.problem)) for i in range(2)]
    alone = [flash_attention(*inputs, causal=True) for inputs in arrays]
    streams = [torch.cuda.Stream() for _ in arrays]
    torch.cuda.synchronize()
    outs = []
    for _ in range(20):
        for stream, inputs in zip(streams, arrays, strict=True):
            with torch.cuda.stream(stream):
                outs.append(flash_attention(*inputs, causal=True))
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        assert torch.equal(out, alone[i % 2])


@gpu
def test_a_thread_without_a_context_can_make_the_first_call():
    arrays = tensors("cuda", case=Case("threads", AttentionProblem(1, 5, 1, 33, 190, 40)))
    torch.cuda.synchronize()
    outs = [None] * 4

    def work(i):
        outs[i] = flash_attention(*arrays)
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(outs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, outs[0]) for out in outs)


@gpu
def test_more_than_2_to_the_31_elements_are_addressed():
    rows, heads, d_head = 2**17 + 5, 130, 128
    assert rows * heads * d_head > 2**31
    q = torch.zeros(1, rows, heads, d_head, dtype=torch.bfloat16, device="cuda")
    torch.manual_seed(0)
    q[:, -70:].normal_()
    k = torch.randn(1, 203, heads, d_head, dtype=torch.bfloat16, device="cuda")
    v = torch.randn_like(k)
    out = flash_attention(q, k, v)[:, -70:]
    tail = heads_first(q[:, -70:].float(), k.float(), v.float())
    truth = torch.nn.functional.scaled_dot_product_attention(*tail).transpose(1, 2)
    same = torch.nn.functional.scaled_dot_product_attention(*(x.bfloat16() for x in tail))
    assert (out - truth).abs().max() <= 2 * (same.transpose(1, 2) - truth).abs().max()


FIRST_IN_A_CAPTURE = """
import torch
from flashsmith import flash_attention

def call():
    return flash_attention(q, k, v, causal=True, return_lse=True, config=CONFIG)

CONFIG = {config!r}
torch.manual_seed(0)
q = torch.randn(2, 70, 6, 64, dtype=torch.bfloat16, device="cuda")
k, v = (torch.randn(2, 203, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = call()
for _ in range(3):
    for tensor in (q, k, v):
        tensor.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for ours, theirs in zip(captured, call(), strict=True):
        assert torch.equal(ours, theirs)
print("captured")
"""


@gpu
@pytest.mark.parametrize("config", [None, SHORT], ids=["chosen", "mma"])
def test_the_first_call_of_a_process_can_be_captured(config, tmp_path):
    """It compiles, loads its kernel and makes its workspace while its stream captures."""
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_IN_A_CAPTURE.format(config=config)],
        env={**os.environ, "FLASHSMITH_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "captured\n", ran.stderr


@gpu
def test_a_captured_call_may_need_a_copy_of_its_input():
    q, k, v = tensors("cuda", placement=Placement("bsdh"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(q, k, v)
    q.copy_(q.roll(1, 1))
    graph.replay()
    same(captured, flash_attention(q, k, v))


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")


@gpu
@two_gpus
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("where", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", ["causal", "lse", "out", "bhsd"])
def test_a_call_runs_where_its_tensors_are_whichever_gpu_is_current(name, where, current):
    arrays = tensors(where)
    with torch.cuda.device(current):
        outs = CALLS[name](*arrays)
        assert torch.cuda.current_device() == current
    outs = outs if isinstance(outs, tuple) else (outs,)
    expected = CALLS[name](*tensors("cuda:0"))
    for ours, theirs in zip(outs, expected if name == "lse" else (expected,), strict=True):
        assert ours.device == torch.device(where)
        assert torch.equal(ours.cpu(), theirs.cpu())


@gpu
@two_gpus
def test_a_call_on_the_second_gpu_waits_for_that_gpus_stream():
    q, k, v = tensors("cuda:1")
    stream = torch.cuda.Stream(1)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: what follows is late
        doubled = q * 2
        out = flash_attention(doubled, k, v)
    stream.synchronize()
    same(out, flash_attention(q * 2, k, v))


@gpu
@two_gpus
def test_tensors_of_two_gpus_are_refused():
    q, k, v = tensors("cuda:0")
    with pytest.raises(ValueError, match="q is on cuda:0 and v on cuda:1"):
        flash_attention(q, k, v.to("cuda:1"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_an_explained_call_on_a_gpu_has_a_time_and_the_same_bits(wants_gradient):
    torch.manual_seed(0)
    q = torch.randn(2, 1000, 8, 128, dtype=torch.bfloat16, device="cuda")
    q.requires_grad_(wants_gradient)
    plain = flash_attention(q, q, q, causal=True)
    out, choice = flash_attention(q, q, q, causal=True, explain=True)
    assert 0 < choice.time_us < 1e5
    assert torch.equal(out, plain)
