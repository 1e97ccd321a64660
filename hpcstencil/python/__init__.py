"""The Python interface. `import hpcstencil as hs` exposes its public names, each imported when it is first used."""
