"""torch's attention routed to flashsmith: what goes where, and results as torch's either way."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from nearness import require_near as near_in_type
from torch.nn.attention.bias import causal_lower_right

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.integrations import torch as integration

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
ORIGINAL = F.scaled_dot_product_attention
MASK = torch.ones(9, 9, dtype=torch.bool).tril()


@pytest.fixture(autouse=True)
def _torchs_own_comes_back():
    assert F.scaled_dot_product_attention is ORIGINAL
    yield
    assert F.scaled_dot_product_attention is ORIGINAL


def tensors(*shape, k=None, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in (shape, k or shape, k or shape)]


def only(routes):
    ((route, count),) = routes.counts().items()
    assert count == 1
    return route


def require_near(out, q, k, v, **options):
    def attend(dtype):
        cast = {
            name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for name, x in options.items()
        }
        return ORIGINAL(*(x.to(dtype) for x in (q, k, v)), **cast)

    near_in_type(out, attend(torch.float64), attend(q.dtype), DType.BF16)


@pytest.mark.parametrize(
    ("shape", "keys", "options"),
    [
        ((2, 4, 9, 16), None, {}),
        ((2, 4, 9, 16), None, {"is_causal": True}),
        ((2, 4, 9, 16), (2, 2, 12, 16), {"is_causal": True, "enable_gqa": True}),
        ((2, 4, 9, 16), (2, 1, 12, 16), {}),
        ((4, 9, 16), None, {"scale": 0.5}),
        ((2, 4, 9, 16), (2, 4, 12, 16), {"attn_mask": causal_lower_right(9, 12)}),
        ((2, 4, 9, 16), None, {"attn_mask": MASK}),
        ((2, 4, 9, 16), None, {"attn_mask": MASK.log()[None]}),
    ],
    ids=[
        "plain",
        "causal",
        "grouped",
        "one head",
        "three dimensions",
        "lower_right",
        "mask",
        "bias",
    ],
)
def test_what_flashsmith_supports_goes_there(monkeypatch, shape, keys, options):
    calls = []
    ours = integration.scaled_dot_product_attention
    monkeypatch.setattr(
        integration,
        "scaled_dot_product_attention",
        lambda **asked: calls.append(1) or ours(**asked),
    )
    q, k, v = tensors(*shape, k=keys)
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(q, k, v, **options)
    assert (len(calls), only(routes).choice) == (1, "flashsmith")
    if keys and "attn_mask" in options:
        options = {"attn_mask": torch.ones(9, 12, dtype=torch.bool).tril(3)}
    require_near(out, q, k, v, **options)


LEFT = {
    "2 dimensions": (tensors(9, 16), {}),
    "5 dimensions": (tensors(2, 2, 4, 9, 16), {}),
    "a scale of -0.5": (tensors(2, 4, 9, 16), {"scale": -0.5}),
    "batches that are broadcast": (tensors(2, 4, 9, 16, k=(1, 4, 9, 16)), {}),
    "heads that are broadcast": (tensors(2, 1, 9, 16, k=(2, 4, 9, 16)), {}),
    "float32": (tensors(2, 4, 9, 16, dtype=torch.float32), {}),
    "dropout": (tensors(2, 4, 9, 16), {"dropout_p": 0.5}),
    "d_head above 256": (tensors(1, 1, 9, 264), {}),
    "no rows": (tensors(1, 1, 0, 16), {}),
}


@pytest.mark.parametrize("reason", LEFT)
def test_the_rest_is_torchs_with_the_reason(reason):
    (q, k, v), options = LEFT[reason]
    torch.manual_seed(7)  # dropout draws
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(q, k, v, **options)
    assert (only(routes).choice, only(routes).reason) == ("torch", reason)
    torch.manual_seed(7)
    assert torch.equal(out, ORIGINAL(q, k, v, **options))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensors_are_torchs():
    q, k, v = (
        torch.nested.nested_tensor([x[:, :n] for n in (5, 9)], dtype=torch.bfloat16)
        for x in tensors(4, 9, 16)
    )
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(q, k, v)
    assert only(routes).reason == "nested or sparse tensors"
    assert out.is_nested


def test_tensors_of_the_cpu_are_torchs_unless_asked_for():
    q, k, v = tensors(2, 4, 9, 16)
    with integration.sdpa() as routes:
        F.scaled_dot_product_attention(q, k, v)
    assert only(routes).reason == "tensors of cpu"


def test_an_error_of_torch_is_torchs():
    q, k, v = tensors(2, 4, 9, 16)
    with integration.sdpa(cpu=True), pytest.raises(RuntimeError) as routed:
        F.scaled_dot_product_attention(q, k[..., :8], v)
    with pytest.raises(RuntimeError) as own:
        ORIGINAL(q, k[..., :8], v)
    assert str(routed.value) == str(own.value)
    with integration.sdpa(cpu=True), pytest.raises(TypeError, match="missing"):
        F.scaled_dot_product_attention(q)


def test_what_flashsmith_refuses_after_all_is_torchs_with_its_words(monkeypatch):
    def refuse(**_):
        raise Unsupported("it is refused")

    monkeypatch.setattr(integration, "scaled_dot_product_attention", refuse)
    q, k, v = tensors(2, 4, 9, 16)
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(q, k, v)
    assert only(routes).reason == "it is refused"
    assert torch.equal(out, ORIGINAL(q, k, v))


def test_autocast_counts_as_the_type_that_it_makes():
    q, k, v = tensors(2, 4, 9, 16, dtype=torch.float32)
    with integration.sdpa(cpu=True) as routes, torch.autocast("cpu", torch.bfloat16):
        out = F.scaled_dot_product_attention(q, k, v)
    assert only(routes).choice == "flashsmith"
    assert out.dtype is torch.bfloat16


def test_the_emulator_runs_the_kernels_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    q, k, v = tensors(1, 3, 150, 32)
    with integration.sdpa(cpu=True) as routes:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert only(routes).choice == "flashsmith"
    require_near(out, q, k, v, is_causal=True)


def test_a_module_of_torch_trains_through_it():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.bfloat16)
    x = torch.randn(2, 9, 32).bfloat16()
    exact = copy.deepcopy(layer).double()
    grads = []
    contexts = integration.sdpa(cpu=True), integration.sdpa(), integration.sdpa()
    for model, context in zip((layer, layer, exact), contexts, strict=True):
        model.zero_grad()
        with context as routes:
            out, _ = model(*[x.to(model.in_proj_weight.dtype)] * 3, need_weights=False)
            out.double().square().sum().backward()
        grads.append((model.in_proj_weight.grad.clone(), only(routes)))
    (ours, route), (theirs, other), (truth, _) = grads
    assert (route.choice, other.choice) == ("flashsmith", "torch")
    assert route.site.startswith("integrations/test_sdpa_routes.py:")
    near_in_type(ours, truth, theirs, DType.BF16)


def test_contexts_nest_and_the_innermost_serves():
    q, k, v = tensors(2, 4, 9, 16)
    with integration.sdpa(cpu=True) as outer:
        with integration.sdpa() as inner:
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v)
    assert only(inner).choice == "torch"
    assert only(outer).choice == "flashsmith"


def test_the_permanent_form_stays_until_it_is_undone():
    q, k, v = tensors(2, 4, 9, 16)
    routes = integration.install(cpu=True)
    try:
        assert integration.install() is routes
        F.scaled_dot_product_attention(q, k, v)
        with integration.sdpa():
            pass
        F.scaled_dot_product_attention(q, k, v)
    finally:
        integration.uninstall()
        integration.uninstall()
    assert sum(routes.counts().values()) == 2


def test_threads_that_enter_and_leave_in_any_order_leave_torchs_function():
    q, k, v = tensors(2, 4, 9, 16)
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    found = []

    def first():
        with integration.sdpa(cpu=True):
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    def second():
        first_is_in.wait(10)
        with integration.sdpa(cpu=True) as routes:
            second_is_in.set()
            first_is_out.wait(10)
            F.scaled_dot_product_attention(q, k, v)
            found.append(only(routes).choice)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["flashsmith"]


@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": -0.5}])
def test_a_compiled_function_is_routed_in_one_graph(options):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    q, k, v = tensors(2, 4, 9, 16)
    torch._dynamo.reset()
    graphs = []

    def look(graph, _):
        graphs.append(str(graph.code))
        return graph

    with integration.sdpa(cpu=True):
        out = torch.compile(attend, fullgraph=True, backend=look)(q, k, v)
    require_near(out, q, k, v, **options)
    assert [("flashsmith" in code) for code in graphs] == ["scale" not in options]


def test_the_table_says_what_went_where_and_why():
    q, k, v = tensors(2, 4, 9, 16)
    with integration.sdpa(cpu=True) as routes:
        for _ in range(3):
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    head, *rows = str(routes).splitlines()
    assert head.split() == ["calls", "by", "query,", "key,", "value", "called", "from", "reason"]
    assert rows[0].split()[:2] == ["3", "flashsmith"]
    assert rows[1].endswith("dropout")
    assert all("[2, 4, 9, 16] bfloat16 cpu" in row for row in rows)
    assert all("integrations/test_sdpa_routes.py:" in row for row in rows)
