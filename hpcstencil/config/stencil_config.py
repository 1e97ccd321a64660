"""The declaration of a user-defined stencil in [equation.stencils]."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcstencil.numerics.finite_differences import Weights
from hpcstencil.validation.schema import ANY_TABLE, REQUIRED, TEXT, Kind, choice, either, key, nested_numbers

WEIGHTS = Kind(
    "numbers in nested lists, one level per axis, or the name of a .npy file", either(nested_numbers(), TEXT).convert
)
WEIGHTS_OR_TABLE = Kind(f"{WEIGHTS.words}, or a table of these and a method", either(WEIGHTS, ANY_TABLE).convert)


@dataclass(frozen=True)
class StencilConfig:
    """A user-defined stencil: its weights, and whether the sum is computed directly or by FFT.

    The input may give the weights alone, instead of a table; the method is then "direct". `weights_of` converts them to
    nested tuples, one level per axis of the grid. ``file`` is the absolute path of the file from which they were read, or
    None.
    """

    weights: Weights = key(WEIGHTS, REQUIRED, "weights = [[1, 2, 1], [2, 4, 2], [1, 2, 1]]", "the weights")
    method: str = key(choice("direct", "fft"), "direct", 'method = "fft"', "how the sum is computed")
    file: Path | None = field(default=None, compare=False)
