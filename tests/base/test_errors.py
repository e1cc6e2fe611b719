"""Errors: fields, three-part messages, and a journey through pickle, as worker processes need."""

import pickle
from pathlib import Path

import pytest

from flashsmith.base import errors

EXAMPLES = [
    errors.ConfigError("unknown set 'x'; the sets are a, b; give one."),
    errors.OutOfResources("(FP16, …)", "bytes of shared memory", 200_000, 101_376, "lower B_c"),
    errors.CompileError("(FP16, …)", "note\na.cu(3): error: no\n", Path("/kept")),
    errors.LaunchError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "lower the grid"),
    errors.EmulationError("race", "two warps write", kernel="k", line=7, block=(1, 0, 0), lane=3),
    errors.Mismatch("(FP16, …)", 1e-2, 1e-3, "[0, 1, 2, 3]"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickle_with_its_message_and_fields(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    "kind",
    [
        errors.ConfigError,
        errors.ArgumentError,
        errors.Unsupported,
        errors.OutOfResources,
        errors.DamagedFile,
    ],
)
def test_what_a_user_can_get_wrong_is_a_value_error(kind):
    assert issubclass(kind, ValueError)
    assert issubclass(kind, errors.FlashsmithError)


def test_a_resource_error_says_need_limit_and_advice():
    text = str(EXAMPLES[1])
    assert text == (
        "(FP16, …): needs 200,000 bytes of shared memory, the limit is 101,376; lower B_c."
    )


def test_a_compile_error_shows_the_first_error_and_where_the_unit_is_kept():
    assert "a.cu(3): error: no" in str(EXAMPLES[2])
    assert "kept in /kept" in str(EXAMPLES[2])


def test_an_emulator_fault_names_kernel_line_block_and_lane():
    text = str(EXAMPLES[4])
    assert text == "race: two warps write [kernel k, PTX line 7, block (1, 0, 0), lane 3]."
