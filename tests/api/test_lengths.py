"""Lengths of padded batches through the doors: NumPy, torch and flash-attn's names for them."""

import numpy as np
import pytest
import torch
from nearness import expected_of, require_expected

from flashsmith import flash_attention, flash_attn_varlen_func, flash_attn_with_kvcache
from flashsmith.base import settings
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported
from flashsmith.integrations import flash_attn_3, transformers
from flashsmith.problem.attention import AttentionProblem

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")

CONFIG = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
SHAPE = (2, 4, 2, 90, 150, 64)  # batch, heads, kv heads, rows, keys, d_head
LENGTHS = {
    "q_lengths": np.array([90, 31], np.int32),
    "k_lengths": np.array([150, 80], np.int32),
    "k_starts": np.array([17, 0], np.int32),
}
ENDS_Q, ENDS_K = np.array([0, 90, 180], np.int32), np.array([0, 150, 300], np.int32)


def arrays():
    draw = np.random.default_rng(3)
    q = draw.standard_normal((2, 90, 4, 64)).astype(np.float16)
    return q, *(draw.standard_normal((2, 150, 2, 64)).astype(np.float16) for _ in range(2))


def expected(names=tuple(LENGTHS)):
    asked = dict.fromkeys(names, True)
    problem = AttentionProblem(*SHAPE, DType.FP16, causal=True, lse=True, **asked)
    given = {name: LENGTHS[name] for name in names}
    return expected_of(problem, **dict(zip("qkv", arrays(), strict=True)), **given)


def test_arrays_and_tensors_mean_the_same():
    wanted = expected()
    out, lse = flash_attention(*arrays(), causal=True, return_lse=True, config=CONFIG, **LENGTHS)
    require_expected(wanted, o=out, lse=lse)
    assert not out[1, 31:].any()
    tensors = [torch.from_numpy(x) for x in arrays()]
    tables = {name: torch.from_numpy(table) for name, table in LENGTHS.items()}
    require_expected(wanted, o=flash_attention(*tensors, causal=True, **tables))


def test_flash_attns_names_for_packed_sequences():
    packed = [torch.from_numpy(x).flatten(0, 1) for x in arrays()]
    used = {
        name: torch.from_numpy(LENGTHS[table])
        for name, table in {"seqused_q": "q_lengths", "seqused_k": "k_lengths"}.items()
    }
    ends = [torch.from_numpy(ends) for ends in (ENDS_Q, ENDS_K)]
    pad = torch.from_numpy(LENGTHS["k_starts"])
    found = flash_attn_varlen_func(*packed, *ends, 1, 1, causal=True, leftpad_k=pad, **used)
    require_expected(expected(), o=found.view(2, 90, 4, 64))
    third = flash_attn_3.flash_attn_varlen_func(*packed, *ends, 1, 1, causal=True, **used)
    require_expected(expected(("q_lengths", "k_lengths")), o=third.view(2, 90, 4, 64))


def test_a_cache_may_begin_with_padding():
    q, k, v = (torch.from_numpy(x) for x in arrays())
    lengths, pad = (torch.from_numpy(LENGTHS[name]) for name in ("k_lengths", "k_starts"))
    found = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, cache_leftpad=pad, causal=True)
    require_expected(expected(("k_lengths", "k_starts")), o=found)


def test_a_padded_batch_of_a_model_is_neither_packed_nor_masked(monkeypatch):
    seen = {}

    def spy(*args, **facts):
        seen.update(facts)
        return flash_attention(*args, **facts)

    monkeypatch.setattr(transformers, "flash_attention", spy)
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in arrays())
    mask = torch.ones(2, 150, dtype=torch.bool)
    mask[0, :17] = mask[1, 80:] = False
    module = torch.nn.Module()
    out, _ = transformers.attention_forward(module, q, k, v, mask, is_causal=True)
    assert seen["k_starts"].tolist() == [17, 0]
    assert seen["k_lengths"].tolist() == [150, 80]
    assert seen["q_lengths"].tolist() == [90, 20]
    assert not {"bias", "cu_seqlens_q"} & seen.keys()
    assert not out[1, 20:].any()


def test_a_checked_call_names_the_length_that_is_wrong(monkeypatch):
    monkeypatch.setattr(settings, "checks_calls", lambda: True)
    for name, number, says in (
        ("q_lengths", 91, r"q_lengths\[1\] is 91; sequence 1 has room for 0 to 90 rows"),
        ("k_lengths", -1, r"k_lengths\[1\] is -1; sequence 1 has room for 0 to 150 keys"),
        ("k_starts", 81, r"k_starts\[1\] is 81; sequence 1 has room for 0 to 80 keys"),
    ):
        wrong = LENGTHS | {name: np.array([5, number], np.int32)}
        with pytest.raises(ArgumentError, match=says):
            flash_attention(*arrays(), **wrong)
    packed = [x.reshape(-1, *x.shape[2:]) for x in arrays()]
    with pytest.raises(ArgumentError, match=r"k_lengths\[0\] is 151; sequence 0 has room for 0"):
        flash_attn_varlen_func(
            *packed, ENDS_Q, ENDS_K, 1, 1, seqused_k=np.array([151, 0], np.int32)
        )


def test_what_cannot_be_is_refused_by_name():
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in arrays())
    for name, table in LENGTHS.items():
        with pytest.raises(Unsupported, match=f"{name} is given and a gradient is wanted"):
            flash_attention(q, k, v, **{name: torch.from_numpy(table)})
        with pytest.raises(ArgumentError, match=rf"{name} has shape \(1,\); it must be \(2,\)"):
            flash_attention(*arrays(), **{name: table[:1]})
        with pytest.raises(ArgumentTypeError, match=f"{name} is float"):
            flash_attention(*arrays(), **{name: table * 0.5})
    with pytest.raises(Unsupported, match="no kernel that reads pages takes either"):
        flash_attention(
            *arrays(),
            block_table=np.zeros((2, 3), np.int32),
            k_starts=LENGTHS["k_starts"],
            k_lengths=LENGTHS["k_lengths"],
        )
