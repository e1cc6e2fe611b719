"""Every configuration that is tuned or climbs the ladder, run and checked; `verify` by pytest."""

from dataclasses import replace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.kernels import resolve_key

CONFIGS = list(dict.fromkeys([*resolve_key("tune"), *resolve_key("prog")]))
PAIRS = list(dict.fromkeys(replace(config, dtype=DType.FP16) for config in CONFIGS))
# Of two that differ in the element type alone, one: FP16 and BF16 in turn.
IN_TURN = [
    config if twin not in CONFIGS or n % 2 else twin
    for n, config in enumerate(PAIRS)
    for twin in [replace(config, dtype=DType.BF16)]
]
OTHERS = [config for config in CONFIGS if config not in IN_TURN]


def require_right(device, config):
    """In the emulator on the cases of one of its kernels, full or causal, in turn."""
    cases = quick_cases(config)
    if device.runs_ptx:
        is_causal = bool(CONFIGS.index(config) % 2)
        cases = [case for case in cases if case.problem.causal is is_causal]
        assert cases
    for case in cases:
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("config", IN_TURN, ids=lambda config: config.short_form())
def test_the_configuration_is_right_on_the_quick_cases(device, config):
    require_right(device, config)


@pytest.mark.gpu
@pytest.mark.parametrize("config", OTHERS, ids=lambda config: config.short_form())
def test_the_other_element_type_is_right_too(device, config):
    require_right(device, config)
