"""Memory that a caller brings: scratch of the stated size, output beside tables, nothing else."""

import numpy as np
import pytest
from standin_gpus import plug_in

from flashsmith import flash_attention, flash_attn_with_kvcache, workspace_bytes
from flashsmith.api import launches
from flashsmith.api.array_view import ArrayView
from flashsmith.api.options import checked_options
from flashsmith.api.problems import require_room
from flashsmith.api.tables import in_order
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.kernels.arguments import TensorArg
from flashsmith.runtime.devices import default_device
from flashsmith.torch_op import cuda_kernel
from flashsmith.torch_op.arguments import given_of

torch = pytest.importorskip("torch")

BATCH, HEADS, KV_HEADS, KEYS, D_HEAD = 2, 3, 1, 1100, 64
LENGTHS = np.array([1100, 600], np.int32)
# Three slices of 512 keys of either sequence: O, maximum and sum of every row, in float32.
NEEDED = BATCH * 3 * HEADS * (D_HEAD + 2) * 4


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((1, HEADS), (KEYS, KV_HEADS), (KEYS, KV_HEADS))
    return [rng.standard_normal((BATCH, *s, D_HEAD)).astype(np.float16) for s in shapes]


@pytest.fixture
def emulator(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_workspace_of_the_stated_size_will_do_and_a_smaller_one_is_refused(emulator, make):
    q, k, v, lengths = map(make, (*arrays(), LENGTHS))
    assert workspace_bytes(q, k, v, k_lengths=lengths) == NEEDED
    assert workspace_bytes(q, k[:, :900], v[:, :900], k_lengths=lengths) == 0
    plain = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)
    room, out = make(np.zeros(NEEDED, np.uint8)), make(np.zeros_like(np.asarray(q)))
    found = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, out=out, workspace=room)
    assert found is out
    assert np.asarray(out).tobytes() == np.asarray(plain).tobytes()
    says = rf"workspace has {NEEDED - 1:,} bytes and this call needs {NEEDED:,}; pass at least"
    with pytest.raises(ArgumentError, match=says):
        flash_attention(q, k, v, k_lengths=lengths, workspace=room[1:])
    words = make(np.zeros(NEEDED, np.float32))
    with pytest.raises(ArgumentTypeError, match=r"workspace is float32 of shape .* uint8"):
        flash_attention(q, k, v, k_lengths=lengths, workspace=words)


@pytest.mark.parametrize("offset", [16, 64, 128])
def test_scratch_on_a_gpu_begins_with_a_line_of_its_own(offset):
    """Kernels drop lines of L2: half of another's would be lost with them."""
    room = ArrayView("workspace", (4096,), (1,), "uint8", 0x7F0000000000 + offset, "cuda:0")
    if offset % 128 == 0:
        require_room(room, 4096, "cuda:0")
        return
    with pytest.raises(ArgumentError, match=r"0x7f00000000\d0 .* from a multiple of 128 on"):
        require_room(room, 4096, "cuda:0")


def overlapping_rows(make):
    """Rows of 64 elements that begin 8 elements apart."""
    memory = make(np.zeros(BATCH * HEADS * D_HEAD, np.float16))
    if isinstance(memory, torch.Tensor):
        return memory.as_strided((BATCH, 1, HEADS, D_HEAD), (HEADS * D_HEAD, D_HEAD, 8, 1))
    strides = [2 * n for n in (HEADS * D_HEAD, D_HEAD, 8, 1)]
    return np.lib.stride_tricks.as_strided(memory, (BATCH, 1, HEADS, D_HEAD), strides)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_memory_that_the_call_also_reads_or_writes_is_refused(emulator, make):
    q, k, v, lengths = map(make, (*arrays(), LENGTHS))
    as_bytes = (lambda x: x.view(torch.uint8)) if make is torch.tensor else lambda x: x.view("u1")
    room = make(np.zeros(NEEDED, np.uint8))
    shared = room[: q.nbytes].view(q.dtype).reshape(q.shape)
    given = {"k_lengths": lengths}
    for name, workspace, out in (
        ("k", as_bytes(k.reshape(-1)), None),
        ("out", room, shared),
    ):
        with pytest.raises(ArgumentError, match=f"workspace overlaps {name} in memory"):
            flash_attention(q, k, v, **given, workspace=workspace, out=out)
    with pytest.raises(ArgumentError, match="at which its rows overlap; pass a contiguous one"):
        flash_attention(q, k, v, **given, out=overlapping_rows(make))
    bias = make(np.zeros((BATCH, 1, 1, KEYS), np.float16))
    beside = bias.reshape(-1)[: BATCH * HEADS * D_HEAD].reshape(q.shape)
    with pytest.raises(ArgumentError, match="out overlaps bias in memory"):
        flash_attention(q, k, v, bias=bias, out=beside)


def test_torch_on_the_cpu_needs_none_and_takes_any():
    q, k, v, lengths = map(torch.from_numpy, (*arrays(), LENGTHS))
    assert workspace_bytes(q, k, v, k_lengths=lengths) == 0
    plain = flash_attention(q, k, v, k_lengths=lengths)
    room = torch.zeros(1, dtype=torch.uint8)
    assert torch.equal(flash_attention(q, k, v, k_lengths=lengths, workspace=room), plain)
    with pytest.raises(Unsupported, match="workspace is given and a gradient is asked for"):
        flash_attention(q.requires_grad_(), k, v, k_lengths=lengths, workspace=room)


def test_the_operator_says_what_it_writes_into():
    arguments = torch.ops.flashsmith.forward_into.default._schema.arguments
    written = [one.name for one in arguments if one.alias_info and one.alias_info.is_write]
    assert written == ["out", "lse", "workspace"]
    q, k, v = (torch.from_numpy(x).to("meta") for x in arrays())
    tables = in_order({"k_lengths": torch.from_numpy(LENGTHS).to("meta")})
    call = torch.ops.flashsmith.forward_into
    assert call(q, k, v, tables, torch.empty_like(q), None, None) is None
    with pytest.raises(ArgumentError, match="k_lengths has shape"):
        call(q[:1], k[:1], v[:1], tables, torch.empty_like(q), None, None)


def test_a_call_on_a_gpu_allocates_nothing(monkeypatch):
    plug_in(monkeypatch, "NVIDIA H200")
    monkeypatch.setattr(cuda_kernel, "gpu_device", lambda view, backend: default_device("cuda"))
    monkeypatch.setattr(cuda_kernel, "current_stream", lambda ordinal: 0)
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    monkeypatch.setattr(cuda_kernel, "KEPT_LAUNCHES", launches.KEPT_LAUNCHES)
    q, k, v, lengths = map(torch.from_numpy, (*arrays(), LENGTHS))
    tables, given = in_order({"k_lengths": lengths}), given_of(checked_options())
    out, room = torch.empty_like(q), torch.empty(NEEDED, dtype=torch.uint8)
    cuda_kernel.forward_into(q, k, v, tables, out, None, room, *given)

    def allocate(*_, **__):
        pytest.fail("memory was allocated")

    for name in ("empty", "empty_like", "zeros"):
        monkeypatch.setattr(torch, name, allocate)
    cuda_kernel.forward_into(q, k, v, tables, out, None, room, *given)
    (started,) = {
        call for kept in launches.KEPT_LAUNCHES.values() for call, _ in kept.prepared._starts
    }
    assert TensorArg(room.data_ptr()) in started
    with pytest.raises(ArgumentError, match=r"workspace overlaps v in memory"):
        cuda_kernel.forward_into(
            *(q, k, v, tables, out, None, v.reshape(-1).view(torch.uint8), *given)
        )
    small = room[:16]
    with pytest.raises(ArgumentError, match=r"workspace has 16 bytes and this call needs"):
        cuda_kernel.forward_into(q, k, v, tables, out, None, small, *given)
