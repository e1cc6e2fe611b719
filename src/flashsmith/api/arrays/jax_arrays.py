"""JAX arrays: immutable, on the CPU or on a GPU, worked on by a runtime with streams of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.dlpack import dlpack_view
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentError, ArgumentTypeError, Unsupported


class JaxArrays:
    """JAX's side of `HostArrays` and `GpuArrays`."""

    orders_by_stream = False

    def require_usable(self, name: str, array: Array) -> None:
        """Refuses traced values (`flash_attention` takes them), several devices, and `out`."""
        import jax

        if isinstance(array, jax.core.Tracer):
            raise Unsupported(
                f"{name} is traced by JAX (inside jit, grad or vmap); this call takes arrays that "
                f"have values; call flash_attention, or this one outside."
            )
        if not isinstance(array, jax.Array):
            raise ArgumentTypeError(
                f"{name} is of type {type(array).__name__}; pass a plain jax.Array."
            )
        if name == "out":
            raise ArgumentError("out is a JAX array, which cannot be written to; do not pass out.")
        if len(array.devices()) != 1:
            raise Unsupported(
                f"{name} is spread over {len(array.devices())} devices; flashsmith works on one; "
                f"call it for each shard."
            )

    def view(self, name: str, array: Array) -> ArrayView:
        """Where the array lies, once it is computed."""
        return dlpack_view(name, array.block_until_ready().__dlpack__())

    def bits(self, array: Array) -> NDArray[np.uint16]:
        """The elements as 16-bit patterns."""
        view: NDArray[np.uint16] = np.asarray(array).view(np.uint16)
        return view

    def from_bits(self, bits: NDArray[np.uint16], like: Array) -> Array:
        """An array on the CPU with the element type of `like`."""
        import jax

        return jax.device_put(bits.view(np.asarray(like).dtype), next(iter(like.devices())))

    def float32(self, array: Array) -> NDArray[np.float32]:
        """The numbers of a float32 array."""
        return np.asarray(array, np.float32)

    def from_float32(self, values: NDArray[np.float32]) -> Array:
        """An array on the CPU."""
        import jax

        return jax.device_put(values, jax.devices("cpu")[0])

    def stream(self, array: Array) -> int:
        """The default stream: JAX shows none of its own."""
        return 0

    def compacted(self, array: Array) -> Array:
        """JAX arrays are contiguous; a copy of one is, too."""
        return array.copy()

    def new(self, like: Array, shape: tuple[int, ...], dtype: str) -> Array:
        """A fresh array on the GPU of `like`: written once, before anyone else has seen it."""
        import jax

        with jax.default_device(next(iter(like.devices()))):
            return jax.numpy.empty(shape, dtype).block_until_ready()


LIBRARY = JaxArrays()
