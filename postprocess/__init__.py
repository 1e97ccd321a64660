"""Read and plot the files of hpcstencil. This package is independent of the solver and needs neither JAX nor MPI.

`postprocess.reader` reads a file, `postprocess.plot` draws it, and `postprocess.summary` describes it. The last two are also
scripts: `python -m postprocess.plot FILE.h5 --field v -o v.png`, `python -m postprocess.summary FILE.h5`. Nothing is imported
here, so that a command can load the package before it needs h5py and matplotlib.
"""
