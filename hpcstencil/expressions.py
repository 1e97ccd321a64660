"""Nodes of the expression tree, under the name that equation files import."""

from hpcstencil.symbolic.expressions import *  # noqa: F403  # all its public names: equations outside of this package may use any
