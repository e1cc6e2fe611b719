"""The operator's side on a GPU, with a driver that computes nothing: what it makes and asks for."""

import sys
from functools import partial

import pytest
import torch
from placed_arrays import Placement, placed_inputs
from standin_gpus import MILLISECONDS, plug_in_torch

from flashsmith.api import launches
from flashsmith.api.attention import flash_attention
from flashsmith.api.caches.kv_cache import flash_attn_with_kvcache
from flashsmith.api.options import checked_options
from flashsmith.api.problems import problem_of
from flashsmith.api.tables import in_order
from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case
from flashsmith.kernels.arguments import ScoresArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import default_device
from flashsmith.torch_op import cuda_kernel, fake_kernel, operator
from flashsmith.torch_op.arguments import DEFAULTS, given_of, options_of
from flashsmith.torch_op.tensor_view import tensor_view

CASE = Case("operator", AttentionProblem(2, 6, 2, 70, 203, 64, DType.BF16, causal=True))
MMA = "(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles"
HOPPER = "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+tiles_DYNAMIC+regs_232_40"
PLACEMENTS = [Placement(), Placement("bhsd"), Placement("sbhd"), Placement("bsdh")]


@pytest.fixture
def gpu(monkeypatch):
    return plug_in_torch(monkeypatch)


def tensors(placement=PLACEMENTS[0], layout="bshd"):
    return [item.torch(DType.BF16) for item in placed_inputs(CASE, placement, layout)]


@pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_outputs_are_those_that_tracing_promises(gpu, placement, layout):
    arrays = tensors(placement, layout)
    given = given_of(checked_options(causal=True, layout=layout, config=MMA))
    for _ in range(2):
        made = (*cuda_kernel.forward_lse(*arrays, *given), cuda_kernel.forward(*arrays, *given))
    promised = (*fake_kernel.forward_lse(*arrays, *given), fake_kernel.forward(*arrays, *given))
    for ours, theirs in zip(made, promised, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.stride() == theirs.stride()
    assert len({tensor.data_ptr() for tensor in made}) == 3


@pytest.mark.parametrize("config", [MMA, HOPPER], ids=["mma", "hopper"])
def test_a_warm_call_asks_the_driver_for_the_current_context_and_launches(gpu, config, monkeypatch):
    arrays = tensors()
    out = torch.empty_like(arrays[0])
    monkeypatch.setattr(torch, "empty_like", lambda q: out)  # torch's memory comes back, too
    given = given_of(checked_options(causal=True, config=config))
    with gpu.current(0):
        cuda_kernel.forward(*arrays, *given)
        gpu.calls.clear()
        cuda_kernel.forward(*arrays, *given)
    assert gpu.calls == ["cuCtxGetCurrent", "cuLaunchKernel"]


@pytest.mark.parametrize("lse", [False, True])
def test_so_does_one_on_a_cache_whose_tensors_lie_where_they_did(gpu, lse, monkeypatch):
    q = torch.zeros(3, 1, 4, 64, dtype=torch.bfloat16)
    pages = [torch.zeros(9, 16, 2, 64, dtype=torch.bfloat16) for _ in "kv"]
    tables = {
        "k_lengths": torch.tensor([5, 0, 48], dtype=torch.int32),
        "block_table": torch.zeros(3, 3, dtype=torch.int32),
    }
    made: dict[int, torch.Tensor] = {}
    real = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: made.setdefault(x.dim(), real(x)))
    asked = []
    of = cuda_kernel.call_of
    monkeypatch.setattr(cuda_kernel, "call_of", lambda *views: asked.append(1) or of(*views))
    given = given_of(checked_options())
    with gpu.current(0):
        for _ in range(3):
            gpu.calls.clear()
            cuda_kernel.forward_with(q, *pages, in_order(tables), lse, *given)
    assert gpu.calls == ["cuCtxGetCurrent", "cuLaunchKernel"]
    assert len(asked) == 1
    moved = {**tables, "k_lengths": tables["k_lengths"].clone()}
    with gpu.current(0):
        cuda_kernel.forward_with(q, *pages, in_order(moved), lse, *given)
    assert len(asked) == 2  # other addresses are told to the kernel


# Functions of flashsmith that run in a warm call, at most: each is a hundred nanoseconds of the
# host's time (tools/race_host.py measures it).
MOST_FUNCTIONS = {"plain": 18, "lse": 18, "config": 19, "lengths": 34, "cache": 13}


def functions_of(call):
    """How many functions of the package a call runs."""
    names = []

    def note(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("flashsmith."):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("case", MOST_FUNCTIONS)
def test_a_warm_call_runs_few_functions(gpu, case, monkeypatch):
    for name in (
        "forward",
        "forward_lse",
        "forward_with",
        "forward_cache",
    ):  # tensors lie on the CPU here
        monkeypatch.setattr(operator, name, getattr(cuda_kernel, name))
    q, k, v = tensors()
    lengths = torch.tensor([5, 203], dtype=torch.int32)
    calls = {
        "plain": partial(flash_attention, q, k, v, causal=True),
        "lse": partial(flash_attention, q, k, v, return_lse=True),
        "config": partial(flash_attention, q, k, v, config=MMA),
        "lengths": partial(flash_attention, q, k, v, k_lengths=lengths),
        "cache": partial(flash_attn_with_kvcache, q[:, :1], k, v, cache_seqlens=lengths),
    }
    out = {x.shape: torch.empty_like(x) for x in (q, q[:, :1], torch.empty(2, 6, 70))}
    scratch = torch.empty(1 << 20, dtype=torch.uint8)
    monkeypatch.setattr(cuda_kernel, "_scratch", lambda launch: scratch)
    monkeypatch.setattr(torch, "empty_like", lambda x: out[x.shape])  # torch's memory comes back
    with gpu.current(0), torch.inference_mode():
        for _ in range(2):
            calls[case]()
        ran = functions_of(calls[case])
    assert len(ran) <= MOST_FUNCTIONS[case], ran


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("config", [None, MMA])
def test_an_operator_is_given_no_defaults_at_the_end(causal, layout, config):
    options = checked_options(causal=causal, layout=layout, config=config, backend=None)
    given = given_of(options)
    assert options_of(given, lse=False) == options
    wanted = {(False, "bshd"): 0, (True, "bshd"): 1}.get((causal, layout), 4)
    assert len(given) == (len(DEFAULTS) - 1 if config else wanted)


def test_a_bias_reaches_the_kernel_where_it_lies(gpu, monkeypatch):
    seen = []
    real = cuda_kernel.call_of
    monkeypatch.setattr(cuda_kernel, "call_of", lambda *of: seen.append(real(*of)) or seen[-1])
    mask = torch.ones(2, 1, 1, 203, dtype=torch.bool)
    given = given_of(checked_options(config=MMA))
    for _ in range(2):
        out, _ = cuda_kernel.forward_with(*tensors(), in_order({"bias": mask}), False, *given)
    assert out.shape == (2, 70, 6, 64)
    assert [call["bias"] for call in seen] == [ScoresArg(mask.data_ptr(), 203, 0, 0, 1)] * 2


def test_a_call_and_the_bare_operator_share_a_launch(gpu):
    arrays = tensors()
    cuda_kernel.forward(*arrays, True)
    kept = len(launches.KEPT_LAUNCHES)
    cuda_kernel.forward(*arrays, *given_of(checked_options(causal=True)))
    assert len(launches.KEPT_LAUNCHES) == kept


@pytest.mark.parametrize("lse", [False, True])
def test_an_explained_call_says_how_long_its_launches_took(gpu, lse):
    q, k, v = tensors()
    options = checked_options(causal=True, return_lse=lse, config=MMA)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    problem = problem_of(views, options)
    launch = launches.launch_for(default_device("cuda"), problem, options, views)
    outputs = {"o": torch.empty_like(q)} | ({"lse": torch.empty(2, 6, 70)} if lse else {})
    views += [tensor_view(name, tensor) for name, tensor in outputs.items()]
    choice = launches.explained(launch, launches.call_of(views, "bshd"))
    assert choice.time_us == MILLISECONDS * 1e3
    assert str(choice).startswith(f"{MMA}: given by the caller; this call: 250.0 µs on the GPU")
    assert len(gpu.started) == 3  # the middle one of three is said


def test_a_call_that_is_captured_is_not_run_again_for_its_time(gpu):
    q, k, v = tensors()
    options = checked_options(config=MMA)
    views = [tensor_view(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    launch = launches.launch_for(default_device("cuda"), problem_of(views, options), options, views)
    with gpu.capture(7):
        assert launches.explained(launch, {}, 7).time_us is None
    assert not gpu.started
