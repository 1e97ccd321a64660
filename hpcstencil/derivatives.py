"""Stencil operators, under the name that equation files import."""

from hpcstencil.symbolic.operators import Space

__all__ = ["Space"]
