"""Writing, finding, reading and repairing checkpoints."""
