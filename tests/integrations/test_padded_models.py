"""Masks of models without transformers: padding, packed rows, caches, against masks in full."""

import pytest
import torch

from flashsmith.integrations import transformers as integration
from flashsmith.integrations.model_masks import PATTERN, mask_maker

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


# As transformers names and nests them: their names say what they do.
def causal_mask_function(batch, head, q, k):
    return k <= q


def bidirectional_mask_function(batch, head, q, k):
    return q >= 0


def sliding_window_overlay(sliding_window):
    def inner_mask(batch, head, q, k):
        return k > q - sliding_window

    return inner_mask


def packed_sequence_mask_function(packed_sequence_mask):
    def inner_mask(batch, head, q, k):
        return packed_sequence_mask[batch, q] == packed_sequence_mask[batch, k]

    return inner_mask


def and_masks(*mask_functions):
    def and_mask(batch, head, q, k):
        result = torch.ones((), dtype=torch.bool)
        for mask in mask_functions:
            result = result & mask(batch, head, q, k)
        return result

    return and_mask


def or_masks(*mask_functions):
    def or_mask(batch, head, q, k):
        return mask_functions[0](batch, head, q, k) | mask_functions[1](batch, head, q, k)

    return or_mask


def whole_mask(**asked):
    """Which keys each row sees, (batch, 1, rows, keys): the definition."""
    batch = torch.arange(asked["batch_size"])[:, None, None, None]
    q = torch.arange(asked["q_length"])[None, None, :, None] + asked["q_offset"]
    k = torch.arange(asked["kv_length"])[None, None, None, :] + asked["kv_offset"]
    seen = asked["mask_function"](batch, None, q, k)
    given = asked["attention_mask"]
    if given is not None:
        missing = asked["kv_length"] + asked["kv_offset"] - given.shape[1]
        given = torch.nn.functional.pad(given, (0, max(missing, 0)))
        seen = seen & given[batch, k]
    return seen.expand(asked["batch_size"], 1, asked["q_length"], asked["kv_length"])


make = mask_maker(whole_mask, causal_mask_function)


def window(size):
    return and_masks(sliding_window_overlay(size), causal_mask_function)


def padded(columns, *runs):
    """A row a run: its first token, and the column behind its last."""
    mask = torch.zeros(len(runs), columns, dtype=torch.bool)
    for row, (first, last) in zip(mask, runs, strict=True):
        row[first:last] = True
    return mask


LEFT = padded(37, (5, 37), (0, 37), (30, 37))
RIGHT = padded(37, (0, 31), (0, 2), (0, 37))
BOTH = padded(37, (3, 31), (0, 0), (36, 37))
IDS = torch.tensor([[0] * 10 + [1] * 20 + [2] * 7, [4] + [5] * 36, [0] * 37])
# Rows, keys of the array, position of the first row and of the first key; what is asked for.
CASES = {
    "left": (37, 37, 0, 0, {"attention_mask": LEFT}),
    "right": (37, 37, 0, 0, {"attention_mask": RIGHT}),
    "both": (37, 37, 0, 0, {"attention_mask": BOTH}),
    "left, a window": (37, 37, 0, 0, {"attention_mask": LEFT, "mask_function": window(7)}),
    "right, a window": (37, 37, 0, 0, {"attention_mask": RIGHT, "mask_function": window(7)}),
    "one row": (1, 37, 36, 0, {"attention_mask": LEFT}),
    "one row, a window": (1, 37, 36, 0, {"attention_mask": LEFT, "mask_function": window(7)}),
    "some rows": (4, 37, 33, 0, {"attention_mask": LEFT}),
    "some rows, no padding": (4, 37, 33, 0, {}),
    "some rows, a window": (4, 37, 33, 0, {"mask_function": window(7)}),
    "a cache of a window": (4, 10, 33, 27, {"attention_mask": LEFT, "mask_function": window(7)}),
    "a static cache": (4, 50, 33, 0, {}),
    "a static cache, padded": (4, 50, 33, 0, {"attention_mask": LEFT}),
    "into a static cache": (37, 50, 0, 0, {"attention_mask": LEFT}),
    "an encoder": (
        37,
        37,
        0,
        0,
        {"attention_mask": BOTH, "mask_function": bidirectional_mask_function},
    ),
    "an encoder's keys": (
        5,
        37,
        0,
        0,
        {"attention_mask": RIGHT, "mask_function": bidirectional_mask_function},
    ),
    "packed": (
        37,
        37,
        0,
        0,
        {"mask_function": and_masks(causal_mask_function, packed_sequence_mask_function(IDS))},
    ),
    "packed, a window": (
        37,
        37,
        0,
        0,
        {"mask_function": and_masks(window(7), packed_sequence_mask_function(IDS))},
    ),
}


def asked_of(rows, keys, q_offset, kv_offset, more):
    asked = {
        "batch_size": 3,
        "q_length": rows,
        "kv_length": keys,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": causal_mask_function,
        "attention_mask": None,
        "allow_is_causal_skip": True,
    }
    return asked | more


def attention(q, k, v, seen):
    """The definition; rows that see nothing are 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2)


HEADS = (6, 2)


def tensors(rows, keys, dtype=torch.bfloat16):
    torch.manual_seed(0)
    heads, kv_heads = HEADS
    shapes = [(3, heads, rows, 16), (3, kv_heads, keys, 16), (3, kv_heads, keys, 16)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("name", CASES)
def test_a_model_gets_what_its_mask_says(name):
    rows, keys, q_offset, kv_offset, more = CASES[name]
    asked = asked_of(rows, keys, q_offset, kv_offset, more)
    mask = make(**asked)
    assert mask is None or mask.dim() == 2
    seen = whole_mask(**asked)
    q, k, v = tensors(rows, keys)
    module = torch.nn.Module()
    module.is_causal = "encoder" not in name
    if module.is_causal:  # what a static cache holds behind its tokens does not count
        k[:, :, q_offset - kv_offset + rows :] = 1e4
    out, _ = integration.attention_forward(module, q, k, v, mask)
    truth = attention(*(x.double() for x in (q, k, v)), seen)
    near = (attention(q, k, v, seen) - truth).abs()
    counts = token_rows(asked)
    assert ((out - truth).abs()[counts]).max() <= 2 * near[counts].max()


def token_rows(asked):
    """Of the batch: nobody reads what padding gets."""
    rows, first, given = asked["q_length"], asked["q_offset"], asked["attention_mask"]
    is_of_keys = asked["mask_function"] is bidirectional_mask_function
    if given is None or is_of_keys:
        return torch.ones(3, rows, dtype=torch.bool) & (given is None or given.any(1)[:, None])
    return given[:, first : first + rows]


HOLES = LEFT.clone()
HOLES[1, 20] = False
LOOKS_AHEAD = or_masks(causal_mask_function, bidirectional_mask_function)
WHOLE = {"holes": {"attention_mask": HOLES}, "ahead": {"mask_function": LOOKS_AHEAD}}


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_pattern_cannot_say_is_a_mask_in_full(name):
    asked = asked_of(37, 37, 0, 0, WHOLE[name])
    mask = make(**asked)
    assert mask.shape == (3, 1, 37, 37)
    q, k, v = tensors(37, 37)
    out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, mask)
    truth = attention(*(x.double() for x in (q, k, v)), mask)
    counts = token_rows(asked)
    near = (attention(q, k, v, mask) - truth).abs()[counts].max()
    assert (out - truth).abs()[counts].max() <= 2 * near


def test_a_bias_of_positions_is_added_to_what_the_mask_says():
    q, k, v = tensors(37, 37)
    bias = torch.randn(1, 6, 37, 37, generator=torch.Generator().manual_seed(2)).bfloat16()
    module = torch.nn.Module()
    for asked in (
        asked_of(37, 37, 0, 0, {}),
        asked_of(37, 37, 0, 0, {"attention_mask": LEFT}),
        asked_of(37, 37, 0, 0, {"attention_mask": HOLES}),
    ):
        seen = whole_mask(**asked)
        out, _ = integration.attention_forward(module, q, k, v, make(**asked), position_bias=bias)
        truth, near = (
            biased(*(x.to(kind) for x in (q, k, v, bias)), seen)
            for kind in (torch.float64, torch.bfloat16)
        )
        counts = token_rows(asked)
        allowed = 2 * (near - truth).abs()[counts].max()
        assert (out - truth).abs()[counts].max() <= allowed


def biased(q, k, v, bias, seen):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2)


def test_the_mask_of_a_step_that_is_compiled_keeps_its_shape():
    """A static cache knows on the device only how full it is."""
    made = [
        make(
            **asked_of(
                1, 50, torch.tensor(at), 0, {"attention_mask": padded(at + 1, *[(0, 9)] * 3)}
            )
        )
        for at in (30, 31)
    ]
    assert [mask.shape for mask in made] == [(3, 1, 1, 50)] * 2


def test_a_mask_keeps_what_every_layer_asks():
    """Boundaries are looked for once a step: it waits for the GPU."""
    mask = make(**asked_of(37, 37, 0, 0, {"attention_mask": LEFT}))
    assert getattr(mask, PATTERN).causal
    asked = dict(vars(mask))
    q, k, v = tensors(37, 37)
    integration.attention_forward(torch.nn.Module(), q, k, v, mask)
    assert vars(mask) == asked


def test_a_windowless_layer_of_a_model_with_windows_sees_every_key():
    """The mask says it: some models pass their window to every layer."""
    mask = make(**asked_of(4, 37, 33, 0, {}))
    q, k, v = tensors(4, 37)
    module = torch.nn.Module()
    out, _ = integration.attention_forward(module, q, k, v, mask, sliding_window=7)
    same, _ = integration.attention_forward(module, q, k, v, mask)
    assert torch.equal(out, same)


def test_boundaries_that_a_collator_gives_are_taken():
    q, k, v = (x[:1] for x in tensors(37, 37))
    ends = torch.tensor([0, 10, 30, 37], dtype=torch.int32)
    mask = make(
        **asked_of(
            37,
            37,
            0,
            0,
            {
                "batch_size": 1,
                "mask_function": and_masks(
                    causal_mask_function, packed_sequence_mask_function(IDS[:1])
                ),
            },
        )
    )
    module = torch.nn.Module()
    by_ids, _ = integration.attention_forward(module, q, k, v, mask)
    given = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 20, "max_length_k": 20}
    out, _ = integration.attention_forward(module, q, k, v, None, **given)
    assert torch.equal(out, by_ids)


@pytest.mark.parametrize("widths", [(24, 16), (16, 24)])
def test_values_of_another_width_are_padded(widths):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 9, w).bfloat16() for w in (widths[0], *widths))
    out, _ = integration.attention_forward(torch.nn.Module(), q, k, v, None)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    truth = sdpa(*(x.double() for x in (q, k, v)), is_causal=True).transpose(1, 2)
    near = (sdpa(q, k, v, is_causal=True).transpose(1, 2) - truth).abs().max()
    assert out.shape == truth.shape
    assert (out - truth).abs().max() <= 2 * near


@pytest.mark.parametrize("name", ["both", "one row"])
def test_the_kernels_compute_what_a_padded_mask_says(name, monkeypatch):
    """In the emulator: sequences without keys, without rows, and rows of no sequence."""
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    monkeypatch.setitem(globals(), "HEADS", (3, 1))
    test_a_model_gets_what_its_mask_says(name)
