"""Attention inside JAX's transformations: the bits of a plain call, and its gradients."""

import ctypes

import numpy as np
import pytest
from nearness import require_near

from flashsmith import flash_attention, flash_attention_backward
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, ConfigError, Unsupported
from flashsmith.runtime.devices import has_cuda

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

if not hasattr(jax, "ffi"):
    pytest.skip("this JAX has no jax.ffi", allow_module_level=True)

from flashsmith.api.options import checked_options  # noqa: E402
from flashsmith.jax_op import call_frame  # noqa: E402  # needs JAX
from flashsmith.jax_op.asked import Asked, read_asked  # noqa: E402

WHERE = [pytest.param("cpu", id="cpu")]
if has_cuda() and jax.default_backend() == "gpu":
    WHERE.append(pytest.param("gpu", marks=pytest.mark.gpu))


@pytest.fixture(params=WHERE)
def where(request):
    """A device of JAX's, and the arguments that make our kernels run for arrays on it."""
    with jax.default_device(jax.devices(request.param)[0]):
        yield {"backend": "emulator"} if request.param == "cpu" else {}


def arrays(dtype="bfloat16", d_v=64):
    """Five kv blocks of 32 keys and a tail, three heads on one."""
    random = np.random.default_rng(3)
    shapes = ((2, 71, 3, 64), (2, 163, 1, 64), (2, 163, 1, d_v))
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


def bits(array):
    found = np.asarray(array)
    return found.view(np.uint16 if found.itemsize == 2 else np.uint32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_compiled_call_has_the_bits_of_a_plain_one(where, dtype):
    q, k, v = arrays(dtype)
    asked = {"causal": True, "window": (90, 0), "return_lse": True, "sinks": jnp.arange(3.0)}
    plain = flash_attention(q, k, v, **asked, **where)
    compiled = jax.jit(lambda *rows: flash_attention(*rows, **asked, **where))(q, k, v)
    for a, b in zip(plain, compiled, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))


def test_gradients_are_those_of_the_backward_call(where):
    q, k, v = arrays()
    weight = jnp.asarray(np.random.default_rng(4).standard_normal(q.shape), q.dtype)

    def loss(*rows):
        o, lse = flash_attention(*rows, causal=True, return_lse=True, **where)
        return (o * weight).astype(jnp.float32).sum() + (2.0 * lse).sum()

    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True, **where)
    more = {"causal": True, "dlse": jnp.full_like(lse, 2.0)}
    expected = flash_attention_backward(weight, q, k, v, o, lse, **more, **where)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


def kept(x, dtype):
    """What is left of weights and outputs, and of their gradients, of this type."""
    return x.astype(dtype).astype(jnp.float32)


def require_gradients(ours, plain, *given):
    """Against float32, whose rounding is a 65,536th of what bfloat16 allows."""
    found = jax.jit(jax.grad(ours, argnums=(0, 1)))(*given)
    same = jax.grad(plain, argnums=(0, 1))(*given)
    truth = jax.grad(plain, argnums=(0, 1))(*(x.astype(jnp.float32) for x in given))
    for x, a, b, c in zip(given, found, truth, same, strict=True):
        assert (a.shape, a.dtype) == (x.shape, x.dtype)
        require_near(a, b, c, DType.BF16)


def test_sinks_have_a_gradient_and_values_may_be_narrower(where):
    q, k, v = arrays(d_v=40)
    sinks = jnp.asarray([0.5, -1.0, 2.0])

    def ours(v, sinks):
        return flash_attention(q, k, v, sinks=sinks, **where).astype(jnp.float32).sum()

    def plain(v, sinks):
        q_, k_, v_ = (jnp.repeat(x, 3 // x.shape[2], 2).astype(jnp.float32) for x in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q_, k_) * 64**-0.5
        logits = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        weights = jax.nn.softmax(jnp.concatenate([scores, logits], -1), -1)[..., :-1]
        return kept(jnp.einsum("bhqk,bkhd->bqhd", kept(weights, v.dtype), v_), v.dtype).sum()

    require_gradients(ours, plain, v, sinks)


def test_calls_with_a_bias_have_gradients_and_so_has_the_bias(where):
    q, k, v = arrays()
    bias = jnp.asarray(np.random.default_rng(6).standard_normal((1, 3, 1, k.shape[1])), jnp.float32)
    weight = jnp.cos(jnp.arange(q.size).reshape(q.shape)).astype(q.dtype)

    def ours(q, bias):
        return (flash_attention(q, k, v, bias=bias, **where) * weight).astype(jnp.float32).sum()

    def plain(q, bias):
        k_, v_ = (jnp.repeat(x, 3 // x.shape[2], 2).astype(jnp.float32) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), k_) * 64**-0.5 + bias
        weights = kept(jax.nn.softmax(scores, -1), q.dtype)
        out = kept(jnp.einsum("bhqk,bkhd->bqhd", weights, v_), q.dtype)
        return (out * weight.astype(jnp.float32)).sum()

    require_gradients(ours, plain, q, bias)
    seen = bias > -1.0  # which has none
    alone = jax.grad(lambda q: ours(q, seen))(q)
    assert np.isfinite(np.asarray(alone, np.float32)).all()


def test_what_is_mapped_has_the_bits_of_a_call_of_its_own(where):
    q, k, v = arrays()
    slopes = jnp.asarray([0.1, 0.2, 0.4])
    many = jnp.stack([q, 2 * q, -q])
    found = jax.vmap(lambda q: flash_attention(q, k, v, alibi_slopes=slopes, **where))(many)
    for a, one in zip(found, many, strict=True):
        alone = flash_attention(one, k, v, alibi_slopes=slopes, **where)
        np.testing.assert_array_equal(bits(a), bits(alone))


def test_a_bias_and_packed_sequences_are_traced(where):
    q, k, v = arrays()
    seen = jnp.asarray(np.random.default_rng(5).random((163,)) < 0.7)
    plain = flash_attention(q, k, v, bias=seen, **where)
    traced = jax.jit(lambda seen: flash_attention(q, k, v, bias=seen, **where))(seen)
    np.testing.assert_array_equal(bits(plain), bits(traced))
    k = jnp.repeat(k[:1, :142], 3, 2)
    ends = jnp.asarray([0, 50, 142], jnp.int32)
    packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": True, **where}
    q = q.reshape(142, 3, 64)
    plain = flash_attention(q, k[0], k[0], **packed)
    traced = jax.jit(lambda q: flash_attention(q, k[0], k[0], **packed))(q)
    np.testing.assert_array_equal(bits(plain), bits(traced))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"explain": True}, ArgumentError, "explain is given and JAX traces the call"),
        ({"k": lambda k: k[..., :32]}, ArgumentError, "q has d_head 64 and k has 32"),
        ({"k_lengths": jnp.zeros(2, int)}, Unsupported, "k_lengths is given and a gradient"),
        ({"alibi_slopes": lambda q: q[0, 0, :, 0]}, Unsupported, "alibi_slopes are different"),
    ],
    ids=["explain", "width", "lengths", "slopes"],
)
def test_what_is_refused_is_refused_where_it_is_traced(change, error, says):
    q, k, v = arrays()
    if "k" in change:
        k, change = change["k"](k), {}

    def loss(q):
        given = {n: x(q) if callable(x) else x for n, x in change.items()}
        return flash_attention(q, k, v, backend="emulator", **given).astype(jnp.float32).sum()

    with pytest.raises(error, match=says):
        jax.jit(jax.grad(loss))(q)


def test_an_error_of_a_running_call_reaches_its_caller():
    q, k, v = arrays()
    with pytest.raises(ValueError, match="no kernel") as plain:
        flash_attention(q, k, v, config="no kernel", backend="emulator")
    assert isinstance(plain.value, ConfigError)
    run = jax.jit(lambda q: flash_attention(q, k, v, config="no kernel", backend="emulator"))
    with pytest.raises(Exception, match=r"ConfigError: .*no kernel"):
        run(q).block_until_ready()


def test_a_text_holds_all_that_a_call_asks_for():
    options = checked_options(
        causal=True, scale=0.1, layout="bhsd", return_lse=True, softcap=3.0, window_left=7
    )
    asked = Asked(options._replace(config="(FP16, 64, 64, 64, 4): eager"), ("sinks", "bias"))
    assert read_asked(asked.text()) == asked
    with pytest.raises(Unsupported, match="another version of flashsmith"):
        read_asked(asked.text().replace('"version": 1', '"version": 0'))


class Frame:
    """A call as XLA describes it on a GPU, with an allocator and errors of its own."""

    def __init__(self, text, extension=None):
        self.said, self.held = [], {}
        self.kept = [call_frame.Handler(f) for f in (self.fail, self.allocate, self.free)]
        places = [ctypes.cast(f, ctypes.c_void_p).value for f in self.kept]
        api = call_frame._Api(error_create=places[0])
        api.device_memory_allocate, api.device_memory_free = places[1:]
        self.dims = (ctypes.c_int64 * 2)(3, 5)
        buffer = call_frame._Buffer(dtype=16, data=0x1000, rank=2, dims=self.dims)
        buffers = (ctypes.POINTER(call_frame._Buffer) * 1)(ctypes.pointer(buffer))
        arguments = call_frame._Buffers(size=1, values=buffers)
        spans = [
            (ctypes.POINTER(call_frame._Span) * 1)(ctypes.pointer(self.span(x)))
            for x in ("asked", text)
        ]
        types = (ctypes.c_int * 1)(4)
        attributes = call_frame._Attributes(size=1, types=types, names=spans[0], values=spans[1])
        self.frame = call_frame._CallFrame(
            extension=extension,
            api=ctypes.pointer(api),
            stage=3,
            arguments=arguments,
            attributes=attributes,
        )
        self.api = api

    def span(self, text):
        kept = ctypes.create_string_buffer(text.encode())
        self.kept.append(kept)
        return call_frame._Span(ctypes.addressof(kept), len(text))

    def fail(self, address):
        args = call_frame._ErrorArgs.from_address(address)
        self.said.append((args.code, args.message.decode()))
        return 0xE

    def allocate(self, address):
        args = call_frame._AllocateArgs.from_address(address)
        args.data = 0x2010 + len(self.held)
        self.held[args.data] = args.size

    def free(self, address):
        args = call_frame._FreeArgs.from_address(address)
        assert self.held.pop(args.data) == args.size

    def call(self, compute):
        return call_frame.handler_of(compute)(ctypes.addressof(self.frame))


def test_a_frame_of_xla_is_read_and_its_scratch_given_back():
    seen, frame = [], Frame("all of it")

    def compute(call):
        seen.append((call.arguments(), call.results(), call.text("asked"), call.allocate(64)))
        assert frame.held == {0x2010: 128 + 112}  # a whole line from 0x2080 on

    assert frame.call(compute) is None
    assert seen == [([call_frame.Buffer((3, 5), "bfloat16", 0x1000)], [], "all of it", 0x2080)]
    assert not frame.held


def test_whatever_a_handler_raises_is_an_error_of_xlas():
    frame = Frame("")

    def refuse(call):
        call.allocate(8)
        raise Unsupported("not that")

    assert frame.call(refuse) == 0xE
    assert frame.call(lambda call: call.text("other")) == 0xE
    assert frame.call(lambda call: {}["no such"]) == 0xE
    assert [code for code, _ in frame.said] == [3, 3, 13]
    assert frame.said[0][1] == "Unsupported: not that"
    assert not frame.held


def test_another_interface_of_xla_is_refused_and_its_question_is_answered():
    frame = Frame("")
    frame.api.version.major, frame.api.version.minor = call_frame.MAJOR + 1, 7
    assert frame.call(lambda call: pytest.fail("its structs were read")) == 0xE
    assert "major version 1; flashsmith knows 0" in frame.said[0][1]
    metadata = call_frame._Metadata()
    asks = call_frame._MetadataExtension(kind=1, metadata=ctypes.addressof(metadata))
    asking = Frame("", ctypes.addressof(asks))
    asking.api.version.minor = 3
    assert asking.call(lambda call: pytest.fail("it was only asked")) is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, 3, 0)
