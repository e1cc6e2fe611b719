"""What people would use instead, as contenders on the same tensors: torch's backends and others."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flashsmith.base.errors import ArgumentError
from flashsmith.base.loose_types import TorchTensor
from flashsmith.bench import gradient_peers
from flashsmith.bench.calls import Call, MakeCall, MakeGradients
from flashsmith.measure.cuda_graph import Timer
from flashsmith.measure.interleaved import Contender
from flashsmith.measure.timed_configs import table_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import facts_that_hold
from flashsmith.problem.signature import FORWARD, TABLES, signature_of
from flashsmith.runtime.cuda.device import CudaDevice

NOT_COMPUTED = "it does not compute this problem"


@dataclass(frozen=True, slots=True)
class Peer:
    """A name that tables show, how to make a call for a problem, and what records say of it."""

    name: str
    make: MakeCall
    about: Mapping[str, str] = field(default_factory=dict)
    computes: Callable[[AttentionProblem], bool] = lambda _: True  # that problem, and no other
    gradients: MakeGradients | None = None
    short: str = ""  # what people also call it
    tables: frozenset[str] = frozenset()  # that `make` takes, by their names

    def is_called(self, name: str) -> bool:
        """Whether its name contains this one, or this is its short one."""
        return name.lower() in self.name.lower() or name.lower() == self.short

    def call(self, problem: AttentionProblem, tensors: Mapping[str, TorchTensor]) -> Call | None:
        """The call on tensors of a problem, by their names; None where it has none of this kind."""
        if problem.operation == FORWARD.operation:
            tables = {name: tensors[name] for name in self.tables & tensors.keys()}
            return self.make(problem, *(tensors.get(name) for name in "qkv"), **tables)
        if self.gradients is None:
            return None
        return self.gradients(problem, *(tensors[name] for name in _OF_GRADIENTS))


_OF_GRADIENTS = ("do", "q", "k", "v", "o", "lse")
# Lengths in memory are those of the whole cache here, so that a call without them is the same.
_PLAIN = {"causal", "scale", "k_lengths", "operation"}


def _has_only(problem: AttentionProblem, facts: set[str]) -> bool:
    return set(facts_that_hold(problem)) <= facts


def _is_plain(problem: AttentionProblem) -> bool:
    """Whether torch's functions mean this problem: they count a causal mask from the first key."""
    aligned = not problem.causal or problem.q_len == problem.k_len
    return aligned and _has_only(problem, _PLAIN)


def _is_flash_attns(problem: AttentionProblem) -> bool:
    return _has_only(problem, _PLAIN | {"window_left", "window_right", "softcap"})


def _needs_only(tables: frozenset[str]) -> Callable[[AttentionProblem], bool]:
    """Whether q, k, v and these are all that a function must be given."""

    def computes(problem: AttentionProblem) -> bool:
        parts = {role.name for role in TABLES.values() if role.is_part_of(problem)}
        return parts <= tables | {"k_lengths"}

    return computes


def _sdpa(backend_name: str) -> MakeCall:
    def make(problem: AttentionProblem, q: TorchTensor, k: TorchTensor, v: TorchTensor) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)
        heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]

        def call() -> TorchTensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    *heads_first,
                    is_causal=problem.causal,
                    scale=problem.softmax_scale,
                    enable_gqa=problem.heads != problem.kv_heads,
                )

        return call

    return make


def _flex(problem: AttentionProblem, q: TorchTensor, k: TorchTensor, v: TorchTensor) -> Call:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    mask = None
    if problem.causal:
        mask = create_block_mask(
            lambda b, h, row, key: row >= key, None, None, problem.q_len, problem.k_len, q.device
        )
    gqa = problem.heads != problem.kv_heads
    return lambda: compiled(
        *heads_first, block_mask=mask, scale=problem.softmax_scale, enable_gqa=gqa
    )


def _module(module: str) -> MakeCall:
    """flash-attn's own function, from whichever package is installed."""

    def make(problem: AttentionProblem, q: TorchTensor, k: TorchTensor, v: TorchTensor) -> Call:
        function = importlib.import_module(module).flash_attn_func
        more: dict[str, object] = {}
        if problem.mask.left is not None or problem.window_right is not None:
            more["window_size"] = tuple(
                -1 if side is None else side for side in (problem.mask.left, problem.mask.right)
            )
        if problem.softcap is not None:
            more["softcap"] = problem.softcap
        scale, causal = problem.softmax_scale, problem.causal
        return lambda: function(q, k, v, softmax_scale=scale, causal=causal, **more)

    return make


PEERS = (
    Peer("cuDNN", _sdpa("CUDNN_ATTENTION"), computes=_is_plain, gradients=gradient_peers.cudnn),
    Peer(
        "FlashAttention-2 (torch)",
        _sdpa("FLASH_ATTENTION"),
        computes=_is_plain,
        gradients=gradient_peers.flash,
        short="fa2",
    ),
    Peer("efficient (torch)", _sdpa("EFFICIENT_ATTENTION"), computes=_is_plain),
    Peer("FlexAttention", _flex, computes=_is_plain),
    Peer("flash-attn 2", _module("flash_attn"), computes=_is_flash_attns, short="fa2"),
    Peer("flash-attn 3", _module("flash_attn_interface"), computes=_is_flash_attns, short="fa3"),
    Peer("flash-attn 4", _module("flash_attn.cute"), computes=_is_flash_attns, short="fa4"),
)


def peer_of_file(text: str) -> Peer:
    """The contender of `FILE.py:NAME`, a function of that file that takes problem, q, k and v.

    What it has parameters for is given too, by name: `k_lengths`, `block_table` and other tables.
    Of a backward pass it takes problem, dO, q, k, v, O and LSE. It returns what is timed: a call
    without arguments. Records get its name, the file's `__version__` if it states one, and the hash
    of the file.
    """
    path_text, colon, name = text.rpartition(":")
    path = Path(path_text)
    if not colon or not name.isidentifier() or not path.is_file():
        raise ArgumentError(
            f"--peer is {text!r}; it must be FILE.py:NAME, a function of a file that takes "
            f"(problem, q, k, v) and returns the call to time; check the path and the name."
        )
    spec = importlib.util.spec_from_file_location(f"flashsmith_peer_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, name, None)
    if not callable(make):
        raise ArgumentError(f"--peer is {text!r}; {path} has no function {name!r}; name one.")
    about = {
        "peer_file": path.name,
        "peer_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "peer_version": str(getattr(module, "__version__", "")),
    }
    tables = frozenset(TABLES.keys() & inspect.signature(make).parameters.keys())
    computes = _needs_only(tables)
    return Peer(name, make, about, computes=computes, gradients=make, tables=tables)


def find_peers(names: list[str]) -> list[Peer]:
    """The peers that are called one of `names`; all where none is given."""
    return [peer for peer in PEERS if not names or any(map(peer.is_called, names))]


def contenders_of(
    device: CudaDevice,
    peers: list[Peer],
    problem: AttentionProblem,
    tensors: Mapping[str, TorchTensor],
) -> tuple[list[Contender], dict[str, str]]:
    """Peers that run this problem inside a CUDA graph; the names of the others, and why not."""
    found: list[Contender] = []
    left_out: dict[str, str] = {}
    for peer in peers:
        if not peer.computes(problem):
            left_out[peer.name] = NOT_COMPUTED
            continue
        try:
            call = peer.call(problem, tensors)
            if call is None:
                left_out[peer.name] = f"it is not timed on a {problem.operation} pass"
                continue
            launch = _on_stream(call)
            with Timer(device) as timer:
                for _ in range(3):
                    launch(timer.stream)
                timer.wait()
                timer.capture(launch)
        # What a foreign library raises for a shape it does not take is not known beforehand.
        except Exception as error:  # noqa: BLE001
            left_out[peer.name] = reason_of(error)
            continue
        found.append(Contender(peer.name, launch))
    return found, left_out


def reason_of(error: Exception) -> str:
    """What a foreign library said, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _on_stream(call: Call) -> Callable[[int], None]:
    """The call put on the stream of a handle: the protocol captures it in a graph of the driver."""
    import torch

    def launch(handle: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            call()

    return launch


@contextmanager
def torch_tensors(
    problem: AttentionProblem, where: str = "cuda"
) -> Iterator[dict[str, TorchTensor]]:
    """Normal q, k, v and dO, empty results, and the tables of a call, on the GPU, by their names.

    Rows are in (batch, row, head, d) order; v lies right behind k. What a backward pass takes of
    the forward one is empty too.
    """
    import torch

    dtype = {"FP16": torch.float16, "BF16": torch.bfloat16}[problem.dtype.name]
    torch.manual_seed(0)
    roles = {role.name: role for role in signature_of(problem).of(problem)}
    q = torch.randn(roles["q"].rows_first(problem), device=where, dtype=dtype)
    k, v = torch.randn((2, *roles["k"].rows_first(problem)), device=where, dtype=dtype)
    tensors = {"q": q, "k": k, "v": v, "o": torch.empty_like(q)}
    if problem.operation != FORWARD.operation:
        tensors["do"] = torch.randn_like(q)
        tensors["lse"] = torch.empty(roles["lse"].shape(problem), device=where)
        tensors |= {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    random = np.random.default_rng(0)
    for name in TABLES.keys() & roles.keys():
        words = table_of(roles[name], problem, random)
        kind = np.int32 if roles[name].is_integer else np.float32
        tensors[name] = torch.from_numpy(words.view(kind)).to(where)
    yield tensors
    if where == "cuda":
        torch.cuda.synchronize()
