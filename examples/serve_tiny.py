"""A server in little: continuous batching over a paged cache, with a tiny random model.

    python examples/serve_tiny.py

It runs on a GPU, or without one on torch's own attention; FLASHSMITH_DEVICE=emulator runs the
kernels without a GPU. Requests are prefilled one at a time and decoded together; a request whose
page is full gets another; where none is free, the youngest request goes out, and comes back into
other pages. Its logits are the same bits as if it had been served alone.
"""

from collections import deque
from dataclasses import dataclass, field

import torch

from flashsmith import flash_attn_with_kvcache

HEADS, KV_HEADS, D_HEAD, LAYERS, WORDS, PAGE = 4, 2, 64, 2, 97, 16
WIDTH = HEADS * D_HEAD


class Model:
    """A decoder of random numbers; every sequence is multiplied on its own.

    A product of matrices has other bits with other rows beside it: a server that wants its
    requests alone and in company to agree must see to that too, beside attention.
    """

    def __init__(self, dtype=torch.float16, device="cpu"):
        random = torch.Generator().manual_seed(0)

        def draw(*shape):
            numbers = torch.randn(shape, generator=random) * shape[0] ** -0.5
            return numbers.half().to(device, dtype)

        heads = (HEADS + 2 * KV_HEADS) * D_HEAD
        self.words, self.answers = draw(WORDS, WIDTH) * 10, draw(WIDTH, WORDS)
        self.layers = [(draw(WIDTH, heads), draw(WIDTH, WIDTH)) for _ in range(LAYERS)]
        self.waves = torch.arange(1, WIDTH + 1, device=device) / WIDTH

    def __call__(self, tokens, first, attend):
        """Logits (batch, n, WORDS) of tokens (batch, n) that stand behind `first` others each."""
        at = first[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words[tokens] + torch.sin(at[..., None] * self.waves).to(self.words.dtype)
        for layer, (into, out) in enumerate(self.layers):
            normal = x / x.float().pow(2).mean(-1, keepdim=True).sqrt().to(x.dtype)
            heads = torch.stack([row @ into for row in normal]).unflatten(-1, (-1, D_HEAD))
            mixed = attend(layer, *heads.split((HEADS, KV_HEADS, KV_HEADS), dim=2))
            x = x + torch.stack([row @ out for row in mixed.flatten(2)])
        return torch.stack([row @ self.answers for row in x])


@dataclass(eq=False)
class Request:
    """What is asked, what has been answered, and where its keys and values lie."""

    prompt: list[int]
    wanted: int
    answer: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    length: int = 0  # keys in the cache
    pages: list[int] = field(default_factory=list)
    saved: torch.Tensor | None = None  # its pages, while it is out


class Server:
    """Requests that wait and requests that run, and the pages that they share."""

    def __init__(self, model, pages):
        self.model = model
        shape = (LAYERS, 2, pages, PAGE, KV_HEADS, D_HEAD)
        self.cache = torch.zeros(shape, dtype=model.words.dtype, device=model.words.device)
        self.free, self.waiting, self.running, self.evictions = [*range(pages)], deque(), [], 0

    def step(self):
        """Lets in whom pages suffice for, then a token of every request that runs."""
        while self.waiting and len(self.free) >= self.lacking(self.waiting[0]):
            self.enter(self.waiting.popleft())
        for request in [*self.running]:  # the oldest first
            while request in self.running and len(self.free) < self.lacking(request):
                self.evict(self.running[-1])
            if request in self.running:
                self.grow(request)
        if self.running:
            self.advance(self.running, [[request.answer[-1]] for request in self.running])
        for request in [r for r in self.running if len(r.answer) >= r.wanted]:
            self.leave(request)

    def lacking(self, request):
        """Pages that a request needs and does not have."""
        rows = request.length + 1 if request.length else len(request.prompt) + 1
        return -(-rows // PAGE) - len(request.pages)

    def grow(self, request):
        request.pages += [self.free.pop() for _ in range(self.lacking(request))]

    def enter(self, request):
        self.grow(request)
        self.running.append(request)
        if request.saved is None:
            self.advance([request], [request.prompt])
        else:
            self.cache[:, :, request.pages[: request.saved.shape[2]]] = request.saved
            request.saved = None

    def evict(self, request):
        self.evictions += 1
        request.saved = self.cache[:, :, request.pages].clone()
        self.leave(request)
        self.waiting.appendleft(request)

    def leave(self, request):
        self.running.remove(request)
        self.free += request.pages
        request.pages = []

    def advance(self, requests, tokens):
        """Appends tokens to requests, as many to each, and the most likely one to the answers."""
        device = self.cache.device
        widest = max(len(request.pages) for request in requests)
        table = [request.pages + [0] * (widest - len(request.pages)) for request in requests]
        table = torch.tensor(table, dtype=torch.int32, device=device)
        lengths = torch.tensor([r.length for r in requests], dtype=torch.int32, device=device)

        def attend(layer, q, k, v):
            options = {"cache_seqlens": lengths, "block_table": table, "causal": True}
            return flash_attn_with_kvcache(q, *self.cache[layer], k, v, **options)

        logits = self.model(torch.tensor(tokens, device=device), lengths, attend)[:, -1]
        for request, new, row in zip(requests, tokens, logits, strict=True):
            request.length += len(new)
            request.logits.append(row)
            request.answer.append(int(row.argmax()))


def serve(model, requests, pages):
    """Answers requests, which come one a step, from a pool of `pages`."""
    server, coming = Server(model, pages), deque(requests)
    while coming or server.waiting or server.running:
        if coming:
            server.waiting.append(coming.popleft())
        server.step()
    return server


if __name__ == "__main__":
    asked = [Request([*range(3, 3 + n)], wanted=12) for n in (5, 30, 14)]
    where = "cuda" if torch.cuda.is_available() else "cpu"
    done = serve(Model(device=where), asked, pages=5)
    for one in asked:
        print(f"{len(one.prompt)} tokens, then", *one.answer)
    print(f"{done.evictions} times a request went out for want of pages")
