"""Blocks, windows and halos on devices."""
