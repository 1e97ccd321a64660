"""Selections, the parts of a file that a plot shows: a field, a snapshot, and fixed dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from postprocess.reader import Field, FileProblem, FileView, RequestProblem


@dataclass(frozen=True)
class Selection:
    """One or two dimensions of a field at one snapshot; `fixed` maps each other dimension to its index."""

    view: FileView
    field: Field
    snapshot: int
    fixed: Mapping[str, int]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions shown, in the file's order; the first is the horizontal axis."""
        return tuple(dim for dim in self.field.dims if dim not in self.fixed)

    @property
    def time(self) -> float:
        """The time of the snapshot."""
        return float(self.view.times[self.snapshot])

    def coordinates(self, dim: str) -> NDArray[np.float64]:
        """Return the dimension's coordinates, of shape (n,), in the input's unit of length; indices if the file has none."""
        found = self.view.coordinates.get(dim)
        return np.arange(self.field.shape[self.field.dims.index(dim)], dtype=np.float64) if found is None else found

    def bounds(self, dim: str) -> tuple[float, float]:
        """Return the outer faces of the first and the last cell along a dimension."""
        return cell_bounds(self.coordinates(dim))

    def values(self, snapshot: int | None = None) -> NDArray[np.floating]:
        """Read the values shown, of this selection's snapshot or another one.

        They are in the order of `dims` and in the file's dtype.
        """
        return self.view.read(self.field.name, self.snapshot if snapshot is None else snapshot, self.fixed)

    def solid(self) -> NDArray[np.bool_] | None:
        """Return a mask of the values shown that are in solid cells, in their shape.

        The result is None if the file has no mask, or if the field is staggered.
        """
        return self.view.solid_cells(self.fixed, self.dims)

    def fluid(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the values outside solid cells as a one-dimensional array; all values, in their shape, without a mask."""
        solid = self.solid()
        return values if solid is None else values[~solid]

    def place(self) -> str:
        """The fixed coordinates as text, such as 'z = 0.5'; empty if nothing is fixed."""
        return ", ".join(
            member_text(self.view, index)
            if dim == "member"
            else f"{dim.removesuffix('_face')} = {self.coordinates(dim)[index]:.4g}"
            for dim, index in self.fixed.items()
        )


def member_text(view: FileView, member: int) -> str:
    """Return the number of a member of an ensemble and the values in which it differs, such as 'member = 1 (D = 0.1)'."""
    numbers = [
        f"{key.rpartition('.')[2]} = {values[member]:.4g}"
        for key, values in view.ensemble.items()
        if member < len(values) and isinstance(values[member], int | float)
    ]
    return f"member = {member}" + (f" ({', '.join(numbers)})" if numbers else "")


def select(
    view: FileView, field: str | None = None, time: float | None = None, slices: Mapping[str, float] | None = None
) -> Selection:
    """Return the selection for a plot: the snapshot nearest to `time` (default: the last), cut at `slices`.

    `slices` maps axes to positions. If more than two dimensions with several cells would remain, the last ones are cut in the
    middle. Raises RequestProblem for a field, an axis or a position that the file does not have, and for a time more than half
    an interval before the first or after the last snapshot. Raises FileProblem if there is no snapshot.
    """
    found = view.field(field)
    view.check_has_snapshots()
    fixed = {}
    for axis, place in (slices or {}).items():
        dim = _dimension(found, axis)
        fixed[dim] = _index(view, found, dim, axis, place)
    if "member" in found.dims:
        fixed.setdefault("member", 0)
    free = [dim for dim in found.dims if dim not in fixed]
    if not free:
        raise RequestProblem(f"Slices of every axis ({', '.join(fixed)}) leave a single point: leave out at least one.")
    single = [dim for dim in free if found.shape[found.dims.index(dim)] == 1]
    fixed |= dict.fromkeys(single[: len(free) - 1], 0)  # the planes of a stream; one axis is left in any case
    free = [dim for dim in free if dim not in fixed]
    for dim in free[2:]:
        fixed[dim] = found.shape[found.dims.index(dim)] // 2
    return Selection(view, found, _nearest_snapshot(view, time), fixed)


def cell_bounds(centres: NDArray[np.float64]) -> tuple[float, float]:
    """Return the outer faces of uniform cells with these centres, of shape (n,). A single cell counts as 1 wide."""
    half = 0.5 * (centres[-1] - centres[0]) / (len(centres) - 1) if len(centres) > 1 else 0.5
    faces = float(centres[0] - half), float(centres[-1] + half)
    # a face at 0 comes out as some 1e-18, which would be shown
    lower, upper = (0.0 if abs(face) < 1e-12 * (faces[1] - faces[0]) else face for face in faces)
    return lower, upper


def _nearest_snapshot(view: FileView, time: float | None) -> int:
    if time is None:
        return len(view.times) - 1
    if not math.isfinite(time):
        raise RequestProblem(f"The time must be a finite number, not {time}.")
    times, first, last = view.times, view.times[0], view.times[-1]
    before, after = (times[1] - first, last - times[-2]) if len(times) > 1 else (0.0, 0.0)
    rounded = 1e-6 * max(abs(first), abs(last))
    if not first - before / 2 - rounded <= time <= last + after / 2 + rounded:
        stored = f"{first:.6g} to {last:.6g}" if len(times) > 1 else f"{first:.6g} alone"
        raise RequestProblem(
            f"The time {time:g} lies outside of what {view.path} holds, t = {stored}: ask for one there."
        )
    return int(np.argmin(np.abs(view.times - time)))


def _dimension(field: Field, axis: str) -> str:
    """Return the field's dimension along an axis: `x`, or `x_face` for a staggered field."""
    for dim in field.dims:
        if axis in (dim, dim.removesuffix("_face")):
            return dim
    axes = ", ".join(dim.removesuffix("_face") for dim in field.dims)
    raise RequestProblem(f"'{field.name}' has no axis '{axis}' to slice, only {axes}: write for example z=0.5.")


def _index(view: FileView, field: Field, dim: str, axis: str, place: float) -> int:
    """Return the index of the cell nearest to `place`, the lower of two as in streams, or of the member with this number.

    Raises RequestProblem for a place outside the grid, FileProblem if the file lacks the coordinates.
    """
    centres = view.coordinates.get(dim)
    if centres is None:
        raise FileProblem(f"{view.path} has no coordinate dataset '/{dim}', which '{field.name}' needs for a slice.")
    if dim == "member":
        if place not in centres:
            raise RequestProblem(f"The slice member={place:g} names none of the members 0 to {len(centres) - 1}.")
        return int(place)
    lower, upper = cell_bounds(centres)
    if not lower <= place <= upper:
        raise RequestProblem(f"The slice {axis}={place:g} lies outside of the domain, {lower:.6g} to {upper:.6g}.")
    distances = np.abs(centres - place)
    return int(np.flatnonzero(distances <= distances.min() + 1e-9 * (upper - lower))[0])  # the lower of two
