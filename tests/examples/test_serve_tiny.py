"""The example server: right, the same bits alone and in company, out and in for want of pages."""

import pytest

torch = pytest.importorskip("torch")

import serve_tiny  # noqa: E402
from serve_tiny import Model, Request, serve  # noqa: E402

WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ASKED = ((5, 13), (30, 9), (14, 12), (1, 6))  # tokens of prompts, and of answers


def requests():
    random = torch.Generator().manual_seed(1)
    return [
        Request(torch.randint(serve_tiny.WORDS, (n,), generator=random).tolist(), wanted)
        for n, wanted in ASKED
    ]


def plain_logits(model, request):
    """Of every answer, from all tokens at once: softmax written out."""
    tokens = torch.tensor([request.prompt + request.answer[:-1]], device=model.words.device)

    def attend(_, q, k, v):
        group = serve_tiny.HEADS // serve_tiny.KV_HEADS
        q, k, v = (x.transpose(1, 2) for x in (q, *(x.repeat_interleave(group, 2) for x in (k, v))))
        scores = q @ k.transpose(2, 3) * serve_tiny.D_HEAD**-0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)

    first = torch.zeros(1, dtype=torch.int32, device=tokens.device)
    return model(tokens, first, attend)[0, len(request.prompt) - 1 :].float()


@pytest.fixture(params=WHERE)
def where(request, monkeypatch):
    if request.param == "cpu":
        monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    return request.param


def test_a_request_is_answered_as_if_it_were_alone_and_as_a_plain_loop_would(where):
    model = Model(device=where)
    company = requests()
    server = serve(model, company, pages=5)
    assert server.evictions > 0
    assert sorted(server.free) == [*range(5)]
    for mine, alone in zip(company, requests(), strict=True):
        serve(model, [alone], pages=9)
        assert len(mine.answer) == mine.wanted
        assert mine.answer == alone.answer
        assert torch.equal(torch.stack(mine.logits), torch.stack(alone.logits))
        truth = plain_logits(Model(torch.float32, where), mine)
        allowed = 2 * (plain_logits(model, mine) - truth).abs().max()
        assert (torch.stack(mine.logits).float() - truth).abs().max() <= allowed


def test_the_answer_depends_on_the_whole_prompt(where):
    model, (one, *_), (other, *_) = Model(device=where), requests(), requests()
    other.prompt[0] += 1
    for request in (one, other):
        serve(model, [request], pages=9)
    assert not torch.equal(one.logits[0], other.logits[0])
