"""The decomposed grid on devices: blocks, ghost cells, and the halo exchange between them."""
