"""torch.func: grad, vmap and both together give what calls one by one give."""

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from flashsmith import flash_attention  # noqa: E402
from flashsmith.base.errors import Unsupported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flashsmith was given torch tensors on the CPU")
CALLS = 3


def drawn(*shape, dtype=torch.float16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4)).to(dtype)


def inputs():
    q, k, v = drawn(3, CALLS, 2, 37, 3, 64)
    return q, k[:, :, :, :1], v[:, :, :, :1]


def attend(q, k, v, **given):
    return flash_attention(q, k, v, causal=True, **given)


def loss(q, k, v, sinks=None):
    return attend(q, k, v, sinks=sinks).float().square().sum()


class Seen(TorchDispatchMode):
    """The names of flashsmith's operators that ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "flashsmith":
            self.names.append(function._schema.name.partition("::")[2])
        return function(*args, **(kwargs or {}))


def test_vmap_is_one_call_without_a_warning(capfd):
    q, k, v = inputs()
    wanted = torch.stack([attend(*each) for each in zip(q, k, v, strict=True)])
    with Seen() as seen:
        found = torch.vmap(attend)(q, k, v)
    assert torch.equal(found, wanted)
    assert len(seen.names) == 1
    assert "performance drop" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["forward", "forward_lse", "backward"])
def test_the_operators_themselves_fold_what_is_mapped(name, capfd):
    q, k, v = inputs()
    operator, tensors = getattr(torch.ops.flashsmith, name), (q, k, v)
    if name == "backward":
        out, lse = torch.vmap(torch.ops.flashsmith.forward_lse)(q, k, v)
        tensors = (torch.ones_like(out), q, k, v, out, lse)
    with Seen() as seen:
        found = torch.vmap(operator)(*tensors)
    assert seen.names == [name]
    each = [operator(*one) for one in zip(*tensors, strict=True)]
    if name == "forward":
        found, each = (found,), [(one,) for one in each]
    for got, wanted in zip(found, zip(*each, strict=True), strict=True):
        assert torch.equal(got, torch.stack(wanted))
    assert "performance drop" not in capfd.readouterr().err


def test_what_is_not_mapped_is_shared():
    q, k, v = inputs()
    mapped = torch.vmap(lambda *x: attend(*x, return_lse=True), in_dims=(1, None, None))
    out, lse = mapped(q.movedim(0, 1), k[0], v[0])
    for number in range(CALLS):
        wanted, wanted_lse = attend(q[number], k[0], v[0], return_lse=True)
        assert torch.equal(out[number], wanted)
        assert torch.equal(lse[number], wanted_lse)


def test_vmap_inside_vmap():
    q, k, v = inputs()
    nested = torch.vmap(torch.vmap(lambda *x: attend(*(t[None] for t in x))[0]))
    assert torch.equal(nested(q, k, v), torch.vmap(attend)(q, k, v))


def gradients_of(function, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    function(*leaves).backward()
    return [leaf.grad for leaf in leaves]


def test_grad_is_backward():
    tensors = [x[0] for x in inputs()]
    found = torch.func.grad(loss, argnums=(0, 1, 2))(*tensors)
    for got, wanted in zip(found, gradients_of(loss, tensors), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_gradients_of_each_call(with_sinks):
    """vmap(grad(f)), as for the gradients of every example of a batch; sinks are shared."""
    tensors, shared = inputs(), (drawn(3, dtype=torch.float32),) if with_sinks else ()
    numbers = tuple(range(3 + len(shared)))
    each = torch.func.grad(loss, argnums=numbers)
    found = torch.func.vmap(each, in_dims=(0, 0, 0, *(None for _ in shared)))(*tensors, *shared)
    for call in range(CALLS):
        wanted = gradients_of(loss, [*(x[call] for x in tensors), *shared])
        for got, one in zip(found, wanted, strict=True):
            torch.testing.assert_close(got[call], one, rtol=0, atol=0)


def test_a_gradient_that_is_wanted_of_all_that_is_mapped():
    mapped = gradients_of(lambda *x: torch.vmap(attend)(*x).float().square().sum(), inputs())
    whole = gradients_of(lambda *x: loss(*(t.flatten(0, 1) for t in x)), inputs())
    for got, wanted in zip(mapped, whole, strict=True):
        assert torch.equal(got, wanted)


def test_a_second_gradient_is_refused_under_transforms_too():
    q, k, v = (x[0] for x in inputs())
    with pytest.raises(Unsupported, match="a gradient of a gradient was asked for"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, k, v).float().square().sum())(q)


def test_slopes_are_refused_a_gradient_that_only_the_rule_sees():
    q, k, v = inputs()
    slopes = torch.full((CALLS, 3), 0.5, requires_grad=True)
    with pytest.raises(Unsupported, match="alibi_slopes requires a gradient"):
        torch.vmap(lambda q, k, v, s: attend(q, k, v, alibi_slopes=s))(q, k, v, slopes)
    slopes = slopes.detach()
    found = torch.vmap(lambda q, k, v, s: attend(q, k, v, alibi_slopes=s))(q, k, v, slopes)
    for call in range(CALLS):
        wanted = attend(q[call], k[call], v[call], alibi_slopes=slopes[call])
        assert torch.equal(found[call], wanted)


UNKNOWN = {
    "q_lengths": lambda x: {"q_lengths": x.new_full((2,), 20, dtype=torch.int32)},
    "k_lengths": lambda x: {"k_lengths": x.new_full((2,), 20, dtype=torch.int32)},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_gradient_through_what_is_mapped_is_refused_and_never_0(name):
    q, k, v = inputs()

    def whole(q):
        tables = UNKNOWN[name](q[0])
        return torch.vmap(lambda *x: attend(*x, **tables))(q, k, v).float().square().sum()

    with pytest.raises(Unsupported, match=f"{name} is given and a gradient is wanted"):
        torch.func.grad(whole)(q)
    with pytest.raises(Unsupported, match="q requires a gradient and this operator keeps"):
        torch.func.grad(lambda q: torch.vmap(torch.ops.flashsmith.forward)(q, k, v).sum())(q)


TANGENTS = {
    "q": lambda q, k, v, x: attend(x, k, v),
    "bias": lambda q, k, v, x: attend(q, k, v, bias=x),
    "sinks": lambda q, k, v, x: attend(q, k, v, sinks=x),
    "alibi_slopes": lambda q, k, v, x: attend(q, k, v, alibi_slopes=x),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_a_tangent_is_refused_wherever_it_comes_from(name):
    q, k, v = (x[0] for x in inputs())
    x = {"q": q, "bias": torch.zeros(37, 37)}.get(name, torch.zeros(3))
    with pytest.raises(Unsupported, match=f"{name} carries a tangent"):
        torch.func.jvp(lambda x: TANGENTS[name](q, k, v, x), (x,), (torch.ones_like(x),))
    mapped = torch.vmap(lambda x: TANGENTS[name](q, k, v, x))
    with pytest.raises(Unsupported, match=f"{name} carries a tangent"):
        torch.func.jvp(mapped, (x[None],), (torch.ones_like(x[None]),))


def test_keys_with_lengths_are_mapped_one_by_one():
    q, k, v = inputs()
    lengths = torch.tensor([[5, 37], [1, 20], [36, 2]], dtype=torch.int32)
    found = torch.vmap(lambda *x: flash_attention(*x[:3], k_lengths=x[3]))(q, k, v, lengths)
    for call in range(CALLS):
        wanted = flash_attention(q[call], k[call], v[call], k_lengths=lengths[call])
        assert torch.equal(found[call], wanted)


def test_the_operator_of_caches_is_mapped_as_the_one_with_all_tables():
    q, k, v = inputs()
    lengths = torch.tensor([[5, 37], [1, 20], [36, 2]], dtype=torch.int32)
    table = torch.tensor([[[1], [0]], [[0], [0]], [[1], [1]]], dtype=torch.int32)
    operator = torch.ops.flashsmith.forward_cache.default
    for given, dims in (((lengths, None), (0, None)), ((lengths, table), (0, 0))):
        found = torch.vmap(operator, (0, 0, 0, *dims))(q, k, v, *given)
        for call in range(CALLS):
            own = [x if x is None else x[call] for x in given]
            assert torch.equal(found[call], operator(q[call], k[call], v[call], *own))
    q.requires_grad_()
    with pytest.raises(Unsupported, match="gradient"):
        torch.vmap(operator, (0, 0, 0, 0, None))(q, k, v, lengths, None)


@pytest.mark.parametrize("pages", [False, True])
def test_a_call_on_a_cache_takes_the_operator_of_caches(pages):
    q, k, v = (x[0] for x in inputs())
    lengths = torch.tensor([5, 37], dtype=torch.int32)
    tables = {"block_table": torch.tensor([[1], [0]], dtype=torch.int32)} if pages else {}
    with Seen() as seen:
        found = flash_attention(q, k, v, k_lengths=lengths, **tables)
        same, _ = flash_attention(q, k, v, k_lengths=lengths, return_lse=True, **tables)
        flash_attention(q, k, v, k_lengths=lengths, sinks=torch.zeros(3), **tables)
    assert seen.names == ["forward_cache", "forward_with", "forward_with"]
    assert torch.equal(found, same)


def test_compiled_vmap_is_right():
    q, k, v = inputs()
    compiled = torch.compile(torch.vmap(attend), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), torch.vmap(attend)(q, k, v))
