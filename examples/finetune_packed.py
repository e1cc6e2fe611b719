"""Conversations of any lengths learnt as packed sequences: no padding, one call of attention.

The functions of this repository's example stand for conversations. A batch takes some of them one
behind the other; `flash_attn_varlen_func` keeps them apart by where each begins:

    python examples/finetune_packed.py --steps 100
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from train_tiny import model_with

import flashsmith

TOKENS = 1024  # of a batch, at most


class Packed:
    """Attention of the sequences of the batch that `begin` was told of."""

    def begin(self, lengths: Sequence[int], device: str) -> None:
        """Takes the lengths of the sequences that the next batch holds."""
        ends = torch.tensor([0, *lengths]).cumsum(0)
        self.boundaries = ends.to(device, torch.int32)
        self.longest = max(lengths)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of (1, rows, heads, d_head): a batch of one that holds all sequences."""
        at, longest = self.boundaries, self.longest
        return flashsmith.flash_attn_varlen_func(
            q[0], k[0], v[0], at, at, longest, longest, causal=True
        )[None]


def conversations() -> list[Tensor]:
    """The functions and classes of an example, each as its bytes."""
    source = Path(__file__).with_name("train_tiny.py").read_text(encoding="utf-8")
    texts = [text.encode() for text in source.split("\n\n\n")]
    return [torch.tensor(list(text)) for text in texts if len(text) > 1]


def packs(texts: list[Tensor], random: torch.Generator) -> list[list[Tensor]]:
    """The texts in a drawn order, as many together as fit; a longer one stands alone."""
    found: list[list[Tensor]] = [[]]
    for index in torch.randperm(len(texts), generator=random).tolist():
        held = sum(map(len, found[-1]))
        if found[-1] and held + len(texts[index]) > TOKENS:
            found.append([])
        found[-1].append(texts[index])
    return found


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Trains, and prints the loss in nats a byte."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attend, random, losses, waiting = Packed(), torch.Generator().manual_seed(1), [], []
    model = model_with(attend, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(asked.steps):
        waiting = waiting or packs(conversations(), random)
        texts = waiting.pop()
        attend.begin([len(text) - 1 for text in texts], device)
        rows = torch.cat([text[:-1] for text in texts])[None].to(device)
        wanted = torch.cat([text[1:] for text in texts]).to(device)
        loss = F.cross_entropy(model(rows)[0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(1, asked.steps // 10) == 0:
            held = f"{len(texts):2} texts, {rows.shape[1]:4} bytes"
            print(f"step {step:4}: {held}, loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
