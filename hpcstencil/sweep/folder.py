"""The folder of a sweep, which holds the plan and a folder with a complete input for each member.

``DIR/plan.json`` is the plan. It is fixed when the sweep is planned, so later edits of the sweep file or its base input
do not change members. ``DIR/0000/input.toml`` ... are the inputs of the members.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.sweep.members import Settings
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from hpcstencil.validation.messages import shown

FORMAT_VERSION = 1
PLAN = "plan.json"
INPUT = "input.toml"


@dataclass(frozen=True)
class Member:
    """One planned run of a sweep.

    ``settings`` maps the varied dotted keys to the values of this member. ``output`` is the path of its output file.
    ``checksum`` is the hash of its input file, and ``identity`` the hash of the settings in it (`plan.identity`).
    """

    index: int
    folder: Path
    output: Path
    settings: Settings
    checksum: str
    identity: str

    @property
    def input(self) -> Path:
        """The path of the input file of the member."""
        return self.folder / INPUT


@dataclass(frozen=True)
class Planned:
    """A planned sweep, as recorded in its ``folder``.

    ``parameters`` are the dotted keys that vary, and ``mode`` is "grid", "list" or "random".
    """

    folder: Path
    mode: str
    parameters: tuple[str, ...]
    members: tuple[Member, ...]

    def member(self, index: int) -> Member:
        """The member with number ``index``. Raises InputError if it does not exist, or if its folder is a link."""
        if not 0 <= index < len(self.members):
            raise InputError(
                f"--index: expected a member of {self.folder}, 0 to {len(self.members) - 1}, but got {index}"
            )
        refuse_link(self.members[index].folder)
        return self.members[index]


def refuse_link(home: Path) -> None:
    """Raise InputError if the folder ``home`` of a member is a link, since its files would lie outside the sweep."""
    if home.is_symlink():
        raise InputError(f"{home}: expected a folder for this member, but it is a link; put a folder in its place")


def read_plan(folder: Path) -> Planned:
    """Read the plan of the sweep in ``folder``.

    Raises InputError if there is no plan or it is damaged, EnvironmentProblem if it cannot be read.
    """
    path = folder / PLAN
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format_version"] > FORMAT_VERSION:
            raise InputError(f"{path}: was planned by hpcstencil {record['hpcstencil_version']}; use that version")
        output = record["output"]
        if Path(output).name != output or output in (INPUT, PLAN, "", "..") or "\0" in output:
            raise InputError(
                f"{path}: expected the name of an output file for each member's folder, but got {shown(output)}; plan the "
                "sweep anew"
            )
        members = [
            Member(
                index=index,
                folder=folder / f"{index:04d}",
                output=folder / f"{index:04d}" / output,
                settings={key: tomllib.loads(f"value = {text}")["value"] for key, text in entry["settings"].items()},
                checksum=entry["input_sha256"],
                identity=entry["identity"],
            )
            for index, entry in enumerate(record["members"])
        ]
        return Planned(folder, record["mode"], tuple(record["parameters"]), tuple(members))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder}: expected the folder of a sweep, but it has no {PLAN}; make one with: hpcstencil sweep plan "
            f"SWEEP.toml --dir {folder}"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: expected the record of a sweep, but it is damaged; plan the sweep anew") from error


def input_text(member: Member) -> str:
    """Read the input file of a member, and check that it is as planned.

    Raises InputError if the file is missing or was edited, EnvironmentProblem if it cannot be read.
    """
    try:
        text = member.input.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot read {member.input}: {error}; check its permissions") from error
    if checksum(text) != member.checksum:
        raise InputError(
            f"{member.input}: expected the input as planned, but it was changed or removed, so the sweep's table would "
            f"be wrong; give other values with sweep run --set KEY=VALUE, and restore the file with sweep plan"
        )
    return text


def checksum(text: str) -> str:
    """The SHA-256 hash of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
