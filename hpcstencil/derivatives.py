"""Stencil operators, under the name that files of equations import."""

from hpcstencil.symbolic.operators import Space

__all__ = ["Space"]
