"""hpcstencil in a Python program: `import hpcstencil as hs` takes its names from here, each when it is first used."""
