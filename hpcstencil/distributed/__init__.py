"""Blocks on devices: windows, ghost cells and the halo exchange."""
