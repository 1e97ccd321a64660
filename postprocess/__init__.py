"""Reading and plotting what a run of hpcstencil wrote; knows the file format, not the solver (no jax, no MPI).

`postprocess.reader` views a file, `postprocess.plot` draws it, `postprocess.summary` describes it; the last two are
also scripts: `python -m postprocess.plot FILE.h5 --field v -o v.png`, `python -m postprocess.summary FILE.h5`.
Nothing is imported here, so that a command line can load the package before it needs h5py and matplotlib.
"""
