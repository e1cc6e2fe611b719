"""Every configuration that is tuned or climbs the ladder, run and checked; `verify` by pytest."""

import pytest

from flashsmith.check.cases import quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.kernels import resolve_key

CONFIGS = list(dict.fromkeys([*resolve_key("tune"), *resolve_key("prog")]))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.short_form())
def test_the_configuration_is_right_on_the_quick_cases(device, config):
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())
