"""The stencil kernels of array code by name: functions `apply(array, stencil, start, shape, number)`, one per module.

``array`` is a device's block padded with ghost cells. The result has ``shape`` cells and the array's dtype; its cell i is
Σ_j w_j array[start + i + o_j]. ``number`` turns a weight into a run-time value, so that the compiler cannot fold it into
the surrounding expression (see `device_grid.DeviceGrid.constants`). To add a kernel, write a module with such a function
and list it here.
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
