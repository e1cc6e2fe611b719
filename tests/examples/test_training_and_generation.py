"""The examples that train and generate, a few steps each on the CPU."""

import copy
import math
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

import train_tiny  # noqa: E402
from nearness import require_near  # noqa: E402

from flashsmith.base.dtypes import DType  # noqa: E402
from flashsmith.check.tolerance import FACTOR  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


@pytest.fixture
def _little(monkeypatch):
    for name, value in (("LENGTH", 40), ("BATCH", 2), ("WIDTH", 32), ("HEADS", 2), ("LAYERS", 1)):
        monkeypatch.setattr(train_tiny, name, value)


@pytest.fixture
def unrounded(monkeypatch):
    """Inside it the models round nothing to bfloat16."""

    @contextmanager
    def inside():
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "bfloat16", lambda x: x)
            yield

    return inside


@pytest.mark.usefixtures("_little")
def test_a_model_learns_by_flashsmith_as_by_sdpa(capsys, unrounded):
    losses = train_tiny.main(["--steps", "8"])
    ours, theirs = losses["flashsmith"], losses["SDPA"]
    assert abs(ours[0] - math.log(256)) < 1  # it begins with knowing nothing
    assert ours[-1] < ours[0] - 0.3
    with unrounded():
        exact = train_tiny.train(train_tiny.by_sdpa, 8, "cpu")
    off = [max(abs(a - b) for a, b in zip(one, exact, strict=True)) for one in (ours, theirs)]
    assert off[0] <= FACTOR * off[1]
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
def test_a_text_has_the_logits_that_it_has_alone(unrounded):
    import finetune_packed

    texts = [text[:40] for text in finetune_packed.conversations()[1:4]]
    attend = finetune_packed.Packed()
    model, near, exact = (
        train_tiny.model_with(way, "cpu")
        for way in (attend, train_tiny.by_sdpa, train_tiny.by_sdpa)
    )
    exact.double()
    with torch.no_grad():
        attend.begin([len(text) for text in texts], "cpu")
        packed = model(torch.cat(texts)[None])[0].split([len(text) for text in texts])
        for text, logits in zip(texts, packed, strict=True):
            # Positions count on in a pack, which RoPE does not notice but by rounding.
            same = near(text[None])[0]
            with unrounded():
                truth = exact(text[None])[0]
            require_near(logits, truth, same, DType.BF16)


def test_prompts_that_are_padded_are_answered_as_if_they_were_alone(capsys):
    pytest.importorskip("transformers", minversion="4.53")
    import generate

    out = generate.main(["--tokens", "3"])
    inputs = generate.random_prompts()
    longest = inputs["input_ids"].shape[1]
    assert torch.equal(out[:, :longest], inputs["input_ids"])
    ours = generate.small_llama()
    near = type(ours)._from_config(ours.config, attn_implementation="sdpa").eval()
    near.load_state_dict(ours.state_dict())
    exact = copy.deepcopy(near)
    near.bfloat16()
    for row, length in zip(out, generate.LENGTHS, strict=True):
        with torch.no_grad():
            truth, same = (
                model(row[None, longest - length : -1]).logits[0, length - 1 :]
                for model in (exact, near)
            )
        lost = truth.amax(-1) - truth.gather(1, row[longest:, None])[:, 0]
        # Of random weights the best lie close: both it and the one that was taken may be off.
        assert lost.max() <= 2 * FACTOR * (same - truth).abs().max()
    assert len(capsys.readouterr().out.splitlines()) == len(generate.LENGTHS)
