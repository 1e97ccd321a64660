"""Parameter sweeps. A sweep is planned once as a folder of members, which any number of processes can then run."""
