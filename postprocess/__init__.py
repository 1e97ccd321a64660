"""Read and plot the files of hpcstencil. This package knows the file format but not the solver, and needs neither jax
nor MPI.

`postprocess.reader` reads a file, `postprocess.plot` draws it, and `postprocess.summary` describes it. The last two
are also scripts: `python -m postprocess.plot FILE.h5 --field v -o v.png`, `python -m postprocess.summary FILE.h5`.
Nothing is imported here, so that a command line can load the package before it needs h5py and matplotlib.
"""
