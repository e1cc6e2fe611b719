"""Families of transformers on flashsmith against eager in float32, beside eager in bfloat16.

`make test` runs the smallest on the CPU; FAMILIES=all runs all there, `make test-gpu` on a GPU.
"""

import copy
import os
from pathlib import Path

import pytest
import torch
from model_families import (
    FAMILIES,
    WORDS,
    inputs_of,
    logits_of_pieces,
    model_of,
    name_in,
    static_cache,
    tokens_and_mask,
)

from flashsmith.api import launches
from flashsmith.api.ahead.model_shapes import model_problems
from flashsmith.api.ahead.shape_log import read_shapes
from flashsmith.base.errors import Unsupported
from flashsmith.integrations import flash_attn
from flashsmith.integrations import transformers as integration
from flashsmith.integrations.torch import sdpa as routes_of_torch
from flashsmith.kernels.plans import kernels_of
from flashsmith.tuner.choose.choice import choose

pytestmark = [
    pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ALWAYS = ("Llama", "gpt-oss")
is_left_out = pytest.mark.skipif(
    os.environ.get("FAMILIES") != "all", reason="set FAMILIES=all to run it on the CPU"
)


def places(names, always=ALWAYS):
    for name in names:
        marks = () if name in always else (is_left_out,)
        yield pytest.param(name, "cpu", id=f"{name}-cpu", marks=marks)
        yield pytest.param(name, "cuda", id=f"{name}-cuda", marks=pytest.mark.gpu)


every = pytest.mark.parametrize(("name", "device"), list(places(FAMILIES)))
GENERATING = [n for n, family in FAMILIES.items() if family.generates]
generating = pytest.mark.parametrize(("name", "device"), list(places(GENERATING)))
on_a_cache = pytest.mark.parametrize(
    ("name", "device"), list(places(GENERATING, always=(*ALWAYS, "T5")))
)
TAKE_POSITIONS = [n for n in GENERATING if n != "T5"]


@pytest.fixture(autouse=True)
def _one_thread():
    """The models are small: threads that wait for each other cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def three(name, device, dtype=torch.bfloat16):
    """Eager in float32, eager in 16 bits, and ours."""
    pytest.importorskip("transformers", minversion="5")
    integration.register()
    return [
        model_of(name, implementation, dtype, device)
        for implementation, dtype in (
            ("eager", torch.float32),
            ("eager", dtype),
            ("flashsmith", dtype),
        )
    ]


def peers(name, device, eager):
    """What ours is held against in bfloat16: eager, and torch's attention where there is one."""
    if name in ("Gemma2", "gpt-oss"):
        return [eager]
    return [eager, model_of(name, "sdpa", torch.bfloat16, device)]


def cast(inputs, model):
    return {n: x.to(model.dtype) if x.is_floating_point() else x for n, x in inputs.items()}


def require_near(truth, near, ours):
    """At most twice as far from the truth as eager in the same precision."""
    allowed = 2 * (near.float() - truth.float()).abs().max()
    assert (ours.float() - truth.float()).abs().max() <= allowed


@every
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_of_a_prefill_are_eagers(name, device, side):
    inputs, rows = inputs_of(name, side, device)
    with torch.no_grad():
        require_near(*(m(**cast(inputs, m)).logits[rows] for m in three(name, device)))


@generating
def test_logits_of_generated_steps_behind_padding_are_eagers(name, device):
    """Twenty tokens, chosen by eager, one after the other."""
    inputs, _ = inputs_of(name, "left", device)
    own, mask_name = (name_in(inputs, what) for what in ("input_ids", "attention_mask"))
    models = three(name, device)
    found = [[], [], []]
    states = [cast(inputs, model) | {"use_cache": True} for model in models]
    with torch.no_grad():
        for _ in range(20):
            for model, state, logits in zip(models, states, found, strict=True):
                out = model(**state)
                logits.append(out.logits[:, -1])
                state["past_key_values"] = out.past_key_values
            chosen = found[0][-1].argmax(-1)[:, None]
            for state in states:
                state[own] = chosen
                state[mask_name] = torch.cat([state[mask_name], torch.ones_like(chosen)], 1)
                if "position_ids" in state:
                    state["position_ids"] = state["position_ids"][:, -1:] + 1
    require_near(*(torch.stack(logits) for logits in found))


def prompts(name, device, count=30):
    """Of 5 to 39 tokens each, padded on the left, and their mask; or thirty sounds."""
    random = torch.Generator().manual_seed(7)
    if name == "Whisper":
        return {"input_features": torch.randn(count, 8, 60, generator=random).to(device)}
    lengths = torch.randint(5, 40, (count,), generator=random)
    tokens = torch.randint(3, WORDS, (count, int(lengths.max())), generator=random)
    mask = torch.arange(tokens.shape[1])[None] >= tokens.shape[1] - lengths[:, None]
    return {"input_ids": (tokens * mask).to(device), "attention_mask": mask.long().to(device)}


@generating
def test_texts_that_run_free_leave_eagers_no_more_often_than_torchs_attention(name, device):
    """Twenty tokens behind thirty prompts: how many differ from those of float32.

    Random weights leave many near ties, on which any rounding decides: two deviations of such a
    count are allowed. Where a family has no attention by torch, eager in bfloat16 is the peer.
    """
    truth, eager, ours = three(name, device)
    near = peers(name, device, eager)[-1]
    told = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
    given = prompts(name, device)
    with torch.no_grad():
        texts = [m.generate(**cast(given, m), **told) for m in (truth, near, ours)]
    theirs, own = (int((text != texts[0]).any(1).sum()) for text in texts[1:])
    assert own <= theirs + 2 * max(theirs, 1) ** 0.5


@on_a_cache
@pytest.mark.parametrize("padding", ["none", "left"])
def test_a_second_turn_and_chunks_of_a_prefill_are_eagers(name, device, padding):
    inputs, rows = inputs_of(name, padding, device)
    pieces = (0, 20), (20, 30), (30, 37)
    with torch.no_grad():
        found = [logits_of_pieces(m, cast(inputs, m), pieces) for m in three(name, device)]
    require_near(*(logits[rows] for logits in found))


@pytest.mark.parametrize(("name", "device"), list(places(TAKE_POSITIONS)))
def test_packed_sequences_and_their_gradients_are_eagers(name, device):
    inputs, _ = inputs_of(name, "none", device)
    positions = torch.cat([torch.arange(n) for n in (10, 20, 7)])[None].expand(3, -1)
    inputs[name_in(inputs, "position_ids")] = positions.to(device)
    del inputs[name_in(inputs, "attention_mask")]
    found, gradients = [], []
    for model in three(name, device):
        found.append(model(**cast(inputs, model), use_cache=False).logits)
        gradients.append(gradient(model, found[-1]))
    require_near(*found)
    require_near_in_norm(*gradients)


def gradient(model, logits):
    """Of all parameters, one behind the other."""
    logits.float().logsumexp(-1).sum().backward()
    kept = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(kept)


def require_near_in_norm(truth, near, ours):
    assert (ours - truth).norm() <= 2 * (near - truth).norm()
    assert 4 * (near - truth).norm() <= truth.norm()  # it says something


trained = pytest.mark.parametrize(("name", "device"), list(places(FAMILIES)))


@trained
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_gradients_of_a_training_step_are_eagers_and_those_of_torchs_attention(name, device, side):
    """All in bfloat16: ours are at most twice as far from float32 as either of the others."""
    inputs, rows = inputs_of(name, side, device)
    truth, eager, ours = three(name, device)
    models = truth, ours, *peers(name, device, eager)
    of_truth, own, *theirs = (
        gradient(m, m.train()(**cast(inputs, m)).logits[rows]) for m in models
    )
    for near in theirs:
        require_near_in_norm(of_truth, near, own)


@pytest.mark.parametrize("side", ["none", "right"])
def test_t5_learns_its_bias_of_positions(side):
    """In float16: of a sum over all rows, bfloat16 may leave little but roundings."""
    inputs, rows = inputs_of("T5", side)
    found = []
    for model in three("T5", "cpu", torch.float16):
        logits = model.train()(**cast(inputs, model)).logits[rows]
        logits.float().square().sum().backward()  # of other losses less is left than is rounded
        learnt = [p.grad for n, p in model.named_parameters() if "relative_attention_bias" in n]
        assert len(learnt) == 2  # of the encoder and of the decoder
        found.append(torch.cat([p.float().flatten() for p in learnt]))
    require_near_in_norm(*found)


@on_a_cache
@pytest.mark.parametrize("padding", ["none", "left"])
def test_steps_on_a_static_cache_are_eagers(name, device, padding):
    inputs, rows = inputs_of(name, padding, device)
    pieces, found = [(0, 20), (20, 30), *((n, n + 1) for n in range(30, 37))], []
    with torch.no_grad():
        for model in three(name, device):
            own = cast(inputs, model)
            found.append(logits_of_pieces(model, own, pieces, static_cache(model, own))[rows])
    require_near(*found)


@pytest.mark.parametrize(("name", "device"), list(places(FAMILIES, always=("ViT",))))
def test_a_compiled_model_takes_a_mask_of_ones(name, device):
    """In one graph; a model of pictures takes no mask."""
    inputs, _ = inputs_of(name, "none", device)
    inputs.pop("position_ids", None)
    inputs |= {n: torch.ones_like(x) for n, x in inputs.items() if n.endswith("attention_mask")}
    truth, near, ours = three(name, device)
    # torch 2.11 does not trace how transformers makes the cache of an encoder and a decoder.
    more = {"use_cache": False} if ours.config.is_encoder_decoder else {}
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        require_near(*(m(**cast(inputs, m), **more).logits for m in (truth, near, compiled)))


@on_a_cache
def test_prompt_lookup_generates_as_without_it(name, device):
    """The decoder gets its prompt twice in a row, so that what it looks up is there."""
    *_, ours = three(name, device)
    inputs, _ = inputs_of(name, "none", device)
    tokens, lengths = name_in(inputs, "input_ids"), []
    given = {
        n: x[:1] for n, x in cast(inputs, ours).items() if n != name_in(inputs, "position_ids")
    }
    given.pop(name_in(inputs, "attention_mask"))
    given[tokens] = given[tokens][:, :12].repeat(1, 2)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        plain = ours.generate(**given, **options)
        heed(ours, tokens, lengths)
        looked_up = ours.generate(**given, prompt_lookup_num_tokens=3, **options)
    assert set(lengths) - {1, 24}  # guesses behind the prompt, or behind a step's token
    assert torch.equal(plain, looked_up) or device == "cuda"  # where rows may have other bits


def heed(model, argument, lengths):
    """Appends how many tokens each call of the model gets."""

    def note(_, args, kwargs):
        lengths.append(kwargs[argument].shape[1])

    model.register_forward_pre_hook(note, with_kwargs=True)


@every
def test_weights_of_attention_are_refused_by_name(name, device):
    inputs, _ = inputs_of(name, "none", device)
    *_, ours = three(name, device)
    with pytest.raises(
        Unsupported, match=r'output_attentions.* or use attn_implementation="eager"\.$'
    ):
        ours(**cast(inputs, ours), output_attentions=True)


REFUSED = {
    "Falcon": r'own code.*; use attn_implementation="sdpa" inside of flashsmith\.integrations',
    "Mpt": r'own code.*; use attn_implementation="eager"\.$',
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_is_not_taken_says_so_when_it_is_made(name):
    transformers = pytest.importorskip("transformers", minversion="5")
    integration.register()
    config = getattr(transformers, f"{name}Config")()
    make = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"), pytest.raises(Unsupported, match=REFUSED[name]):
        make(config, attn_implementation="flashsmith")


@pytest.mark.parametrize("multi_query", [True, False])
def test_falcon_runs_through_the_routes_of_torchs_attention(multi_query):
    """A family with attention in its own code, by the way that its refusal names."""
    transformers = pytest.importorskip("transformers", minversion="5")
    config = transformers.FalconConfig(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        multi_query=multi_query,
    )
    tokens, mask = tokens_and_mask("left")
    found = []
    for implementation, dtype in (
        ("eager", torch.float32),
        ("eager", torch.bfloat16),
        ("sdpa", torch.bfloat16),
    ):
        torch.manual_seed(0)
        make = transformers.AutoModelForCausalLM.from_config
        model = make(copy.deepcopy(config), attn_implementation=implementation).to(dtype).eval()
        with torch.no_grad(), routes_of_torch(cpu=True) as routes:
            found.append(model(tokens, attention_mask=mask).logits[mask.bool()])
    require_near(*found)
    assert {route.choice for route in routes.counts()} == {"flashsmith"}
    assert all("modeling_falcon.py" in route.site for route in routes.counts())


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flash_attention_3"])
def test_a_model_that_asks_for_flash_attn_gets_flashsmith(implementation, monkeypatch):
    pytest.importorskip("transformers", minversion="5")
    from transformers import modeling_flash_attention_utils as theirs
    from transformers.utils import import_utils

    models = [
        model_of("Mistral", "eager", dtype) for dtype in (torch.float32, *[torch.bfloat16] * 2)
    ]
    inputs, rows = inputs_of("Mistral", "left")
    flash_attn.install()
    monkeypatch.setattr(import_utils, "is_torch_cuda_available", lambda: True)
    monkeypatch.setattr(theirs, "_loaded_implementation", None)
    try:
        models[2].config._attn_implementation_internal = implementation
        with torch.no_grad():
            require_near(*(m(**cast(inputs, m)).logits[rows] for m in models))
        assert theirs._flash_varlen_fn.__module__.startswith("flashsmith.")
    finally:
        flash_attn.uninstall()


@pytest.mark.parametrize(
    "name", ["Llama", *(pytest.param(n, marks=is_left_out) for n in ("gpt-oss", "T5", "Whisper"))]
)
def test_the_kernels_take_a_second_turn_in_the_emulator(name, monkeypatch, tmp_path):
    log = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    monkeypatch.setenv("FLASHSMITH_SHAPES", str(log))
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    test_a_second_turn_and_chunks_of_a_prefill_are_eagers(name, "cpu", "left")
    assert {problem.q_len for problem, _ in read_shapes(log)} >= {20, 10, 7}


@pytest.mark.parametrize(
    "name",
    ["Mistral", *(pytest.param(n, marks=is_left_out) for n in ("Llama", "Gemma2", "gpt-oss"))],
)
def test_what_a_configuration_says_to_warm_up_is_what_its_calls_have(name, monkeypatch, tmp_path):
    pytest.importorskip("transformers", minversion="5")
    integration.register()
    log = tmp_path / "shapes.jsonl"
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    monkeypatch.setenv("FLASHSMITH_SHAPES", str(log))
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", {})
    model = model_of(name, "flashsmith", torch.bfloat16)
    tokens = torch.randint(3, WORDS, (1, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.generate(tokens, max_new_tokens=4, do_sample=False)

    def kernels(problems, arch="sm_90a"):
        chosen = {problem: choose(problem, arch, gpu="NVIDIA H200").config for problem in problems}
        return {kernel for problem in chosen for kernel in kernels_of(chosen[problem], problem)}

    calls = [problem for problem, _ in read_shapes(log)]
    assert {problem.q_len for problem in calls} == {1, 21}
    assert kernels(calls) <= kernels(model_problems(model.config))


COLUMNS = {
    "prefill, padded either side": test_logits_of_a_prefill_are_eagers,
    "20 steps behind padding": test_logits_of_generated_steps_behind_padding_are_eagers,
    "30 texts run free": (
        test_texts_that_run_free_leave_eagers_no_more_often_than_torchs_attention
    ),
    "gradients, padded either side": (
        test_gradients_of_a_training_step_are_eagers_and_those_of_torchs_attention
    ),
    "second turn, chunks": test_a_second_turn_and_chunks_of_a_prefill_are_eagers,
    "static cache": test_steps_on_a_static_cache_are_eagers,
    "prompt lookup": test_prompt_lookup_generates_as_without_it,
    "packed": test_packed_sequences_and_their_gradients_are_eagers,
    "compiled, mask of ones": test_a_compiled_model_takes_a_mask_of_ones,
}


def test_the_table_of_families_says_what_is_tested():
    page = (Path(__file__).parents[2] / "docs/transformers.md").read_text(encoding="utf-8")
    table = page.partition("## Twelve families")[2].partition("## ")[0]
    title, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    )
    assert title == ["family", *COLUMNS]
    rows = {n.removesuffix(" (text)"): line[1:] for line in lines for n in line[0].split(", ")}
    assert set(rows) == set(FAMILIES)
    for column, test in enumerate(COLUMNS.values()):
        (places_of,) = (m.args[1] for m in test.pytestmark if m.args[0] == ("name", "device"))
        said = {name for name, row in rows.items() if not row[column].startswith("no ")}
        assert said == {place.values[0] for place in places_of}, title[1 + column]
