"""Parameter sweeps, planned once into a folder of members that any number of tasks may then run."""
