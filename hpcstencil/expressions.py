"""Nodes of the expression tree, under the name that files of equations import."""

from hpcstencil.symbolic.expressions import *  # noqa: F403
