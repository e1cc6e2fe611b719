"""Training shared by two processes (DDP, FSDP on gloo) has the gradients of one process."""

import multiprocessing
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from flashsmith import flash_attention  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:flashsmith was given torch tensors on the CPU"),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo meets over a file there otherwise"),
]
HEADS, D_HEAD, SECONDS = 3, 24, 300
WIDTH = HEADS * D_HEAD


def exact_attention(q, k, v, causal):
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    return out.transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D_HEAD)).unbind(2)
        attend = exact_attention if x.dtype is torch.float64 else flash_attention
        return x + self.out(attend(q, k, v, causal=True).flatten(2))


def model(weights):
    block = Block()
    block.load_state_dict(weights)
    return block.bfloat16()


def train(shared, x):
    shared(x).float().square().mean().backward()


def gradients(path, rank, weights, mine, found):
    """Puts what this process sees of both ways to share a model into `found`.

    All numbers are given: --reseed moves the seeds of the process that draws them.
    """
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    weights = {name: torch.from_numpy(numbers) for name, numbers in weights.items()}
    mine = torch.from_numpy(mine).bfloat16()
    whole = nn.parallel.DistributedDataParallel(model(weights))
    train(whole, mine)
    cut = fully_shard(model(weights), mesh=init_device_mesh("cpu", (2,)))
    train(cut, mine)
    seen = {
        "DDP": [p.grad.float().numpy() for p in whole.parameters()],
        "FSDP": [p.grad.full_tensor().float().numpy() for p in cut.parameters()],
    }
    destroy_process_group()
    found.put((rank, seen))


def test_two_processes_have_the_gradients_of_one(tmp_path):
    torch.manual_seed(0)
    weights = Block().state_dict()
    x = torch.randn(4, 130, WIDTH)
    numbers = {name: tensor.numpy() for name, tensor in weights.items()}
    halves = x.numpy()[:2], x.numpy()[2:]
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    meeting = tmp_path / "meeting"
    processes = [
        spawn.Process(target=gradients, args=(meeting, rank, numbers, half, found))
        for rank, half in enumerate(halves)
    ]
    for process in processes:
        process.start()
    results = dict(found.get(timeout=SECONDS) for _ in processes)
    for process in processes:
        process.join(SECONDS)
    alone = model(weights)
    train(alone, x.bfloat16())
    truth = model(weights).double()  # of the same rounded numbers
    train(truth, x.bfloat16().double())
    for seen in results.values():
        for way in ("DDP", "FSDP"):
            for got, one, exact in zip(
                seen[way], alone.parameters(), truth.parameters(), strict=True
            ):
                allowed = 2 * (one.grad.double() - exact.grad).norm()
                assert (torch.from_numpy(got).double() - exact.grad).norm() <= allowed, way
