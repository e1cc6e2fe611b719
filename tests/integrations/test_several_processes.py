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


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D_HEAD)).unbind(2)
        return x + self.out(flash_attention(q, k, v, causal=True).flatten(2))


def model():
    torch.manual_seed(0)
    return Block().bfloat16()


def train(shared, x):
    shared(x).float().square().mean().backward()


def gradients(path, rank, found):
    """Puts what this process sees of both ways to share a model into `found`."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mine = inputs()[2 * rank : 2 * rank + 2]
    whole = nn.parallel.DistributedDataParallel(model())
    train(whole, mine)
    cut = fully_shard(model(), mesh=init_device_mesh("cpu", (2,)))
    train(cut, mine)
    seen = {
        "DDP": [p.grad.float().numpy() for p in whole.parameters()],
        "FSDP": [p.grad.full_tensor().float().numpy() for p in cut.parameters()],
    }
    destroy_process_group()
    found.put((rank, seen))


def inputs():
    return torch.randn(4, 130, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_two_processes_have_the_gradients_of_one(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    processes = [
        spawn.Process(target=gradients, args=(tmp_path / "meeting", rank, found))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    results = dict(found.get(timeout=SECONDS) for _ in processes)
    for process in processes:
        process.join(SECONDS)
    alone = model()
    train(alone, inputs())
    for seen in results.values():
        for way in ("DDP", "FSDP"):
            for got, parameter in zip(seen[way], alone.parameters(), strict=True):
                wanted = parameter.grad.float()
                error = (torch.from_numpy(got) - wanted).norm() / wanted.norm()
                assert error < 0.01, way  # two sums of bfloat16 numbers in another order
