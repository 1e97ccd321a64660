"""A summary of a file as text. Also a script: `python -m postprocess.summary FILE.h5`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from hpcstencil.io.hdf5_validation import attributes, json_attribute, series
from hpcstencil.validation.printable import echo, printable
from postprocess.reader import AXES, Field, FileProblem, FileView, is_result, opened, read_view, result_dataset
from postprocess.selection import cell_bounds

CHUNK = 64 * 2**20  # bytes of a field read at a time
WIDTH = 15
LISTED = 8  # members whose values are listed, and continuations


def summarize(path: str | Path) -> str:
    """Summarize an output or checkpoint file, or the result of a fit or a gradient, in several lines.

    They describe its contents, the range of values of the last snapshot, and whether the file is complete and undamaged. The
    last snapshot of every field is read piece by piece. Raises FileProblem if the file cannot be read.
    """
    if is_result(path):
        return _as_text(_result_rows(Path(path)))
    view = read_view(path)
    ranges = {name: last_range(view, name) for name in view.fields} if len(view.times) else {}
    rows: list[tuple[str, str]] = [
        ("file", f"{view.path} ({_size(view.path.stat().st_size)})"),
        ("kind", _kind(view)),
        ("title", str(view.attributes.get("title", ""))),
        *_input_rows(view),
        *(("continued", text) for text in _changes(view.attributes.get("history"))),
        ("members", _members(view)),
        ("grid", _grid(view)),
        *(("field" if i == 0 else "", _field(field, ranges)) for i, field in enumerate(view.fields.values())),
        ("mask", _mask(view)),
        ("snapshots", _snapshots(view)),
        ("diagnostics", _diagnostics(view)),
        *(
            ("probes", f"{name}: {each.long_name} at {each.count} receivers ({len(each.times)} samples each)")
            for name, each in view.probes.items()
        ),
        ("decomposition", _decomposition(view.attributes.get("decomposition"))),
        ("versions", _versions(view.attributes)),
        ("complete", _complete(view)),
        ("sound", _sound(view, ranges)),
    ]
    return _as_text(rows)


def _as_text(rows: Iterable[tuple[str, str]]) -> str:
    """Put each row on a line; rows without a text are left out."""
    return "\n".join(f"{name:<{WIDTH}}{printable(text)}" for name, text in rows if text)


def _result_rows(path: Path) -> list[tuple[str, str]]:
    """The rows of the file of a fit or a gradient. Arrays are read piece by piece."""
    with opened(path) as file:
        found = attributes(path, file)
        kind, objective = str(found["kind"]), str(found.get("name", "objective"))
        coordinates = {axis: series(path, file, axis) for axis in AXES if axis in file}
        fields, few, samples = dict[str, Field](), dict[str, NDArray[Any]](), set[str]()
        for key in json_attribute(path, found, "unknowns", []):
            dataset = result_dataset(path, file, key)
            samples |= {key} if f"{key}.time" in file else set()
            if dataset.size <= LISTED and dataset.ndim < 2:
                few[key] = np.atleast_1d(dataset[()])
            dims = tuple(f"axis {axis}" for axis in range(dataset.ndim))
            fields[key] = Field(key, dims, dataset.shape, dataset.dtype, "1", key)
        heading, start, iterations = "derivatives", "", ""
        if kind == "fit":
            heading = "found"
            first, *rest = result_dataset(path, file, "history/objective")[:]
            norms = result_dataset(path, file, "history/gradient_norm")[:]
            start = f", {first:.10g} at the start"
            iterations = f"{len(rest)}; gradient norm {norms[0]:.6g} at the start, {norms[-1]:.6g} at the end"
    view = FileView(path, kind, coordinates, fields, np.zeros(1), np.zeros(1, np.int64), found, {}, ())
    values, lost = list[str](), list[str]()
    for key, field in fields.items():
        if key in few:
            text, count = f"= {', '.join(f'{value:.10g}' for value in few[key])}", int(np.sum(~np.isfinite(few[key])))
        else:
            low, high, count = last_range(view, key)
            what = "samples" if key in samples else "values"
            text = f" {' x '.join(map(str, field.shape))} {what}, {low:.6g} to {high:.6g}"
        values.append(f"{key if kind == 'fit' else f'd {objective} / d {key}'} {text}")
        lost += [key] if count else []
    return [
        ("file", f"{path} ({_size(path.stat().st_size)})"),
        ("kind", kind),
        ("title", str(found.get("title", ""))),
        *_input_rows(view),
        ("grid", _grid(view) if coordinates else ""),
        ("objective", f"{objective} = {found['objective']:.10g}{start}" if "objective" in found else ""),
        *((heading if n == 0 else "", text) for n, text in enumerate(values)),
        ("iterations", iterations),
        ("end", str(found.get("end", ""))),
        ("versions", _versions(found)),
        ("sound", f"no: values of {', '.join(lost)} are not finite" if lost else "yes"),
    ]


def last_range(view: FileView, name: str) -> tuple[float, float, int]:
    """Return the smallest and the largest finite value of a field's last snapshot, and the number of non-finite values."""
    low, high, lost = np.inf, -np.inf, 0
    for piece in _pieces(view.fields[name]):
        values = view.read(name, -1, piece)
        finite = values[np.isfinite(values)]
        lost += values.size - finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return low, high, lost


def _pieces(field: Field) -> Iterator[dict[str, int | slice]]:
    """Divide a field along its first axis into slabs of at most CHUNK bytes, or of one layer."""
    layer = field.dtype.itemsize * int(np.prod(field.shape[1:]))
    thickness = max(1, CHUNK // max(1, layer))
    for start in range(0, field.shape[0], thickness):
        yield {field.dims[0]: slice(start, min(start + thickness, field.shape[0]))}


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _members(view: FileView) -> str:
    """Describe the number of members of an ensemble, and the values in which they differ."""
    if "member" not in view.coordinates:
        return ""
    differ = []
    for key, values in view.ensemble.items():
        listed = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[:LISTED])
        differ.append(f"{key} = {listed}{', ...' if len(values) > LISTED else ''}")
    return f"{len(view.coordinates['member'])}: {'; '.join(differ)}"


def _input_rows(view: FileView) -> list[tuple[str, str]]:
    """Describe the equation and the numerics from the input in the file; empty if the file has no input."""
    try:
        tables = view.input
    except FileProblem:
        return [("input", "the attribute 'input' is not valid TOML")]
    rows = []
    equation, numerics = tables.get("equation"), tables.get("numerics")
    if isinstance(equation, dict) and "name" in equation:
        apart = {"name", *(key.removeprefix("equation.") for key in view.ensemble)}
        plain = {
            key: value["series"] if isinstance(value, dict) else value
            for key, value in equation.items()
            if key not in apart and (not isinstance(value, dict) or "series" in value)
        }
        parameters = ", ".join(f"{key} = {value}" for key, value in plain.items())
        rows.append(("equation", str(equation["name"]) + (f" ({parameters})" if parameters else "")))
    if isinstance(numerics, dict) and numerics:
        rows.append(("numerics", ", ".join(f"{key} {value}" for key, value in numerics.items())))
    return rows


def _kind(view: FileView) -> str:
    """The kind of file, and of what: a gradient, a fit, or a stream of a run."""
    of = view.attributes.get("of", "")
    if view.is_stream:
        stream = json_attribute(view.path, dict(view.attributes), "stream", {})
        of = f"stream {stream.get('name', '')}{', means' * bool(stream.get('average'))}"
    return f"{view.kind} ({of})" if of else view.kind


def _grid(view: FileView) -> str:
    axes = {axis: view.coordinates[axis] for axis in AXES if axis in view.coordinates}
    shape = " x ".join(str(len(centres)) for centres in axes.values())
    parts = []
    for axis, centres in axes.items():
        if len(centres) == 1:
            parts.append(f"{axis} {centres[0]:.6g}")
            continue
        lower, upper = cell_bounds(centres)
        parts.append(f"{axis} {lower:.6g} to {upper:.6g}, d{axis} {(upper - lower) / len(centres):.6g}")
    return f"{shape} cells: {'; '.join(parts)}"


def _mask(view: FileView) -> str:
    """Count the solid cells, piece by piece."""
    if not view.solid:
        return ""
    shape = tuple(len(view.coordinates[dim]) for dim in view.solid)
    layers = max(1, CHUNK // math.prod(shape[1:]))
    count = 0
    for start in range(0, shape[0], layers):
        piece = view.solid_cells({view.solid[0]: slice(start, start + layers)}, view.solid)
        count += 0 if piece is None else int(np.count_nonzero(piece))
    return f"{count} of {math.prod(shape)} cells are solid ('solid')"


def _field(field: Field, ranges: Mapping[str, tuple[float, float, int]]) -> str:
    units = "" if field.units in ("", "1") else f" [{field.units}]"
    name = field.name if field.long_name == field.name else f"{field.name} ({field.long_name})"
    text = f"{name}{units}  {field.dtype.name}"
    if field.name not in ranges:
        return text
    low, high, lost = ranges[field.name]
    span = f"{low:.6g} to {high:.6g}" if low <= high else "no finite value"
    return f"{text}  last: {span}" + (f", {lost} values NOT FINITE" if lost else ", all finite")


def _snapshots(view: FileView) -> str:
    if view.kind == "checkpoint":
        return f"one state, t = {view.times[0]:.9g}, step {view.steps[0]}"
    if len(view.times) == 0:
        return "none finished"
    first, last = (f"t = {view.times[i]:.9g} (step {view.steps[i]})" for i in (0, -1))
    return f"{len(view.times)}: {first}" + (f" to {last}" if len(view.times) > 1 else "")


def _diagnostics(view: FileView) -> str:
    names = [name for name in view.diagnostics if name not in ("time", "step")]
    return f"{', '.join(names)} ({len(view.diagnostics['time'])} values each)" if names else ""


def _decomposition(value: Any) -> str:
    """Describe the attribute `decomposition`, which is JSON."""
    if value is None:
        return ""
    try:
        chosen = json.loads(str(value))
    except (ValueError, RecursionError):
        return f"{len(str(value))} characters that are not JSON"
    if not isinstance(chosen, dict):
        return str(chosen)
    return ", ".join(
        f"{key} {' x '.join(map(str, item)) if isinstance(item, list) else item}"
        for key, item in chosen.items()
        if item != ""
    )


def _changes(value: Any) -> list[str]:
    """Describe the last continuations of a run whose input had changed, from the attribute `history`, which is JSON."""
    try:
        texts = [
            f"from step {entry['step']}, t = {entry['time']:.6g}, with "
            + ", ".join(
                f"{key} = {now} (before: {'the default' if before is None else before})"
                for key, (before, now) in entry["changed"].items()
            )
            for entry in json.loads(str(value or "[]"))
            if entry["changed"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ["the attribute 'history' is not what hpcstencil writes"]
    return texts[-LISTED:]


def _versions(attributes: Mapping[str, Any]) -> str:
    found = {key.removesuffix("_version"): value for key, value in attributes.items() if key.endswith("_version")}
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _complete(view: FileView) -> str:
    if view.complete:
        return "yes"
    if view.kind == "checkpoint":
        return "no: its writing was not finished; use an older checkpoint"
    if view.attributes.get("failure"):
        return f"no: the run failed, the snapshots above are good: {view.attributes['failure']}"
    if view.is_stream:
        return "no: the run has not reached its end; `hpcstencil info` of the run's own output says how to continue it"
    command = f"hpcstencil run INPUT.toml --output {view.path} --resume"
    return f"no: the run has not reached its end; if it has stopped, continue it with `{command}`"


def _sound(view: FileView, ranges: Mapping[str, tuple[float, float, int]]) -> str:
    problems = list(view.problems)
    try:
        _ = view.input
    except FileProblem:
        problems.append("The attribute 'input' is not valid TOML.")
    problems += [f"{name} has {lost} values that are not finite." for name, (_, _, lost) in ranges.items() if lost]
    return "no: " + " ".join(problems) if problems else "yes"


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def main(file: Path) -> None:
    """Describe the contents of FILE, an output, a checkpoint or a result of a fit or a gradient, and check that it is valid."""
    try:
        echo(summarize(file))
    except FileProblem as problem:
        click.echo(printable(problem), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
