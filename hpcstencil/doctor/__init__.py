"""`hpcstencil doctor`: whether this environment can run hpcstencil, and what to do where it cannot.

``examine`` leads: it starts the children (``guard``), collects what a process finds alone (``local``) and what the ranks
find together (``mpi``, run in the rank's place), and prints the verdicts (``checks``, ``places``).
"""
