"""The starting point of a run: its initial state, its own newest checkpoint, or a checkpoint of another run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcstencil import __version__
from hpcstencil.checkpoint.checkpoint import can_be_extended, newest_checkpoint, verify
from hpcstencil.checkpoint.paths import list_checkpoints, step_of
from hpcstencil.checkpoint.seal import Damaged
from hpcstencil.config.provenance import allowed, differences
from hpcstencil.config.reader import from_mapping
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.io.file_names import base_name
from hpcstencil.io.file_read import Contents, inspect
from hpcstencil.io.hdf5_validation import json_attribute
from hpcstencil.io.output_preparation import refuse_existing
from hpcstencil.numerics.grid import AXES
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError
from hpcstencil.validation.messages import at, shown
from hpcstencil.validation.overrides import is_set
from hpcstencil.validation.toml_text import parse

REPEATING = (
    "decomposition.",
    "checkpoint.",
    "output.method",
    "output.write_behind",
    "title",
    "verify.",
    "objective.",
    "gradient.",
    "fit.",
)  # these keys do not change the results


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    ``output`` is the file to write, and ``restart`` the checkpoint of another run from which to begin. ``overrides`` are the
    texts given with --set. ``started`` is the time of time.monotonic at which the command started.
    """

    output: Path
    overwrite: bool = False
    resume: bool = False
    restart: Path | None = None
    quiet: bool = False
    overrides: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Source:
    """Where the state of a run comes from.

    Attributes
    ----------
    checkpoint, clock
        A checkpoint, or the clock of the output's last snapshot, from which the run continues. If both are None, the run
        begins at its initial state.
    append
        Whether the run continues in its own output.
    ended
        Whether the run had reached its end in that output.
    complete
        Why there is nothing left to do; else "".
    repeated
        The kernel with which the run would reproduce, bit for bit, the output beyond the checkpoint; "" if none would.
    history
        An entry for each time that the run was continued, with the kernel before and the changes of the input.
    from_memory
        Whether a Python program made the state.
    """

    checkpoint: Path | None = None
    clock: Mapping[str, Any] | None = None
    append: bool = False
    ended: bool = False
    complete: str = ""
    repeated: str = ""
    history: tuple[dict[str, Any], ...] = ()
    from_memory: bool = False

    @property
    def anew(self) -> bool:
        """Whether the run continues with changes other than those that are always allowed, such as other physics."""
        return bool(self.history) and not all(map(allowed, self.history[-1]["changed"]))

    @property
    def of_other_layers(self) -> bool:
        """Whether the state may come from a run with other absorbing layers: physics has changed since it began."""
        return not all(allowed(key) for entry in self.history for key in entry["changed"])

    @property
    def other_times(self) -> bool:
        """Whether the run continues with other times of output or diagnostics, or with other physics."""
        cadence = ("output.every", "output.every_steps", "diagnostics.every_steps")
        return self.anew or bool(self.history) and any(key in self.history[-1]["changed"] for key in cadence)

    @property
    def kernel(self) -> str:
        """The kernel of the run that is continued; "" if there is none."""
        return self.history[-1]["kernel"] if self.history else ""


def source_of(
    config: Config, contents: Mapping[str, ArrayContents], options: Options, communicator: Communicator
) -> Source:
    """Determine where the state of a run comes from, and verify the file from which it would continue. Collective.

    ``contents`` are those of the files on which the steps depend, as in `Problem`. Raises, on all processes, InputError if
    the output exists unexpectedly or belongs to another run, or if a checkpoint is damaged; EnvironmentProblem if a file
    cannot be read.
    """
    if options.resume:
        return _resumed(config, contents, options, communicator)
    if not options.overwrite:
        agree(communicator, lambda: refuse_existing(options.output, "--output"))
        from_rank_0(communicator, lambda: _refuse_orphans(options.output))
    if options.restart is None:
        return Source()
    restart = options.restart
    try:
        verify(restart, communicator)
    except Damaged:  # on all processes alike
        from_rank_0(communicator, lambda: _refuse_output(restart))
        raise
    return Source(restart, history=history_of_continuation(config, contents, restart, options.overrides, communicator))


def _refuse_orphans(output: Path) -> None:
    """Raise InputError if there are checkpoints of an ``output`` that is gone, since a new run would remove them."""
    if known := list_checkpoints(output):
        raise InputError(
            f"{known[0]}: exists already, but its output {output.name} is gone; continue from it with --restart and another "
            "--output, or use --overwrite to remove it"
        )


def _refuse_output(path: Path) -> None:
    """Raise InputError if ``path``, which has no intact seal, is an output file or not a file of a run.

    A file that is named like a checkpoint is not opened with HDF5 here, because damaged metadata can crash it (see `seal`).
    """
    if ".checkpoint." in path.name:
        return
    try:
        kind = inspect(path).kind
    except EnvironmentProblem:  # damaged
        return
    if kind != "output":
        return
    known = list_checkpoints(path)
    example = known[0].name if known else f"{base_name(path)}.checkpoint.STEP.h5"
    raise InputError(
        f"{path}: expected a checkpoint, such as {example}, but got an output file; "
        + ("give that one" if known else "give a checkpoint of this run, which has none here")
    )


def _resumed(
    config: Config, arrays: Mapping[str, ArrayContents], options: Options, communicator: Communicator
) -> Source:
    """Return the source for --resume: the newest valid checkpoint of this output, unless the run is already complete."""
    output = options.output
    contents = from_rank_0(communicator, lambda: _output_to_resume(output))
    if contents is None:
        return Source()
    history = history_of_continuation(config, arrays, output, options.overrides, communicator)
    now, changed = history[-1], history[-1]["changed"]
    if contents.complete and contents.time is not None and config.time.end <= contents.time:
        for key in changed:
            if not allowed(key):
                raise InputError(
                    f"{key}: {output} is complete, and nothing would be computed with another value; set a later time.end, or "
                    "choose another --output"
                )
        return Source(complete=_nothing_to_do(config, output, contents))
    _check_file_fits(config, output, contents)
    if contents.clock is not None:
        return Source(clock=contents.clock, append=True, ended=True, history=history)
    newest = newest_checkpoint(output, communicator)
    if newest is None and contents.complete:
        raise InputError(
            f"{output}: the run is complete, but the checkpoint from which it would continue is gone; use --overwrite to run "
            "it again"
        )
    if newest is None and from_rank_0(communicator, lambda: bool(list_checkpoints(output))):
        raise InputError(
            f"{output}: the run is not complete and none of its checkpoints is sound; keep what it holds and choose another "
            "--output, or use --overwrite to run it again"
        )
    if newest is None:
        return Source()
    ended = contents.complete and contents.step == step_of(newest)
    same = contents.version == __version__ and all(key.startswith(REPEATING) for key in changed)
    return Source(
        newest,
        append=True,
        ended=ended,
        repeated=now["kernel"] if same else "",
        history=history_of_continuation(config, arrays, newest, options.overrides, communicator),
    )


def _nothing_to_do(config: Config, output: Path, contents: Contents) -> str:
    """Return a sentence that says that the run is complete, up to which time, and whether it could be extended."""
    beyond = "" if config.time.end == contents.time else f", beyond the time.end = {config.time.end:g} asked for"
    further = "set a later time.end to continue" if can_be_extended(output, contents) else "its checkpoint is gone"
    return f"{output} is complete up to t = {contents.time:g}{beyond}; nothing to do ({further})"


def _output_to_resume(output: Path) -> Contents | None:
    """Return the contents of the output; None if neither the output nor a checkpoint of it exists.

    Raises InputError if there are only checkpoints, or if the output is damaged.
    """
    checkpoints = list_checkpoints(output)
    advice = "start again with --overwrite"
    if checkpoints:
        advice = f"continue from {checkpoints[0]} with --restart and another --output, or {advice}"
    if not output.exists():
        if checkpoints:
            raise InputError(f"{output}: does not exist, but checkpoints of it do; {advice}")
        return None
    try:
        return inspect(output)
    except HpcstencilError as error:
        raise type(error)(f"{error}; {advice}") from error


def _check_file_fits(config: Config, output: Path, contents: Contents) -> None:
    """Raise InputError if the output has other diagnostics or probes, or another precision than this run would write."""
    origin = _origin(contents, output)
    for key, there, wanted in (
        ("numerics.precision", origin.numerics.precision, config.numerics.precision),
        ("diagnostics", *(", ".join(sorted(c.diagnostics.expressions)) or "none" for c in (origin, config))),
    ):
        if there != wanted:
            raise InputError(
                f"{key}: {output} was begun with {there} and cannot continue with {wanted}; continue from a checkpoint with "
                "--restart and another --output"
            )
    for name, expression in config.diagnostics.expressions.items():
        if origin.diagnostics.expressions[name] != expression:
            raise InputError(
                f"{at('diagnostics', name)}: {output} was begun with {shown(origin.diagnostics.expressions[name])} and cannot "
                f"continue with {shown(expression)}; continue from a checkpoint with --restart and another --output"
            )
    recorded = [{name: replace(probe, every_steps=1) for name, probe in c.probes.items()} for c in (origin, config)]
    for name in {**recorded[0], **recorded[1]}:
        if recorded[0].get(name) != recorded[1].get(name):
            raise InputError(
                f"{at('probes', name)}: {output} was begun with other receivers, or another quantity, and cannot continue with "
                "these; continue from a checkpoint with --restart and another --output"
            )


def _origin(contents: Contents, path: Path) -> Config:
    """Parse the input that the file at ``path`` was made from."""
    return from_mapping(parse(contents.input, f"{path}, its attribute 'input'"), path.parent)


def _settable(key: str) -> str:
    """The KEY=VALUE with which --set changes a key. A condition of an axis is set as a whole table."""
    parts = key.split(".")
    axis = next((n for n, part in enumerate(parts) if part in AXES), None)
    if parts[0] != "boundary" or axis is None:
        return f"{key}=..."
    return f"'{'.'.join(parts[: axis + 1])}={{...}}' with all its conditions"


def _values(before: Any, now: Any) -> str:
    """The two values of a key for a message; "" if the key is missing in one of the inputs."""
    return "" if before is None or now is None else f", {shown(before)} instead of {shown(now)}"


def history_of_continuation(
    config: Config,
    arrays: Mapping[str, ArrayContents],
    path: Path,
    overrides: tuple[str, ...],
    communicator: Communicator,
) -> tuple[dict[str, Any], ...]:
    """Return the history of the run that wrote ``path``, with a new entry for this continuation. Collective.

    The end, cadences and decomposition may differ freely from the earlier input. Other changes need --set, and the grid can
    never change. Raises InputError, on all processes, for any other change.
    """

    def compared() -> tuple[dict[str, Any], ...]:
        contents = inspect(path)
        origin = _origin(contents, path)
        if contents.kind == "checkpoint" and contents.time is not None and contents.time > config.time.end:
            raise InputError(
                f"time.end: expected a time after that of {path.name}, t = {contents.time:g}, but got {config.time.end:g}; "
                f"set a later end, or {origin.time.end:g} as before"
            )
        known = json_attribute(path, contents.attributes, "arrays_sha256", {})
        changed = _changed_keys(config, origin, arrays, known, path, overrides)
        changed |= _changed_arrays(arrays, known, changed, path, overrides)
        _refuse_other_class(config, contents, path, overrides)
        before = json_attribute(path, contents.attributes, "history", [])
        kernel = str(json_attribute(path, contents.attributes, "decomposition", {}).get("kernel", ""))
        entry = {"step": contents.step, "time": contents.time, "from": path.name, "kernel": kernel, "changed": changed}
        return (*before, entry)

    return from_rank_0(communicator, compared)


def _changed_keys(
    config: Config,
    origin: Config,
    arrays: Mapping[str, ArrayContents],
    known: Mapping[str, str],
    path: Path,
    overrides: tuple[str, ...],
) -> dict[str, Any]:
    """Return the (old, new) values of the keys in which the input differs from ``origin``, by key.

    Another file with the same values, by the digests ``known``, is no difference. Raises InputError for a change that is not
    allowed.
    """
    same = {_file_key(key, found) for key, found in arrays.items() if known.get(key) == found.sha256}
    changed = {key: values for key, values in differences(origin, config).items() if key not in same}
    for key, values in changed.items():
        of_grid = key.startswith("grid.")
        if allowed(key) or (is_set(key, overrides) and not of_grid):
            continue
        remedy = (
            f"keep its grid of {' x '.join(map(str, origin.grid.shape))} cells"
            if of_grid
            else f"if that is intended, use --set {_settable(key)}"
        )
        raise InputError(f"{key}: {path} was made with another value{_values(*values)}; {remedy}")
    return changed


def _changed_arrays(
    arrays: Mapping[str, ArrayContents],
    known: Mapping[str, str],
    changed: Mapping[str, Any],
    path: Path,
    overrides: tuple[str, ...],
) -> dict[str, tuple[str, str]]:
    """Return the (old, new) digests of arrays whose files have other contents now, unless their keys have ``changed``.

    Raises InputError if the user has not allowed the change with --set.
    """
    found = {}
    for key, contents in arrays.items():
        named = _file_key(key, contents)
        if known.get(key, contents.sha256) == contents.sha256 or named in changed:
            continue
        if not is_set(named, overrides):
            raise InputError(
                f"{key}: {path} was made with other values than those in the file now; bring the file back, or, if other "
                f"values are intended, use --set {named}=..."
            )
        found[key] = known[key], contents.sha256
    return found


def _file_key(key: str, contents: ArrayContents) -> str:
    """Return the dotted key of the input that names the file of an array."""
    return f"{key}.series" if contents.samples else key


def _refuse_other_class(config: Config, contents: Contents, path: Path, overrides: tuple[str, ...]) -> None:
    """Raise InputError if the file of the user's equation has another text now, and the user has not allowed that."""
    file = config.equation.in_file
    if file is None or is_set("equation.name", overrides):
        return
    if file[0].read_text(encoding="utf-8") != contents.attributes.get("equation_source", ""):
        raise InputError(
            f"equation.name: {path} was made with another text of {file[0]}, comments included, which it holds as "
            "'equation_source'; if that is intended, use --set equation.name=..."
        )
