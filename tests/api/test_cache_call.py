"""A call on a cache that was made before runs without an operator, and only such a call."""

import math
import struct
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from standin_gpus import plug_in_torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flashsmith import flash_attn_with_kvcache
from flashsmith.api import launches
from flashsmith.api.caches import kv_cache
from flashsmith.base import settings
from flashsmith.base.errors import FlashsmithError
from flashsmith.runtime.cuda import device
from flashsmith.torch_op import cuda_kernel, operator

ROOM = 1 << 20  # elements, of which a tensor takes the first: others may look at its memory


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that computes nothing, and what was started on it."""
    seen = Seen(plug_in_torch(monkeypatch))

    def counted(name, *arguments):
        seen.operators += 1
        return getattr(cuda_kernel, name)(*arguments)

    def recording(*of):
        bind = make_launcher(*of)
        return lambda params: seen.recorded(bind(params), of[-1], params[0])

    make_launcher = device.make_launcher
    monkeypatch.setattr(device, "make_launcher", recording)
    for name in ("forward_with", "forward_cache"):
        monkeypatch.setattr(operator, name, partial(counted, name))
    return seen


class Seen:
    """Operators that ran, and what kernels were told, whoever asked for it."""

    def __init__(self, gpus):
        self.gpus, self.operators, self.started, self.places = gpus, 0, [], {}

    def recorded(self, start, geometry, params):
        """The same as `start`, and notes it: addresses as names of the caller's tensors."""
        words = struct.unpack(f"{len(params) // 8}Q", params[: len(params) // 8 * 8])

        def started(stream):
            told = [
                self.places.get(w, "memory" if w >> 36 in range(0x550, 0x800) else w) for w in words
            ]
            self.started.append((geometry, told))
            start(stream)

        return started

    def of(self, call):
        """How many operators a call ran and what it started, or what it was refused with."""
        self.operators, self.started = 0, []
        self.places = {
            given.data_ptr(): name
            for name, given in call.keywords.items()
            if type(given) is torch.Tensor and given.device.type == "cpu"
        }
        with self.gpus.current(0):
            try:
                call()
            except (FlashsmithError, RuntimeError, TypeError) as error:
                return self.operators, str(error)
        return self.operators, self.started


def tensor(*shape, dtype=torch.bfloat16):
    """Zeros before which, in their memory, nothing lies, and behind which much does."""
    return torch.zeros(ROOM, dtype=dtype)[: math.prod(shape)].view(shape)


def arguments(**changes):
    """Of a decode step of three sequences on a cache of 300 rows."""
    shapes = {"q": (3, 1, 6, 64), "k_cache": (3, 300, 2, 64), "v_cache": (3, 300, 2, 64)}
    made = {name: tensor(*shape) for name, shape in shapes.items()}
    made["cache_seqlens"] = tensor(3, dtype=torch.int32)
    numbers = {"softmax_scale": 1.0, "window_size": (1, 0), "softcap": 1.0}
    return {**made, "causal": True, **numbers, **changes}


def step(given, **changes):
    return partial(flash_attn_with_kvcache, **{**given, **changes})


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("paged", [False, True])
def test_the_second_call_needs_no_operator(gpu, lse, paged):
    given = arguments(return_softmax_lse=lse)
    if paged:
        given |= {name: tensor(9, 16, 2, 64) for name in ("k_cache", "v_cache")}
        given["block_table"] = tensor(3, 19, dtype=torch.int32)
    first, again = gpu.of(step(given)), gpu.of(step(given))
    assert (first[0], again[0]) == (1, 0)
    assert first[1] == again[1]
    told = again[1][0][1]
    assert {"q", "k_cache", "v_cache", "cache_seqlens"} <= {w for w in told if type(w) is str}
    with gpu.gpus.current(0):
        found = step(given)()
    o, rows = found if lse else (found, None)
    assert (o.shape, o.dtype) == (given["q"].shape, torch.bfloat16)
    assert rows is None or (rows.shape, rows.dtype) == ((3, 6, 1), torch.float32)


class Own(torch.Tensor):
    """A tensor that may mean anything."""


def of_memory(*shape, width=0, dtype=None):
    """What looks at the memory of another tensor: in this shape, with rows of this width."""

    def looking(other):
        *front, d_head = shape
        strides = [width or d_head, 1]
        for extent in reversed(front[1:]):
            strides.insert(0, extent * strides[0])
        looked = other if dtype is None else other.view(dtype)
        return looked.as_strided(shape, strides[-len(shape) :])

    return looking


BOTH = ("k_cache", "v_cache")
CACHE, STEP = (3, 300, 2, 64), (3, 1, 6, 64)
HALF = torch.float16
# By the argument: another, or what looks at the same memory in another way.
CHANGES = {
    "dtype": {n: lambda x: x.view(HALF) for n in ("q", *BOTH)},
    "dtype of q": {"q": lambda x: x.view(HALF)},
    "dtype of k": {"k_cache": lambda x: x.view(HALF)},
    "dtype of v": {"v_cache": lambda x: x.view(HALF)},
    "strides of q": {"q": of_memory(*STEP, width=128)},
    "strides of k": {"k_cache": of_memory(*CACHE, width=128)},
    "strides of v": {"v_cache": of_memory(*CACHE, width=128)},
    "rows of q": {"q": of_memory(3, 2, 6, 64)},
    "heads of q": {"q": lambda x: x[:, :, :4]},
    "rows of the cache": dict.fromkeys(BOTH, lambda x: x[:, :299]),
    "rows of v": {"v_cache": of_memory(3, 301, 2, 64)},
    "width": {"q": of_memory(3, 1, 6, 32), **dict.fromkeys(BOTH, of_memory(3, 300, 2, 32))},
    "odd width": {"q": of_memory(3, 1, 6, 60), **dict.fromkeys(BOTH, of_memory(3, 300, 2, 60))},
    "device of v": {"v_cache": lambda x: x.to("meta")},
    "device of lengths": {"cache_seqlens": lambda x: x.to("meta")},
    "one length": {"cache_seqlens": 5},
    "no length": {"cache_seqlens": None},
    "long lengths": {"cache_seqlens": lambda x: x.as_strided((6,), (1,)).view(torch.int64)},
    "unsigned lengths": {"cache_seqlens": lambda x: x.view(torch.uint8)[::4]},
    "lengths that are no numbers of keys": {"cache_seqlens": lambda x: x.view(torch.float32)},
    "lengths with gaps": {"cache_seqlens": lambda x: x.as_strided((3,), (2,))},
    "too few lengths": {"cache_seqlens": lambda x: x[:2]},
    "pages": {
        **dict.fromkeys(BOTH, of_memory(9, 16, 2, 64)),
        "block_table": tensor(3, 19, dtype=torch.int32),
    },
    "a cache as pages": {"block_table": tensor(3, 1, dtype=torch.int32)},
    "sequences of the cache": {"cache_batch_idx": tensor(3, dtype=torch.int32)},
    "padding": {"cache_leftpad": tensor(3, dtype=torch.int32)},
    "slopes": {"alibi_slopes": torch.ones(6)},
    "no mask": {"causal": False},
    "a wider window": {"window_size": (20, 0)},
    "a window as a list": {"window_size": [1, 0]},
    "no window": {"window_size": (-1, -1)},
    "cap": {"softcap": 5.0},
    "no cap": {"softcap": 0.0},
    "scale": {"softmax_scale": 0.5},
    "no scale": {"softmax_scale": None},
    "log-sum-exp": {"return_softmax_lse": True},
    "a mask that is a number": {"causal": 1},
    "a scale that is a flag": {"softmax_scale": True},
    "a cap that is a flag": {"softcap": True},
    "a window of flags": {"window_size": (True, False)},
    "a flag for rotation that is a number": {"rotary_interleaved": 1},
    "rotation": {"rotary_cos": tensor(300, 32)},
    "one tensor for both": {"v_cache": None},
    "new rows": {name: tensor(3, 1, 2, 64) for name in "kv"},
    "output": {"out": tensor(*STEP)},
    "scratch": {"workspace": torch.zeros(1 << 20, dtype=torch.uint8)},
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
def test_another_call_is_not_taken_for_the_one_before(gpu, name, monkeypatch):
    made: dict = {}  # torch's memory comes back
    real = torch.empty_like
    monkeypatch.setattr(
        torch, "empty_like", lambda x, **_: made.setdefault((x.shape, x.dtype), real(x))
    )
    given = arguments()
    change = {n: to(given[n]) if callable(to) else to for n, to in CHANGES[name].items()}
    if name == "one tensor for both":
        change = {"v_cache": given["k_cache"]}
    alone = gpu.of(step(given, **change))[1]  # in a process that has made no other call
    launches.KEPT_LAUNCHES.clear()
    monkeypatch.setattr(kv_cache, "_run_again", None)
    base = [gpu.of(step(given))[1] for _ in range(2)]
    for _ in range(3):
        assert gpu.of(step(given, **change))[1] == alone
    assert gpu.of(step(given)) == (0, base[0])
    assert base[0] == base[1]


class Watching(TorchDispatchMode):
    """Sees every operator."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Overriding(TorchFunctionMode):
    """Sees every function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


WATCHERS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a dispatch mode": Watching,
    "a function mode": Overriding,
    "a profiler": torch.profiler.profile,
    "tangents": forward_ad.dual_level,
    "a checked process": nullcontext,
}


@pytest.mark.parametrize("name", WATCHERS)
def test_who_watches_sees_the_operator(gpu, name, monkeypatch):
    given = arguments()
    for _ in range(2):
        gpu.of(step(given))
    with WATCHERS[name](), monkeypatch.context() as checked:
        if name == "a checked process":
            checked.setitem(settings._answers, settings.CHECK, True)
        assert gpu.of(step(given))[0] == 1
    assert gpu.of(step(given))[0] == 0


def test_gradients_and_tensors_that_are_not_their_memory_go_the_usual_way(gpu):
    given = arguments()
    for _ in range(2):
        gpu.of(step(given))
    for name in ("q", "k_cache", "v_cache"):
        wants = given[name].clone().requires_grad_()
        _, says = gpu.of(step(given, **{name: wants}))
        assert "gradient" in says
        with torch.no_grad():
            assert gpu.of(step(given, **{name: wants}))[0] == 0
        assert gpu.of(step(given, **{name: torch._neg_view(given[name])}))[0] == 1
        assert gpu.of(step(given, **{name: given[name].as_subclass(Own)}))[0] == 1
        assert gpu.of(step(given, **{name: torch.nn.Parameter(given[name], False)}))[0] == 1
    lengths = given["cache_seqlens"].as_subclass(Own)
    assert gpu.of(step(given, cache_seqlens=lengths))[0] == 1


def test_transforms_and_traces_go_the_usual_way(gpu):
    given = arguments()
    for _ in range(2):
        gpu.of(step(given))
    found = []
    rows = torch.zeros(2, dtype=torch.bfloat16)

    def mapped(x):
        found.append(gpu.of(step(given)))
        return x

    torch.vmap(mapped)(rows)
    torch.jit.trace(lambda x: mapped(x) * 2, rows, check_trace=False)
    (operators, _), (_, refusal) = found
    assert operators == 1
    assert "tensor(False)" in refusal  # shapes are tensors in a trace


def test_what_is_forgotten_is_made_again(gpu):
    given = arguments()
    assert [gpu.of(step(given))[0] for _ in range(2)] == [1, 0]
    launches.KEPT_LAUNCHES.clear()  # as after a fork, or when there are too many
    assert [gpu.of(step(given))[0] for _ in range(2)] == [1, 0]


def test_tensors_that_moved_are_told_to_the_kernel(gpu, monkeypatch):
    given = arguments()
    for _ in range(2):
        gpu.of(step(given))
    told = []
    real = cuda_kernel.call_of
    monkeypatch.setattr(cuda_kernel, "call_of", lambda *of: told.append(real(*of)) or told[-1])
    for name in ("q", "k_cache", "v_cache", "cache_seqlens"):
        moved = given[name].clone()
        assert gpu.of(step(given, **{name: moved}))[0] == 0
        of = {"k_cache": "k", "v_cache": "v", "cache_seqlens": "k_lengths"}.get(name, name)
        assert told[-1][of].address == moved.data_ptr()
