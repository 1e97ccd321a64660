"""Parameter sweeps: planned once into a folder of members, which any number of tasks may then run."""
