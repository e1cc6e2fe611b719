"""flash_attention of values that JAX traces: inside jit, grad, vmap and the like."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.arrays.library import Array
from flashsmith.api.bias import broadcast_view, reduced, scores_shape, shared_by_shape
from flashsmith.api.options import LSE, CallOptions
from flashsmith.api.problems import problem_of
from flashsmith.api.tables import ArrayTables, rows_of_tables, without_gradient
from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.jax_op.asked import Asked
from flashsmith.jax_op.handlers import ASKED, BACKWARD, FORWARD, HANDLERS, ON_HOST
from flashsmith.kernels.width import require_trained_width
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import BIAS, TABLES

Shape = jax.ShapeDtypeStruct


class Rows(NamedTuple):
    """The arrays that always have gradients."""

    q: Array
    k: Array
    v: Array


@functools.cache
def _register() -> None:
    """Makes the handlers known to XLA; once a process."""
    if not hasattr(jax, "ffi"):
        raise Unsupported(
            f"JAX {jax.__version__} has no jax.ffi, by which traced calls reach flashsmith; use "
            f"0.5 or later, or call flash_attention outside jit."
        )
    for name, handler in HANDLERS.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="CUDA")


@functools.lru_cache(maxsize=1024)  # one a text: JAX takes equal functions for equal programs
def _of_host(name: str, text: str) -> Callable[..., Array]:
    return functools.partial(ON_HOST[name], text)


def _call(name: str, results: tuple[Array, ...], asked: Asked, *arrays: Array) -> tuple[Array, ...]:
    """The call as it is made when a program runs; a program holds that of its own platform."""
    text = asked.text()

    def on_host(*arrays: Array) -> Array:
        return jax.pure_callback(_of_host(name, text), results, *arrays, vmap_method="sequential")

    def on_gpu(*arrays: Array) -> Array:
        return jax.ffi.ffi_call(name, results, vmap_method="sequential")(*arrays, **{ASKED: text})

    return tuple(jax.lax.platform_dependent(*arrays, cpu=on_host, cuda=on_gpu))


def attend(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    options: CallOptions,
    explain: bool,
    tables: ArrayTables,
    workspace: Array,
) -> tuple[Array, Array, None]:
    """Output and log-sum-exp (or None) of a call of which an array is traced."""
    for name, is_given in (
        ("out", out is not None),
        ("workspace", workspace is not None),
        ("explain", explain),
    ):
        if is_given:
            raise ArgumentError(
                f"{name} is given and JAX traces the call (inside jit, grad or vmap), where there "
                f"are no arrays yet; do not pass {name}."
            )
    _register()
    rows = Rows(*(jnp.asarray(array) for array in (q, k, v)))
    made = {
        name: _table(name, table, rows_of_tables(tables, rows.q.shape[0]))
        for name, table in tables.items()
    }
    _problem(rows, options, made)  # what is wrong is said where the call stands
    found = _attention(Asked(options, tuple(made)), rows, tuple(made.values()))
    return found[0], found[1] if options.facts[LSE] else None, None


def _table(name: str, table: Array, sequences: int) -> Array:
    """A table in the type of its role; slopes of heads are those of all sequences."""
    array = jnp.asarray(table)
    if name == BIAS:
        return array
    wanted = jnp.integer if TABLES[name].is_integer else jnp.floating
    if jnp.issubdtype(array.dtype, wanted):
        array = array.astype(jnp.int32 if TABLES[name].is_integer else jnp.float32)
    if name == "alibi_slopes" and array.ndim == 1:
        array = jnp.broadcast_to(array, (sequences, *array.shape))
    return array


def _problem(
    rows: Rows, options: CallOptions, tables: dict[str, Array] | ArrayTables
) -> AttentionProblem:
    """The problem, from shapes alone; raises where the call is refused."""

    def view(name: str, array: Array) -> ArrayView:
        return ArrayView(name, array.shape, compact(array.shape), str(array.dtype), 0, "cpu")

    views = [view(name, array) for name, array in zip("qkv", rows, strict=True)]
    of_tables = {name: view(name, table) for name, table in tables.items()}
    if BIAS in of_tables:
        wanted = scores_shape(views[0].shape, views[1].shape, str(options.fact("layout")))
        of_tables[BIAS] = broadcast_view(of_tables[BIAS], wanted)
    return problem_of(views, options, of_tables)


def _forward(asked: Asked, rows: Rows, tables: tuple[Array, ...]) -> tuple[Array, ...]:
    """(O,), or (O, LSE)."""
    named = dict(zip(asked.tables, tables, strict=True))
    problem = _problem(rows, asked.options, named)
    o = Shape((*rows.q.shape[:3], problem.v_width), rows.q.dtype)
    lse = Shape((problem.batch, problem.heads, problem.q_len), jnp.float32)
    return _call(FORWARD, (o, lse) if asked.options.facts[LSE] else (o,), asked, *rows, *tables)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(asked: Asked, rows: Rows, tables: tuple[Array, ...]) -> tuple[Array, ...]:
    return _forward(asked, rows, tables)


class _Kept(NamedTuple):
    """What the backward pass needs of the forward one; no matrix of scores."""

    rows: Rows
    o: Array
    lse: Array
    tables: tuple[Array, ...]
    of_bias: tuple[()] | None  # not None where its gradient is wanted: JAX traces a bool


def _with_gradients(
    asked: Asked, rows: Rows, tables: tuple[Array, ...]
) -> tuple[tuple[Array, ...], _Kept]:
    """The forward pass of a call that is differentiated; the arguments say of what."""
    _require_gradients(asked, tables)
    require_trained_width(rows.q.value.shape[-1])
    plain = Rows(*(row.value for row in rows))
    of_tables = tuple(table.value for table in tables)
    with_lse = Asked(asked.options.with_fact("lse", True), asked.tables)
    o, lse = _forward(with_lse, plain, of_tables)
    of_bias = any(n == BIAS and t.perturbed for n, t in zip(asked.tables, tables, strict=True))
    kept = _Kept(plain, o, lse, of_tables, () if of_bias else None)
    return (o, lse) if asked.options.facts[LSE] else (o,), kept


def _require_gradients(asked: Asked, tables: tuple[Array, ...]) -> None:
    """Raises for a call whose gradients no kernel computes, before it is computed in vain."""
    name = without_gradient(asked.options, asked.tables)
    if name:
        raise Unsupported(
            f"{name} is given and a gradient is wanted; flashsmith has no backward pass with "
            f"{name} yet; use another attention for training."
        )
    for name, table in zip(asked.tables, tables, strict=True):
        if name == "alibi_slopes" and table.perturbed:
            raise Unsupported(
                "alibi_slopes are differentiated; flashsmith computes gradients of q, k, v, sinks "
                "and bias; pass jax.lax.stop_gradient(alibi_slopes)."
            )


def _gradients(
    asked: Asked, kept: _Kept, cotangents: tuple[Array, ...]
) -> tuple[Rows, tuple[Array | None, ...]]:
    """Gradients of the rows, and of sinks and the bias among the tables."""
    do, dlse = _instantiated(cotangents[0]), None
    if len(cotangents) > 1 and not _is_zero(cotangents[1]):
        dlse = cotangents[1]
    tables = dict(zip(asked.tables, kept.tables, strict=True))
    read = {name: table for name, table in tables.items() if name != "sinks"}
    options = asked.options.with_fact("lse", False)._replace(config=None)
    arguments = [*kept.rows, kept.o, kept.lse, do] + ([] if dlse is None else [dlse])
    results = tuple(Shape(row.shape, row.dtype) for row in kept.rows)
    layout, of_bias = str(options.fact("layout")), kept.of_bias is not None
    if of_bias:
        results = (*results, _written_bias(kept.rows, tables[BIAS], layout))
    backward = Asked(options, tuple(read), of_bias)
    dq, dk, dv, *dbias = _call(BACKWARD, results, backward, *arguments, *read.values())
    of_tables: dict[str, Array] = {}
    if "sinks" in tables:
        of_tables["sinks"] = _of_sinks(tables["sinks"], do, kept, dlse, layout)
    if of_bias:
        bias = tables[BIAS]
        of_tables[BIAS] = reduced(dbias[0], bias.shape).astype(bias.dtype)
    return Rows(dq, dk, dv), tuple(of_tables.get(name) for name in tables)


def _written_bias(rows: Rows, bias: Array, layout: str) -> Array:
    """The gradient of a bias as the kernels write it, of every row and key."""
    batch, heads, q_len, k_len = scores_shape(rows.q.shape, rows.k.shape, layout)
    shared = shared_by_shape(bias.shape)
    of_batch, of_heads = shared in ("batch", "both"), shared in ("heads", "both")
    return Shape((1 if of_batch else batch, 1 if of_heads else heads, q_len, k_len), jnp.float32)


def _is_zero(cotangent: Array) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


def _instantiated(cotangent: Array) -> Array:
    return jnp.zeros(cotangent.shape, cotangent.dtype) if _is_zero(cotangent) else cotangent


def _of_sinks(sinks: Array, do: Array, kept: _Kept, dlse: Array | None, layout: str) -> Array:
    """A sink's share of a row is e^(sink - LSE), and what it takes is what the row's keys lose."""
    delta = (do.astype(jnp.float32) * kept.o).sum(-1)
    delta = delta if layout == "bhsd" else delta.swapaxes(1, 2)
    delta = delta if dlse is None else delta - dlse
    # A sink of -inf has none, also of a row that sees no key.
    share = jnp.nan_to_num(jnp.exp(sinks[:, None] - kept.lse), nan=0.0, posinf=0.0)
    return -(share * delta).sum((0, 2))


_attention.defvjp(_with_gradients, _gradients, symbolic_zeros=True)
