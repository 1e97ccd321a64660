"""`hpcstencil doctor` checks whether this environment can run hpcstencil, and suggests remedies if it cannot.

``examine`` is the driver. It starts the children (``guard``), collects the findings of each process (``local``) and of
all ranks together (``mpi``, which runs in the rank's place), and prints the verdicts (``checks``, ``places``).
"""
