"""CuPy arrays: on a GPU, worked on in CuPy's current stream."""

from __future__ import annotations

from flashsmith.api.array_view import ArrayView
from flashsmith.api.arrays.dlpack import dlpack_view
from flashsmith.api.arrays.library import Array
from flashsmith.base.errors import ArgumentTypeError


class CupyArrays:
    """CuPy's side of `GpuArrays`: all of it is on a GPU."""

    orders_by_stream = True

    def require_usable(self, name: str, array: Array) -> None:
        """Refuses CuPy's sparse matrices and the like."""
        import cupy

        if not isinstance(array, cupy.ndarray):
            raise ArgumentTypeError(
                f"{name} is of type {type(array).__name__}; pass a plain cupy.ndarray."
            )

    def view(self, name: str, array: Array) -> ArrayView:
        """Where the array lies; CuPy's current stream is the one it is used in."""
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is not None and array.dtype.name != "bfloat16":
            return ArrayView(
                name=name,
                shape=array.shape,
                strides=tuple(stride // array.itemsize for stride in array.strides),
                dtype=array.dtype.name,
                address=array.data.ptr,
                device=f"cuda:{array.device.id}",
            )
        return dlpack_view(name, array.__dlpack__(stream=self.stream(array) or 1))

    def compacted(self, array: Array) -> Array:
        """A contiguous copy."""
        import cupy

        return cupy.array(array, order="C", copy=True)

    def new(self, like: Array, shape: tuple[int, ...], dtype: str) -> Array:
        """An array on the GPU of `like` that is not yet written."""
        import cupy

        with like.device:
            return cupy.empty(shape, like.dtype if dtype == like.dtype.name else dtype)

    def stream(self, array: Array) -> int:
        """CuPy's current stream."""
        import cupy

        with array.device:
            return int(cupy.cuda.get_current_stream().ptr)


LIBRARY = CupyArrays()
