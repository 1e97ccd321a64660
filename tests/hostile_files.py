"""Files that nobody would write by mistake: an output, a checkpoint or an initial state in which one thing is not what it
must be. Each row changes a sound file (h5py, open for writing) and has words that the refusal must hold, None where the
file is still good enough.
"""

import json

import h5py
import numpy as np

RECORD = np.dtype([("a", "f8"), ("b", "i4")])
OTHER = "other.h5"  # beside the file, with a dataset u of its shape


def put(name, make):
    """Put something else in the place of a dataset."""

    def change(file):
        if name in file:
            del file[name]
        make(file, name)

    return change


def holding(value, **more):
    return lambda file, name: file.create_dataset(name, data=value, **more)


def typed(shape, dtype):
    return lambda file, name: file.create_dataset(name, shape, dtype)


def like(dtype):
    """A dataset of the field's shape and another type."""

    def make(file, name):
        file.create_dataset(name, SHAPES[file.attrs.get("kind", "plain")], dtype)

    return make


SHAPES = {"output": (3, 8, 6), "checkpoint": (8, 6), "plain": (8, 6)}


def virtual(file, name):
    shape = SHAPES[file.attrs.get("kind", "plain")]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource(OTHER, "u", shape)
    file.create_virtual_dataset(name, layout)


def outside(file, name):
    shape = SHAPES[file.attrs.get("kind", "plain")]
    file.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def link(file, name):
    file[name] = h5py.ExternalLink(OTHER, "u")


def soft(target):
    return lambda file, name: file.__setitem__(name, h5py.SoftLink(target))


def opaque(file, name):
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, 16)
    space = h5py.h5s.create_simple((8, 6))
    h5py.h5d.create(file.id, name.encode(), kind, space)


def hdf5_time(file, name):
    space = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.UNIX_D32LE, space)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def reference(file):
    file.attrs["title"] = file.ref


def nested(file):
    group = file
    for _ in range(40):
        group = group.create_group("a")


def circle(file):
    file["again"] = file["/"]
    file.create_group("deeper")["back"] = file["/"]


TEXTS = np.full((8, 6), "texts", h5py.string_dtype())
# What any dataset may be, of which fields, an initial state and a mask are read.
DATASETS = {
    "group": (lambda file, name: file.create_group(name), "a group"),
    "texts": (holding(TEXTS), "texts"),
    "fixed texts": (holding(np.full((8, 6), b"abc")), "texts"),
    "compound": (like(RECORD), "compound"),
    "complex": (like("c8"), "complex numbers"),
    "references": (like(h5py.ref_dtype), "references"),
    "of any length": (like(h5py.vlen_dtype("f4")), "references"),
    "nothing": (holding(h5py.Empty("f4")), "or none"),
    "opaque": (opaque, "compound"),
    "HDF5's own time": (hdf5_time, "another type"),
    "one number": (holding(1.5), ""),
    "another shape": (typed((5, 4, 3, 2, 1), "f4"), ""),
    "virtual": (virtual, "values from other files"),
    "another file's bytes": (outside, "values from other files"),
    "link to a file": (link, "link to another file"),
    "link to nothing": (soft("/nowhere"), "no dataset"),
    "link to itself": (lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}")), "too many links"),
}
# What is wrong with an output of a run; the words that `info` says.
OUTPUTS = {
    **{f"time is {name}": (put("time", make), "") for name, (make, _) in DATASETS.items()},
    "step is real": (put("step", holding(np.arange(3.0))), "whole numbers"),
    "no time": (lambda file: file.__delitem__("time"), "no dataset 'time'"),
    "no step": (lambda file: file.__delitem__("step"), "no dataset 'step'"),
    "x is a group": (put("x", lambda file, name: file.create_group(name)), "a group"),
    "x is empty": (put("x", typed((0,), "f8")), "increase in 'x'"),
    "x is longer": (put("x", holding(np.arange(9.0))), "damaged"),
    "x is not finite": (put("x", holding(np.full(8, np.nan))), "finite"),
    "time is endless": (put("time", lambda f, n: f.create_dataset(n, (2**40,), "f8", chunks=(1024,))), "at most 2**26"),
    "u is endless": (put("u", lambda f, n: f.create_dataset(n, (2**30, 8, 6), "f4", chunks=(1, 8, 6))), "declares"),
    "u is never written": (put("u", like("f4")), None),
    "time does not increase": (put("time", holding(np.array([0.0, 2.0, 1.0]), maxshape=(None,))), None),
    "time holds nan": (put("time", holding(np.full(3, np.nan), maxshape=(None,))), None),
    "time is a list of whole numbers": (put("time", holding(np.arange(3), maxshape=(None,))), None),
    "u is a group": (put("u", lambda file, name: file.create_group(name)), None),
    "u is complex": (put("u", like("c8")), None),
    "u is virtual": (put("u", virtual), "values from other files"),
    "u is another file's bytes": (put("u", outside), "values from other files"),
    "u is a link to a file": (put("u", link), "link to another file"),
    "u is of doubles": (put("u", like("f8")), None),
    "diagnostics are a dataset": (put("diagnostics", holding(np.arange(3.0))), None),
    "a diagnostic is a group": (put("diagnostics/mass", lambda file, name: file.create_group(name)), "a group"),
    "a diagnostic is one number": (put("diagnostics/mass", holding(1.0)), "axes"),
    "a diagnostic is complex": (put("diagnostics/mass", holding(np.zeros(11, "c16"))), "complex"),
    "the series' time has two axes": (put("diagnostics/time", holding(np.zeros((11, 2)))), "axes"),
    "probes are a dataset": (put("probes", holding(np.arange(3.0))), None),
    "a probe is a dataset": (put("probes/p", holding(np.arange(3.0))), None),
    "a probe is empty": (put("probes/p", lambda file, name: file.create_group(name)), "no dataset"),
    "samples are text": (put("probes/p/values", holding(np.full((11, 2), b"a"))), "texts"),
    "samples have one axis": (put("probes/p/values", holding(np.zeros(11))), "axes"),
    "samples of more receivers": (put("probes/p/values", holding(np.zeros((11, 3)))), "a place for each receiver"),
    "samples' time is complex": (put("probes/p/time", holding(np.zeros(11, "c16"))), "complex"),
    "samples' steps are a group": (put("probes/p/step", lambda file, name: file.create_group(name)), "a group"),
    "a receiver's place is a group": (put("probes/p/x", lambda file, name: file.create_group(name)), "a group"),
    "a receiver has no place": (
        lambda file: [file.__delitem__(f"probes/p/{axis}") for axis in "xy"],
        "a place for each",
    ),
    "member is text": (put("member", holding(np.array(["a"], object), dtype=h5py.string_dtype())), "texts"),
    "groups in groups": (nested, "16 deep"),
    "groups in a circle": (circle, None),
    "title is a number": (attribute("title", 5), "a text in the attribute 'title'"),
    "title is empty": (attribute("title", h5py.Empty("S1")), "a text in the attribute 'title'"),
    "title is a reference": (reference, "a text in the attribute 'title'"),
    "title is two texts": (attribute("title", ["a", "b"]), "a text in the attribute 'title'"),
    "title is not UTF-8": (attribute("title", np.bytes_(b"\xff\xfe")), None),
    "kind is a number": (attribute("kind", 1), "a text in the attribute 'kind'"),
    "kind is another": (attribute("kind", "other"), "not one that hpcstencil wrote"),
    "complete is a text": (attribute("complete", "yes"), "a whole number in the attribute 'complete'"),
    "complete is a list": (attribute("complete", [1, 2]), "a whole number in the attribute 'complete'"),
    "input is a number": (attribute("input", 7.5), "a text in the attribute 'input'"),
    "input is no TOML": (attribute("input", "= ="), None),
    "input has other tables": (attribute("input", "equation = 5\nnumerics = 5\nensemble = 5\n"), None),
    "input is brackets": (attribute("input", "a = " + "[" * 200_000), None),
    "input is dots": (attribute("input", ".".join(["a"] * 50_000) + " = 1"), None),
    "input is 30 MB": (attribute("input", "[" * 30_000_000), "at most 4 MiB"),
    "decomposition is brackets": (attribute("decomposition", "[" * 1_000_000), None),
    "decomposition is a number": (attribute("decomposition", 3), "a text in the attribute"),
    "decomposition is a list": (attribute("decomposition", "[1, 2]"), None),
    "history is a table": (attribute("history", '{"a": 1}'), None),
    "fields are a table": (attribute("fields", '{"a": 1}'), "'fields' is damaged"),
    "fields are brackets": (attribute("fields", "[" * 1_000_000), "'fields' is damaged"),
    "clock is brackets": (lambda file: file.attrs.update(complete=1, clock="[" * 1_000_000), None),
    "clock holds texts": (lambda file: file.attrs.update(complete=1, clock='{"clock/step": "a"}'), None),
    "clock is a number": (lambda file: file.attrs.update(complete=1, clock=1), "a text in the attribute 'clock'"),
    "units are a number": (lambda file: file["u"].attrs.__setitem__("units", 3), "a text in the attribute 'units'"),
    "unused bytes are texts": (attribute("unused-bytes", ["a", "b"]), None),
}
# What is wrong with a checkpoint, which is sealed again.
CHECKPOINTS = {
    "time is a text": (attribute("time", "soon"), "a number in the attribute 'time'"),
    "step is real": (attribute("step", 1.5), "a whole number in the attribute 'step'"),
    "format_version is a text": (attribute("format_version", "2"), "a whole number in the attribute"),
    "history is brackets": (attribute("history", "[" * 1_000_000), "'history' is damaged"),
    "history is a table": (attribute("history", "{}"), "'history' is damaged"),
    "decomposition is a list": (attribute("decomposition", json.dumps([1])), "'decomposition' is damaged"),
    "input is brackets": (attribute("input", "a = " + "[" * 200_000), "attribute 'input'"),
    "input is empty": (attribute("input", ""), "grid.shape"),
    "no scalars": (lambda file: file.__delitem__("run-scalars"), "run-scalars"),
    "scalars are none": (lambda file: file["run-scalars"].attrs.clear(), "which is missing; a run of another kind"),
    "x is a group": (put("x", lambda file, name: file.create_group(name)), "a group"),
    "no axes": (lambda file: [file.__delitem__(name) for name in "xy"], "coordinates of a grid"),
    **{
        f"u is {name}": (put("u", make), words)
        for name, (make, words) in DATASETS.items()
        if name in ("group", "texts", "complex", "compound", "virtual", "another file's bytes", "link to a file")
    },
}  # fmt: skip
