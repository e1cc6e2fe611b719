"""The examples that train and generate, a few steps each on the CPU."""

import math

import pytest

torch = pytest.importorskip("torch")

import train_tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


@pytest.fixture
def _little(monkeypatch):
    for name, value in (("LENGTH", 40), ("BATCH", 2), ("WIDTH", 32), ("HEADS", 2), ("LAYERS", 1)):
        monkeypatch.setattr(train_tiny, name, value)


@pytest.mark.usefixtures("_little")
def test_a_model_learns_by_flashsmith_as_by_sdpa(capsys):
    losses = train_tiny.main(["--steps", "8"])
    ours, theirs = losses["flashsmith"], losses["SDPA"]
    assert abs(ours[0] - math.log(256)) < 1  # it begins with knowing nothing
    assert ours[-1] < ours[0] - 0.3
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 0.05
    assert len(capsys.readouterr().out.splitlines()) == 9


@pytest.mark.usefixtures("_little")
def test_packed_conversations_are_learnt(capsys, monkeypatch):
    import finetune_packed

    monkeypatch.setattr(finetune_packed, "TOKENS", 300)
    whole = finetune_packed.conversations
    monkeypatch.setattr(finetune_packed, "conversations", lambda: [t[:100] for t in whole()])
    losses = finetune_packed.main(["--steps", "8"])
    assert losses[-1] < losses[0] - 0.3
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.usefixtures("_little")
def test_a_text_has_the_logits_that_it_has_alone():
    import finetune_packed

    texts = [text[:40] for text in finetune_packed.conversations()[1:4]]
    attend = finetune_packed.Packed()
    model = train_tiny.model_with(attend, "cpu")
    with torch.no_grad():
        attend.begin([len(text) for text in texts], "cpu")
        packed = model(torch.cat(texts)[None])[0].split([len(text) for text in texts])
        for text, logits in zip(texts, packed, strict=True):
            attend.begin([len(text)], "cpu")
            alone = model(text[None])[0]
            # Positions count on in a pack, which RoPE does not notice but by rounding.
            assert (logits - alone).abs().max() <= 0.05 * alone.abs().max()


def test_prompts_that_are_padded_are_answered_as_if_they_were_alone(capsys):
    pytest.importorskip("transformers", minversion="4.53")
    import generate

    out = generate.main(["--tokens", "3"])
    inputs = generate.random_prompts()
    longest = inputs["input_ids"].shape[1]
    assert torch.equal(out[:, :longest], inputs["input_ids"])
    model = generate.small_llama().bfloat16().eval()
    for row, length in zip(out, generate.LENGTHS, strict=True):
        with torch.no_grad():
            logits = model(row[None, longest - length : -1]).logits[0, length - 1 :]
        lost = logits.amax(-1) - logits.gather(1, row[longest:, None])[:, 0]
        assert lost.max() <= 0.02 * logits.abs().max()  # of random weights the best lie close
    assert len(capsys.readouterr().out.splitlines()) == len(generate.LENGTHS)
