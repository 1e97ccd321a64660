"""`hpcstencil doctor` checks whether this environment can run hpcstencil, and suggests remedies if it cannot.

``examine`` is the driver. It starts child processes (``guard``), collects the facts about each process (``local``) and about
all ranks together (``mpi``, a child that takes the rank's place in the launch), and prints the verdicts (``checks``,
``places``).
"""
