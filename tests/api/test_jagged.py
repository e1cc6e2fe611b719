"""Nested tensors of torch's jagged layout give what each of their sequences gives alone."""

import pytest

torch = pytest.importorskip("torch")

from nearness import expected_gradients, expected_of, require_expected  # noqa: E402

import flashsmith  # noqa: E402
from flashsmith import flash_attention  # noqa: E402
from flashsmith.base.dtypes import DType  # noqa: E402
from flashsmith.base.errors import ArgumentError, Unsupported  # noqa: E402
from flashsmith.problem.attention import AttentionProblem  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:flashsmith was given torch tensors on the CPU"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested"),
]
LENGTHS = (70, 1, 0, 150)


def drawn(lengths, heads, d_head=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, heads, d_head, generator=generator).half() for n in lengths]


def jagged(parts):
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def inputs(heads=3, kv_heads=1):
    q, k, v = (drawn(LENGTHS, h, seed=s) for s, h in enumerate((heads, kv_heads, kv_heads)))
    whole = jagged(q)
    like = [
        torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets=whole.offsets())
        for parts in (k, v)
    ]
    return (q, k, v), (whole, *like)


def problem_of(q, k, **facts):
    """Of one sequence alone."""
    shape = (1, q.shape[1], k.shape[1], len(q), len(k), q.shape[2])
    return AttentionProblem(*shape, DType.FP16, **facts)


def test_sequences_are_as_they_are_alone():
    apart, together = inputs()
    out, lse = flash_attention(*together, causal=True, return_lse=True, backend="emulator")
    assert out.is_nested
    assert out.shape == together[0].shape  # of the same sequences, so that sums can follow
    for q, k, v, rows, of_rows in zip(*apart, out.unbind(), lse.unbind(), strict=True):
        if not len(q):
            assert rows.shape == q.shape
            continue
        alone = expected_of(
            problem_of(q, k, causal=True, lse=True), q=q[None], k=k[None], v=v[None]
        )
        require_expected(alone, o=rows[None], lse=of_rows[None])


def test_gradients_arrive_in_nested_tensors():
    apart, together = inputs(heads=3, kv_heads=3)
    leaves = [x.detach().requires_grad_() for x in together]
    out = flash_attention(*leaves, causal=True)
    out.values().float().square().sum().backward()
    for number in (0, 1, 3):
        q, k, v = (x[number][None] for x in apart)
        do = 2 * out.detach().unbind()[number][None]
        wanted = expected_gradients(problem_of(q[0], k[0], causal=True), do, q=q, k=k, v=v)
        for name, leaf in zip(("dq", "dk", "dv"), leaves, strict=True):
            require_expected(wanted, **{name: leaf.grad.unbind()[number][None]})


def test_torchs_layout_of_heads_first():
    _, together = inputs(heads=3, kv_heads=3)
    wanted = flash_attention(*together, causal=True)
    turned = [x.transpose(1, 2) for x in together]
    found = flashsmith.scaled_dot_product_attention(*turned, is_causal=True)
    assert found.shape == turned[0].shape
    assert torch.equal(found.transpose(1, 2).values(), wanted.values())


def test_queries_and_keys_of_other_lengths():
    q, (k, v) = drawn((5, 9), 3), (drawn((40, 100), 3, seed=s) for s in (1, 2))
    keys = jagged(k)
    values = torch.nested.nested_tensor_from_jagged(torch.cat(v), offsets=keys.offsets())
    found = flash_attention(jagged(q), keys, values, causal=True)
    for rows, *one in zip(found.unbind(), q, k, v, strict=True):
        given = dict(zip("qkv", (x[None] for x in one), strict=True))
        require_expected(expected_of(problem_of(*one[:2], causal=True), **given), o=rows[None])


def test_sinks_go_with_nested_tensors():
    apart, together = inputs()
    sinks = torch.tensor([0.5, -1.0, 2.0])
    found = flash_attention(*together, sinks=sinks)
    q, k, v = (x[0] for x in apart)
    given = {"q": q[None], "k": k[None], "v": v[None], "sinks": sinks}
    alone = expected_of(problem_of(q, k, sinks=True), **given)
    require_expected(alone, o=found.unbind()[0][None])


def _gaps(x):
    lengths = torch.tensor([9, 1, 0, 100])
    return torch.nested.nested_tensor_from_jagged(x.values(), x.offsets(), lengths=lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: ((q, k.values()[None], v), {}), "k is not as the others"),
        (lambda q, k, v: ((_gaps(q), k, v), {}), r"pass q\.contiguous\(\)"),
        (lambda q, k, v: ((q, k, jagged(list(v.unbind()))), {}), "k and v have offsets of"),
        (lambda q, k, v: ((q.transpose(1, 2), k, v), {}), "number 1 must be the ragged one"),
        (lambda q, k, v: ((jagged(drawn((3,), 3)), k, v), {}), "q has 1 sequences and k has 4"),
        (lambda q, k, v: ((q, k, v), {"out": q.values()}), "out is given and q is a nested"),
        (
            lambda q, k, v: ((q, k, v), {"k_lengths": torch.ones(4, dtype=torch.int32)}),
            "k_lengths is given and q is a nested",
        ),
    ],
    ids=["dense", "gaps", "offsets", "layout", "sequences", "out", "lengths"],
)
def test_what_is_nested_in_another_way_is_refused(change, message):
    tensors, given = change(*inputs()[1])
    with pytest.raises((ArgumentError, Unsupported), match=message):
        flash_attention(*tensors, **given)
