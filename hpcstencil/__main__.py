"""`python -m hpcstencil`."""

from hpcstencil.cli import start

start()
