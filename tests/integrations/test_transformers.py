"""transformers: a decoder model runs on flashsmith, and what flashsmith cannot do is refused."""

import copy
from functools import partial

import pytest
import torch
from nearness import require_near

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.integrations import transformers as integration

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors(q_len=70, k_len=70, heads=6, kv_heads=2):
    torch.manual_seed(0)
    shapes = [(2, heads, q_len, 64), (2, kv_heads, k_len, 64), (2, kv_heads, k_len, 64)]
    return [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]


def require_right(out, q, k, v, **options):
    """At most twice as far from the truth as torch's attention of the same precision."""
    sdpa = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True, **options)
    truth = sdpa(q.double(), k.double(), v.double())
    near = (sdpa(q, k, v) - truth).abs().max()
    assert (out.transpose(1, 2) - truth).abs().max() <= 2 * near


def tokens_of(length, device="cpu"):
    random = torch.Generator().manual_seed(length)
    return torch.randint(1, 500, (2, length), generator=random).to(device)


@pytest.mark.parametrize(
    ("lengths", "asked", "is_causal"),
    [
        ((70, 70), None, True),  # prefill of a decoder
        ((70, 90), None, True),  # prefill into a cache that is longer
        ((1, 90), None, False),  # decoding: one query behind all keys
        ((70, 70), False, False),  # an encoder
    ],
)
def test_a_model_gets_what_torchs_attention_gives(lengths, asked, is_causal):
    q, k, v = tensors(*lengths)
    out, weights = integration.attention_forward(
        torch.nn.Module(), q, k, v, None, is_causal=asked, sliding_window=None
    )
    assert weights is None
    assert out.is_contiguous()
    require_right(out, q, k, v, is_causal=is_causal)


def test_the_module_says_whether_it_is_causal():
    module = torch.nn.Module()
    module.is_causal = False
    q, k, v = tensors()
    out, _ = integration.attention_forward(module, q, k, v, None)
    require_right(out, q, k, v, is_causal=False)


def test_the_scale_of_the_model_is_used():
    q, k, v = tensors()
    out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, None, scaling=0.25)
    require_right(out, q, k, v, is_causal=True, scale=0.25)


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("dropout", 0.1, "attention dropout is 0.1"),
        ("cache", object(), "flashsmith does not do a paged cache"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(argument, value, says):
    arguments = {"attention_mask": None, argument: value}
    with pytest.raises(Unsupported, match=says) as caught:
        integration.attention_forward(torch.nn.Module(), *tensors(), **arguments)
    assert str(caught.value).endswith('use attn_implementation="sdpa".')


def test_a_model_that_is_to_give_its_weights_of_attention_is_refused_when_it_is_made():
    """transformers gives an empty tuple in their place, and tells the attention nothing of it."""
    transformers = pytest.importorskip("transformers", minversion="5")
    integration.register()
    config = transformers.LlamaConfig(output_attentions=True)
    make = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"), pytest.raises(Unsupported, match=r'True in its.*"eager"') as caught:
        make(config, attn_implementation="flashsmith")
    assert str(caught.value).startswith("LlamaForCausalLM has output_attentions=True")


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16])
def test_a_mask_in_full_has_gradients(kind):
    q, k, v = tensors()
    seen = torch.rand(2, 1, 70, 70, generator=torch.Generator().manual_seed(3)) < 0.7
    mask = seen if kind is torch.bool else torch.where(seen, 0.0, -torch.inf).to(kind)
    gradients = []
    for dtype in (None, torch.float64, torch.bfloat16):  # ours, and torch's
        own = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (q, k, v)]
        if dtype is None:
            out, _ = integration.attention_forward(torch.nn.Module(), *own, mask)
        else:
            heads = [x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in own]
            out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen)
        gradients.append(torch.autograd.grad(out.double().square().sum(), own))
    for got, truth, same in zip(*gradients, strict=True):
        require_near(got, truth, same, DType.BF16)


def reference(q, k, v, *, softcap=None, s_aux=None, sliding_window=None):
    """Causal attention as eager models compute it, in the type of the tensors."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    hidden = keys > rows
    if sliding_window:
        hidden = hidden | (keys <= rows - sliding_window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    return scores.softmax(-1)[..., : k.shape[2]] @ v


@pytest.mark.parametrize(
    "asked",
    [
        {"softcap": 3.0},
        {"s_aux": torch.linspace(-1, 2, 6).bfloat16()},
        {"sliding_window": 17},
        {"softcap": 5.0, "sliding_window": 30, "s_aux": torch.linspace(-1, 2, 6)},
    ],
    ids=["cap", "sinks", "window", "all"],
)
def test_caps_sinks_and_windows_of_models_are_computed(asked):
    q, k, v = tensors()
    out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, None, **asked)
    truth = reference(*(x.double() for x in (q, k, v)), **asked)
    near = (reference(q, k, v, **asked) - truth).abs().max()
    assert (out.transpose(1, 2) - truth).abs().max() <= 2 * near


def test_a_window_of_a_model_that_looks_ahead_is_refused():
    with pytest.raises(Unsupported, match="looks at later tokens too"):
        integration.attention_forward(
            torch.nn.Module(), *tensors(), None, is_causal=False, sliding_window=17
        )


FAMILIES = {
    "Mistral": {"sliding_window": 40},
    "Gemma2": {"sliding_window": 40, "query_pre_attn_scalar": 64, "head_dim": 64},
    "GptOss": {"sliding_window": 40, "head_dim": 64, "num_local_experts": 4},
}


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_models_with_windows_caps_and_sinks_agree_with_eager(family):
    transformers = pytest.importorskip("transformers", minversion="4.57")
    integration.register()
    config = getattr(transformers, f"{family}Config")(
        hidden_size=384,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=500,
        **FAMILIES[family],
    )
    logits = {}
    for name, dtype in (("eager", torch.float32), ("eager", torch.bfloat16), ("flashsmith", None)):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation=name
        )
        model = model.to("cuda", dtype or torch.bfloat16).eval()
        with torch.no_grad():
            logits[name, dtype] = model(tokens_of(333, "cuda")).logits.float()
    truth = logits["eager", torch.float32]
    near = (logits["eager", torch.bfloat16] - truth).abs().max()
    assert (logits["flashsmith", None] - truth).abs().max() <= 2 * near


def test_a_float32_model_is_told_how_to_be_loaded():
    q, k, v = (x.float() for x in tensors())
    with pytest.raises(TypeError, match=r"the model is float32; .* dtype=torch\.bfloat16"):
        integration.attention_forward(torch.nn.Module(), q, k, v, None)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, None)
    assert out.dtype is torch.bfloat16


def models(device):
    transformers = pytest.importorskip("transformers", minversion="4.53")
    integration.register()
    config = transformers.LlamaConfig(
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=500,
    )
    made = []
    for name in ("sdpa", "flashsmith"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation=name
        )
        made.append(model.to(device, torch.bfloat16).eval())
    return made


@pytest.mark.parametrize("where", WHERE)
def test_the_logits_of_a_llama_are_those_of_sdpa(where):
    theirs, ours = models(where)
    tokens = tokens_of(150, where)
    with torch.no_grad():
        full = theirs.float()(tokens).logits
        near = (theirs.bfloat16()(tokens).logits - full).abs().max()
        off = (ours(tokens, attention_mask=torch.ones_like(tokens)).logits - full).abs().max()
    assert off <= 2 * near


def test_a_llama_generates_the_same_tokens():
    """On the CPU, where both compute the same bits: random weights leave the best tokens close."""
    theirs, ours = models("cpu")
    tokens = tokens_of(77)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        assert torch.equal(theirs.generate(tokens, **options), ours.generate(tokens, **options))


@pytest.mark.gpu
def test_a_llama_decodes_one_token_behind_a_cache():
    theirs, ours = models("cuda")
    tokens = tokens_of(78, "cuda")
    with torch.no_grad():
        full = ours(tokens).logits[:, -1]
        cache = ours(tokens[:, :-1], use_cache=True).past_key_values
        step = ours(tokens[:, -1:], past_key_values=cache).logits[:, -1]
        truth = theirs.float()(tokens).logits[:, -1]
    assert (step - truth).abs().max() <= 2 * (full - truth).abs().max()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_has_the_logits_of_its_sequences_alone(side):
    theirs, ours = models("cpu")
    exact = copy.deepcopy(theirs).float()
    tokens = tokens_of(77)
    mask = torch.ones_like(tokens)
    mask[0, :5] = mask[1, :50] = 0
    mask = mask if side == "left" else mask.flip(1)
    with torch.no_grad():
        logits = ours(
            tokens, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(0)
        ).logits
        for row, kept in enumerate(mask.bool()):
            alone = tokens[row : row + 1, kept]
            truth, same = (model(alone).logits[0] for model in (exact, theirs))
            require_near(logits[row, kept], truth, same, DType.BF16)


@pytest.mark.parametrize("where", WHERE)
def test_a_llama_compiles_to_one_graph(where):
    theirs, ours = models(where)
    torch._dynamo.reset()
    tokens = tokens_of(77, where)
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        plain = ours(tokens).logits
        assert torch.equal(compiled(tokens).logits, plain)
        masked = compiled(tokens, attention_mask=torch.ones_like(tokens)).logits
        same = theirs(tokens).logits
        require_near(masked, theirs.float()(tokens).logits, same, DType.BF16)
