"""The text output of `hpcstencil verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcstencil.config.settings import Config
from hpcstencil.validation.findings import Finding, verdict
from hpcstencil.validation.messages import listing
from hpcstencil.verify.studies import Study

SIZES = {"space": "cells per axis", "time": "steps"}


def opening(config: Config, source: tuple[float, str] | None = None, unstudied: Sequence[str] = ()) -> str:
    """The lines before the results: the equation, the method, and the manufactured solution.

    ``source`` is (largest magnitude, field) of the source for the solution in [verify.exact], or None without one.
    ``unstudied`` are the keys of parameters because of which the orders are not measured.
    """
    method = f"order {config.numerics.order} in space, {config.numerics.integrator} in time"
    equation = f"equation     {config.equation.name}, {method}\n"
    if unstudied:
        why = f"because they need other grids, and these parameters come from files: {listing(unstudied)}"
        return f"{equation}orders       not measured, {why}"
    needed = ""
    if source is not None:
        largest, field = source
        needed = "\nsource       " + (
            f"up to {largest:.3g} in {field}: the exact solution does not solve the equation by itself"
            if largest
            else "0: the exact solution solves the equation by itself"
        )
    solution = "the solution given in [verify] exact" if config.verify.exact else "the default solution, a wave"
    without = ", without solid cells" if config.mask is not None else ""
    where = f"in float64, on small grids of the same extent{without}"
    return f"{equation}orders       against {solution}, made exact by a source; {where}{needed}"


def report_lines(studies: Sequence[Study], findings: Sequence[Finding]) -> list[str]:
    """The results as lines of text: a table of sizes and errors with the observed order for each study, then a line for
    each finding."""
    lines = []
    for study in studies:
        lines.append("")
        lines.append(f"order in {study.name}")
        lines.append(f"  {SIZES[study.name]:<16}" + "".join(f"{size:>10}" for size in study.sizes))
        lines.append(f"  {'error':<16}" + "".join(f"{error:>10.2e}" for error in study.errors))
        observed = "too small to observe an order" if study.too_small else f"observed {study.observed:.2f}"
        lines.append(f"  {observed}, promised {study.promised:g}: {verdict(study.met)}")
    lines.append("")
    lines += [f"{finding.name:<22} {finding.words}: {verdict(finding.met)}" for finding in findings]
    return [*lines, ""]


def figure_data(studies: Sequence[Study]) -> list[dict[str, Any]]:
    """The studies as dictionaries, as `postprocess.convergence.save` takes them."""
    return [
        {"title": f"order in {study.name}", "label": SIZES[study.name], "sizes": study.sizes, "errors": study.errors,
         "observed": study.observed, "promised": study.promised}
        for study in studies
    ]  # fmt: skip
