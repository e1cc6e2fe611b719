"""A small GPT with rotary positions learns the bytes of this file, by flashsmith and by SDPA.

Both begin with the same weights and see the same bytes, so that their losses stay side by side:

    python examples/train_tiny.py --steps 300 --picture losses.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import flashsmith

BYTES, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 256, 128, 4, 2, 128, 8
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of (batch, sequence, heads, d_head), causal


def by_flashsmith(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The call that a model makes."""
    return flashsmith.flash_attn_func(q, k, v, causal=True)


def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's, which wants heads before rows."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def rotated(x: Tensor) -> Tensor:
    """Pairs of columns turned by angles that grow with the position: RoPE."""
    half = x.shape[-1] // 2
    rates = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Block(nn.Module):
    """Attention, then a layer of its own for every position."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.norm, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, (batch, sequence, width)."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        q, k, v = (y.bfloat16() for y in (rotated(q), rotated(k), v))
        x = x + self.out(self.attend(q, k, v).flatten(2).to(x.dtype))
        return x + self.down(F.silu(self.up(self.norm_2(x))))


def model_with(attend: Attend, device: str) -> nn.Module:
    """Bytes in, the next byte's logits out; the same weights every time."""
    torch.manual_seed(0)
    blocks = [Block(attend) for _ in range(LAYERS)]
    model = nn.Sequential(
        nn.Embedding(BYTES, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, BYTES)
    )
    return model.to(device)


def train(attend: Attend, steps: int, device: str) -> list[float]:
    """The loss of every step, in nats a byte."""
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    model = model_with(attend, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        first = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=random)
        rows = text[first + torch.arange(LENGTH + 1)].to(device)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Trains both, prints their losses, and draws them if it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--picture", type=Path, help="where to draw the losses (needs matplotlib)")
    asked = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ways = {"flashsmith": by_flashsmith, "SDPA": by_sdpa}
    losses = {name: train(attend, asked.steps, device) for name, attend in ways.items()}
    print(f"step  {'  '.join(f'{name:>10}' for name in losses)}")
    for step in range(0, asked.steps, max(1, asked.steps // 10)):
        print(f"{step:4}  {'  '.join(f'{of[step]:10.4f}' for of in losses.values())}")
    if asked.picture:
        from matplotlib import pyplot

        for name, of in losses.items():
            pyplot.plot(of, label=name, linewidth=1)
        pyplot.gca().set(xlabel="step", ylabel="loss, nats a byte")
        pyplot.legend()
        pyplot.savefig(asked.picture)
    return losses


if __name__ == "__main__":
    main()
