"""Arguments that are kept between calls: found again by where tensors lie *and* how they lie."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.kernels import parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.run import KEPT_STARTS, prepare

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+swizzled+load_2_2_2_tiles")
PROBLEM = AttentionProblem(1, 3, 3, 100, 100, 64, DType.BF16)
ROWS, HEADS = TensorArg(4096, 19200, 192, 64), TensorArg(4096, 19200, 64, 6400)


@pytest.fixture
def prepared():
    """A plan on a device that writes down what it was to start."""
    started = []
    device = SimpleNamespace(
        arch="sm_90a",
        runs_ptx=True,
        sm_count=132,
        kernels={},
        started=started,
        prepare=lambda kernel, geometry: lambda packed: lambda stream: started.append(packed),
        workspace=lambda n_bytes, stream: 0,
        tensor_map=None,
        one_call=nullcontext,
    )
    return prepare(device, CONFIG, PROBLEM)


def call(arg):
    return dict.fromkeys("qkvo", arg)


def test_the_same_memory_looked_at_in_another_way_has_other_arguments(prepared):
    prepared(call(ROWS))
    prepared(call(HEADS))
    prepared(call(ROWS))
    first, second, third = prepared.device.started
    assert first != second
    assert first is third


def test_addresses_alone_are_another_key_than_tensors(prepared):
    prepared.start_first((4096,) * 4, call(HEADS), 0)
    prepared(call(ROWS))
    assert prepared.start_again((4096,) * 4, 0)
    first, second, third = prepared.device.started
    assert first is third
    assert first != second


def test_what_was_never_started_is_not_started_again(prepared):
    assert not prepared.start_again((1, 2, 3, 4), 0)
    assert prepared.device.started == []


def test_kept_arguments_do_not_grow_without_end_and_the_oldest_go_first(prepared):
    def layer(n):
        return call(TensorArg(16 * n, 19200, 192, 64))

    for n in range(KEPT_STARTS + 5):
        prepared(layer(n))
    assert len(prepared._starts) <= KEPT_STARTS
    assert not prepared.start_again(tuple(layer(0).values()), 0)
    latest = range(KEPT_STARTS // 2, KEPT_STARTS + 5)
    assert all(prepared.start_again(tuple(layer(n).values()), 0) for n in latest)
