"""Checkpoints: writing, finding, reading, repairing."""
