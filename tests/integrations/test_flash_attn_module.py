"""`import flash_attn` finds flashsmith where it is asked for, and never hides the real one."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import warnings

import pytest
import torch
from nearness import expected_of, require_expected

import flashsmith
from flashsmith.api.notices import forget
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.integrations import flash_attn as integration
from flashsmith.integrations.bert_padding import index_first_axis, pad_input, unpad_input
from flashsmith.problem.attention import AttentionProblem

WARNS = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")


@pytest.fixture
def installed():
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash_attn is installed")
    forget()
    integration.install()
    yield
    integration.uninstall()


@WARNS
def test_flash_attn_is_found_by_whatever_asks_for_it(installed):
    assert importlib.util.find_spec("flash_attn").origin == integration.__file__
    assert importlib.metadata.version("flash-attn") == integration.VERSION
    assert importlib.metadata.version("flash_attn") == integration.VERSION
    assert "flash_attn" in importlib.metadata.packages_distributions()["flash_attn"]
    from flash_attn import __version__, flash_attn_func, flash_attn_with_kvcache
    from flash_attn.bert_padding import unpad_input as found
    from flash_attn.flash_attn_interface import flash_attn_varlen_kvpacked_func

    assert __version__.startswith("2.8")
    assert flash_attn_func is flashsmith.flash_attn_func
    assert flash_attn_with_kvcache is flashsmith.flash_attn_with_kvcache
    assert flash_attn_varlen_kvpacked_func is flashsmith.flash_attn_varlen_kvpacked_func
    assert found is unpad_input
    assert importlib.util.find_spec("flash_attn.layers") is None


@WARNS
def test_it_is_gone_when_it_is_uninstalled(installed):
    importlib.import_module("flash_attn.bert_padding")
    integration.uninstall()
    assert importlib.util.find_spec("flash_attn") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn")


def test_it_is_said_once():
    forget()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        integration.install()
        integration.install()
        integration.uninstall()
        integration.install()
        integration.uninstall()
    assert ["flashsmith stands in for flash_attn" in str(one.message) for one in told] == [True]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_an_installed_one_is_refused_by_name(tmp_path, monkeypatch, is_loaded):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("mark = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        if is_loaded:
            importlib.import_module("flash_attn")
        with pytest.raises(Unsupported, match=r"is installed \(.*__init__\.py\); .* uninstall it"):
            integration.install()
        assert importlib.import_module("flash_attn").mark == 3
    finally:
        sys.modules.pop("flash_attn", None)


@WARNS
def test_one_that_is_installed_later_is_found_first(installed, tmp_path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("mark = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("flash_attn").mark == 3
    sys.modules.pop("flash_attn")


@WARNS
def test_transformers_takes_its_functions(monkeypatch, installed):
    pytest.importorskip("transformers", minversion="5")
    from transformers import modeling_flash_attention_utils as theirs
    from transformers.utils import import_utils

    assert import_utils.is_flash_attn_greater_or_equal("2.8.0")
    # There is no GPU, which it asks for before it asks for the package.
    monkeypatch.setattr(import_utils, "is_torch_cuda_available", lambda: True)
    import_utils.is_flash_attn_2_available.cache_clear()
    assert import_utils.is_flash_attn_2_available()
    found = theirs._lazy_imports("flash_attention_2")
    import_utils.is_flash_attn_2_available.cache_clear()
    assert found[1] is flashsmith.flash_attn_varlen_func
    assert found[4] is unpad_input
    import_utils.is_flash_attn_3_available.cache_clear()
    assert import_utils.is_flash_attn_3_available()
    third = theirs._lazy_imports("flash_attention_3")
    import_utils.is_flash_attn_3_available.cache_clear()
    assert third[1] is importlib.import_module("flash_attn_interface").flash_attn_varlen_func


@WARNS
def test_flash_attention_3_is_found_by_its_names(installed):
    from flash_attn_interface import flash_attn_func, flash_attn_varlen_func
    from flash_attn_interface import flash_attn_with_kvcache as with_cache

    assert importlib.metadata.version("flash-attn-3").startswith("3.")
    assert importlib.metadata.packages_distributions()["flash_attn_interface"] == ["flash_attn_3"]
    assert list(inspect.signature(flash_attn_func).parameters)[:5] == [
        *("q", "k", "v", "softmax_scale", "causal")
    ]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 9, 2, 16).bfloat16()
    same = flashsmith.flash_attn_func(q, k, v, softmax_scale=0.3, causal=True, window_size=(3, 0))
    out, lse = flash_attn_func(
        q, k, v, 0.3, True, window_size=(3, 0), num_splits=4, return_attn_probs=True
    )
    assert torch.equal(out, same)
    assert lse.shape == (2, 2, 9)
    ends = torch.tensor([0, 9, 18], dtype=torch.int32)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    got = flash_attn_varlen_func(*rows, ends, ends, 9, 9, causal=True)
    assert torch.equal(got, flashsmith.flash_attn_varlen_func(*rows, ends, ends, 9, 9, causal=True))
    lengths = torch.tensor([5, 9], dtype=torch.int32)
    table = torch.tensor([[1], [0]], dtype=torch.int32)
    got = with_cache(q[:, :1], k, v, cache_seqlens=lengths, page_table=table, causal=True)
    options = {"cache_seqlens": lengths, "block_table": table, "causal": True}
    assert torch.equal(got, flashsmith.flash_attn_with_kvcache(q[:, :1], k, v, **options))


@WARNS
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"qv": torch.ones(2)}, "qv is given; flashsmith does not do a second product"),
        ({"k_descale": 2.0}, "k_descale is given; flashsmith does not do FP8"),
        ({"dropout_p": 0.1}, "called with dropout_p; it takes q, k, v, softmax_scale"),
    ],
)
def test_what_only_flash_attention_3_does_is_refused_by_name(installed, options, says):
    from flash_attn_interface import flash_attn_func

    q = torch.zeros(1, 4, 1, 16, dtype=torch.bfloat16)
    with pytest.raises((ValueError, TypeError), match=says):
        flash_attn_func(q, q, q, **options)
    with pytest.raises(TypeError, match="called without v"):
        flash_attn_func(q, q)


@WARNS
@pytest.mark.parametrize(
    "name", ["flash_attn_qkvpacked_func", "flash_attn_combine", "get_scheduler_metadata"]
)
def test_a_function_that_is_lacking_can_be_imported_and_is_refused_by_name(installed, name):
    import flash_attn_interface

    with pytest.raises(Unsupported, match=f"{name} was called; flashsmith does not have it; "):
        getattr(flash_attn_interface, name)(1, causal=True)


def test_unpadding_keeps_tokens_in_order_and_padding_undoes_it():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 2, 4, requires_grad=True)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    rows, indices, boundaries, longest, used = unpad_input(x, mask)
    assert rows.shape == (10, 2, 4)
    assert torch.equal(rows, x[mask.bool()])
    assert (boundaries.tolist(), boundaries.dtype) == ([0, 3, 5, 10], torch.int32)
    assert (longest, used.tolist()) == (5, [3, 2, 5])
    assert torch.equal(index_first_axis(x.flatten(0, 1), indices), rows)
    back = pad_input(rows, indices, 3, 5)
    assert torch.equal(back, x * mask[..., None, None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[..., None, None].expand_as(x).float())


def test_rows_that_are_not_used_are_kept_and_not_counted():
    x = torch.arange(6.0).reshape(2, 3)
    mask, unused = torch.tensor([[1, 0, 0], [1, 1, 0]]), torch.tensor([[0, 1, 0], [0, 0, 0]])
    rows, _, boundaries, longest, used = unpad_input(x, mask, unused)
    assert rows.tolist() == [0, 1, 3, 4]
    assert (boundaries.tolist(), longest, used.tolist()) == ([0, 2, 4], 2, [1, 2])


@WARNS
def test_a_padded_batch_through_flash_attns_names_is_right(installed):
    from flash_attn import flash_attn_varlen_qkvpacked_func
    from flash_attn.bert_padding import pad_input, unpad_input

    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3, 2, 16).bfloat16()
    mask = torch.ones(2, 9, dtype=torch.int32)
    mask[0, 4:] = 0
    rows, indices, boundaries, longest, _ = unpad_input(qkv, mask)
    found = flash_attn_varlen_qkvpacked_func(rows, boundaries, longest, causal=True)
    out = pad_input(found, indices, 2, 9)
    for row, n in ((0, 4), (1, 9)):
        alone = AttentionProblem(1, 2, 2, n, n, 16, DType.BF16, causal=True)
        given = dict(zip("qkv", qkv[row : row + 1, :n].unbind(2), strict=True))
        require_expected(expected_of(alone, **given), o=out[row : row + 1, :n])
    assert not out[0, 4:].any()
