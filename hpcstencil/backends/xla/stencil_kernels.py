"""Ways to apply a stencil, one file each, with one signature: `apply(array, stencil, start, shape, number)`.

``array`` is padded; the result has ``shape`` cells, cell i of it being Σ_j w_j array[start + i + o_j]. ``number`` turns a
weight into a value that the compiler does not know, so that it is not multiplied into what stands around the stencil (see
`device_grid.Machine.constants`). A new kernel is a module with such a function, listed here.
"""

from collections.abc import Callable

import jax

from hpcstencil.backends.xla.kernel_conv import apply as conv
from hpcstencil.backends.xla.kernel_shift import apply as shift
from hpcstencil.backends.xla.kernel_tiles import tiled
from hpcstencil.numerics.finite_differences import Stencil

Kernel = Callable[[jax.Array, Stencil, tuple[int, ...], tuple[int, ...], Callable[[float], jax.Array]], jax.Array]

KERNELS: dict[str, Kernel] = {"shift": shift, "conv": conv}

__all__ = ["KERNELS", "Kernel", "tiled"]
