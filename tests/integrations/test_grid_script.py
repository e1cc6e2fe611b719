"""tools/flash_attn_grid.py: right calls pass, and no wrong one does."""

import itertools
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import flash_attn_grid  # noqa: E402
from flash_attn_points import GRIDS, points_of  # noqa: E402

import flashsmith  # noqa: E402
from flashsmith.base.errors import LaunchError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
FORMS = {
    "flash_attn_func": "flash_attn_func",
    "flash_attn_kvpacked_func": "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func": "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func": "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func": "flash_attn_varlen_qkvpacked_func",
    "flash_attn_varlen_func, pages": "flash_attn_varlen_func",
    "flash_attn_with_kvcache": "flash_attn_with_kvcache",
}


def outcome(name, **other):
    """What comes of a small point of a grid."""
    first = {key: values[-1] for key, values in GRIDS[name].items()}
    lengths = (33, 33) if "qkvpacked" in name else (17, 33)
    small = {"d": 32, "lengths": lengths, "dropout": 0.0, "leftpad": False}
    small |= {"dtype": "float16"} | other  # bfloat16's allowance is wide
    point = {key: small.get(key, value) for key, value in first.items()}
    return flash_attn_grid.outcome((name, 3, point))[1]


@pytest.mark.parametrize("name", FORMS)
def test_a_right_call_passes_and_one_that_is_a_little_off_does_not(name, monkeypatch):
    assert outcome(name) == "right"
    whole = getattr(flashsmith, FORMS[name])

    def off(*arguments, **options):
        out = whole(*arguments, **options)
        return out + 0.02 * out.abs().max()

    monkeypatch.setattr(flashsmith, FORMS[name], off)
    assert outcome(name) == "wrong"


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_a_number_is_wrong(number, monkeypatch):
    whole = flashsmith.flash_attn_func

    def off(*arguments, **options):
        out = whole(*arguments, **options)
        return torch.where(torch.arange(out.numel()).view(out.shape) == 5, number, out)

    monkeypatch.setattr(flashsmith, "flash_attn_func", off)
    assert outcome("flash_attn_func") == "wrong"


def test_gradients_of_stacked_tensors_count_each_for_itself(monkeypatch):
    whole = flashsmith.flash_attn_qkvpacked_func

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, d):
            d = d.clone()
            d[:, :, 0] *= 1.05  # dQ, of which the largest is far below the largest of dV
            return d

    monkeypatch.setattr(
        flashsmith, "flash_attn_qkvpacked_func", lambda x, **options: whole(Off.apply(x), **options)
    )
    assert outcome("flash_attn_qkvpacked_func", local=False) == "wrong"


@pytest.mark.parametrize("page", [0, 16])
def test_a_cache_that_lost_a_row_is_wrong(page, monkeypatch):
    whole = flashsmith.flash_attn_with_kvcache

    def off(q, k_cache, v_cache, **options):
        out = whole(q, k_cache, v_cache, **options)
        v_cache[0, 0] = 0.0
        return out

    monkeypatch.setattr(flashsmith, "flash_attn_with_kvcache", off)
    assert outcome("flash_attn_with_kvcache", page=page) == "wrong"


def test_only_what_is_refused_by_name_counts_as_refused(monkeypatch):
    assert outcome("flash_attn_func", dropout=0.17) == "refused: dropout"
    pages = outcome("flash_attn_with_kvcache", page=16, leftpad=True)
    assert pages == "refused: left padding on pages"
    by_index = outcome("flash_attn_with_kvcache", page=0, batch_idx=True, leftpad=True)
    assert by_index == "refused: left padding with cache_batch_idx"

    def broken(*_, **__):
        raise LaunchError("cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS", "")

    monkeypatch.setattr(flashsmith, "flash_attn_func", broken)
    assert outcome("flash_attn_func") == "wrong"


@pytest.mark.parametrize("name", GRIDS)
def test_every_pair_of_values_is_there_and_not_only_beside_dropout(name):
    grid, points = GRIDS[name], points_of(GRIDS[name], 1, name)
    without = [point for point in points if not point.get("dropout")]
    for a, b in itertools.combinations(grid, 2):
        shown = points if "dropout" in (a, b) else without
        pairs = {(str(point[a]), str(point[b])) for point in shown}
        assert len(pairs) == len({*map(str, grid[a])}) * len({*map(str, grid[b])}), (a, b)
