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
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("config", IN_TURN, ids=lambda config: config.short_form())
def test_the_configuration_is_right_on_the_quick_cases(device, config):
    require_right(device, config)


@pytest.mark.gpu
@pytest.mark.parametrize("config", OTHERS, ids=lambda config: config.short_form())
def test_the_other_element_type_is_right_too(device, config):
    require_right(device, config)
