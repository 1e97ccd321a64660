"""`python -m hpcstencil`."""

from hpcstencil.cli import main

main()
