"""Native programs under the compiler's sanitizers: no access beyond arrays, no undefined behaviour, no data race."""

import os
import subprocess

import numpy as np
import pytest
from support import problem_of

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.tape import with_tape
from hpcstencil.backends.native.compiler import LIBRARIES, SOURCES, compiler
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import program
from hpcstencil.numerics.topology import Topology

SANITIZERS = {"address,undefined": "-fno-sanitize-recover=all", "thread": ""}
# Takes some steps in one call after the other, from random fields to results of their own and back, then over the fields. Two
# cells of each row of each field are recorded after every step. Every other call records sums after every third step, also of
# an expression and of what another program's pass makes of neighbours, and stores three states. If the program adds to an array
# (`Problem.injected`), two cells of each row get one of two rows of values, or none. If it reads values of a tape, all steps
# read the same ones; there is room for four planes before and behind them.
MAIN = """
#include <stdio.h>
#include "sweep.hpp"
#include "tiled_driver.hpp"
#include "recording.hpp"
#include "driver.hpp"
static void add_coordinate(const double*, double time, const double* const* at, const real* const* in, real* to, long n) {
    for (long x = 0; x < n; x++) to[x] = in[0][x] + real(time + at[0][0] + at[1][0] + at[2][x]);
}
static void add_neighbours(const Place&, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1) {
    for (long j = j0; j < j1; j++)
        for (long x = x0; x < x0 + round_up(x1 - x0, LANES); x++) {
            real sum = 0;
            for (int n = 0; n < 3; n++) sum += in[n].p[j * in[n].pitch + x];
            for (int side = -2; side <= 2; side += 4)
                sum += in[1].p[j * in[1].pitch + x + side] + in[1].p[(j + side * !FLAT) * in[1].pitch + x];
            out->p[j * out->pitch + x] = sum;
        }
}
static void prepare_nothing(const double*, const double*, double, double, double, real*) {}
static void open_nothing(const Call&, const double*, const long*, EvaluatorFunctions*) {}
int main() {
    const double parameters[] = {PARAMETER_VALUES 0}, constants[] = {CONSTANT_VALUES 0};
    constexpr long MARGIN = 40;
    Call call = {};
    const int64_t count[AXES] = SHAPE, wraps[AXES] = WRAPS;
    size_t cells = count[0] * count[1] * count[2];
    const double* coordinates[AXES];
    const void* ghosts[2 * AXES] = {};
    for (int a = 0; a < AXES; a++) {
        double* x = (double*)malloc((count[a] + 2 * MARGIN) * sizeof(double));
        for (long n = 0; n < count[a] + 2 * MARGIN; n++) x[n] = 0.1 * (n - MARGIN);
        coordinates[a] = x + MARGIN;
        call.capacity[a] = call.count[a] = count[a], call.margin[a] = MARGIN, call.wraps[a] = (int32_t)wraps[a];
        call.boundary[a][0] = call.boundary[a][1] = count[a] > 1 && !wraps[a];
    }
    void* fields[2][FIELDS];
    for (int f = 0; f < 2 * FIELDS; f++) {
        real* field = (real*)malloc(cells * sizeof(real));
        for (size_t n = 0; n < cells; n++) field[n] = real((n * 7919 + f) % 1000 * 0.001);
        fields[f / FIELDS][f % FIELDS] = field;
    }
    call.parameters = parameters, call.constants = constants, call.coordinates = coordinates, call.ghosts = ghosts;
    call.threads = THREADS, call.l2_bytes = 1 << 20, call.every = 1, call.records = 1;
    const int64_t rows = count[0] * count[1];
    int64_t* row = (int64_t*)malloc((rows + 1) * sizeof(int64_t));
    Run* runs = (Run*)malloc(rows * sizeof(Run));
    for (int64_t n = 0; n <= rows; n++) row[n] = n;
    for (int64_t n = 0; n < rows; n++) runs[n] = {int32_t(n * 5 % (count[2] - 1)), int32_t(2 * n), 2};
    const int64_t* begin[GIVEN];
    for (int f = 0; f < GIVEN; f++) begin[f] = row;
    CellSamples samples = {1, 0, 1, 18, 2 * rows, 2, 0, begin, runs, (real*)malloc(18 * 2 * rows * sizeof(real))};
    int64_t error_sums[4 * ERRORS + 4] = {};
    if (ERRORS) call.error_sums = error_sums;
    FieldSums* sums = (FieldSums*)calloc(1, sizeof(FieldSums) + GIVEN * sizeof(FieldSum));
    for (int f = 0; f < GIVEN; f++) sums->field[f].wanted = 1, sums->field[f].exponent = 1;
    set_field_sums(sums, nullptr);
    ValueTree tree = {add_coordinate, 1, {0}};
    const long trees = can_record_values(&tree), sums_each = GIVEN + trees;
    FieldSum* recorded = (FieldSum*)calloc(6 * sums_each, sizeof(FieldSum));
    for (int n = 0; n < 6 * sums_each; n++) recorded[n].wanted = 1, recorded[n].exponent = 1;
    const double times[6] = {};
    FieldRecords records = {3, 0, 1, 6, recorded, trees, &tree, times};
    const Input reads = {GIVEN - 1, {2, 2 * !FLAT, 2}, true};
    const Inputs inputs = {&reads, 1};
    const Plane read[] = {{0, -2}, {0, 0}, {0, 2}};
    const int value = 1, first = 0, own_field[] = {0, 1};  // array 1 is the value, in field 1
    const Variant whole = {add_neighbours, 0, 3, 1, 1, read, &first};
    Pass pass = {1, 1, 1, &reads, &value, {&whole, &whole, &whole, &whole, &whole, &whole, &whole, &whole}};
    const Evaluator evaluator = {&pass, prepare_nothing, open_nothing, own_field, 0};
    const int64_t value_of[] = {-1, 0};
    FieldSum* evaluated_sums = (FieldSum*)calloc(6, sizeof(FieldSum));
    for (int n = 0; n < 6; n++) evaluated_sums[n].wanted = 1, evaluated_sums[n].exponent = 4;
    StencilRecords stencils = {
        3, 0, 1, 6, 0, evaluated_sums, 1, nullptr, &evaluator, inputs, value_of, constants, times};
    const int64_t* const begin_of_value[] = {row};
    CellSamples of_value = {2, 0, 1, 9, 2 * rows, 2, 0, begin_of_value, runs, (real*)malloc(9 * 2 * rows * sizeof(real))};
    const double more_times[9] = {};
    StencilRecords stencil_cells = {
        2, 0, 1, 9, 1, nullptr, 0, &of_value, &evaluator, inputs, value_of, constants, more_times};
    double weights[18] = {1, 0.5}, *over_time[2];
    real* copies = (real*)calloc(9 * count[0] * count[1] * count[2], sizeof(real));
    Region regions[3];
    for (int n = 0; n < 2; n++) {
        over_time[n] = (double*)calloc(count[0] * count[1] * count[2], sizeof(double));
        regions[n] = {
            n ? 0 : GIVEN - 1, {0, 0, 1}, {count[0], (count[1] + n) / (1 + n), (count[2] - 1) / 2}, {1, 1 + n, 2},
            over_time[n], nullptr};
    }
    regions[2] = regions[0], regions[2].sums = nullptr, regions[2].copies = copies;
    RegionRecords of_fields = {1, 0, 1, 18, -1, 1, regions, weights}, copied = {2, 0, 1, 9, -1, 1, regions + 2, nullptr};
    RegionRecords of_values = {1, 0, 1, 18, 2, 1, regions + 1, weights};
    StencilRecords stencil_sums = {
        1, 0, 1, 18, 0, nullptr, 0, nullptr, &evaluator, inputs, value_of, constants, weights};
    const bool evaluates = can_record_stencils(&inputs);
    int64_t everywhere[GIVEN];
    find_recordable(everywhere, 1);
    const bool can_average = everywhere[GIVEN - 1];
    const int64_t stored[] = {2, 7, 11};
    void* places[3 * GIVEN];
    for (int n = 0; n < 3 * GIVEN; n++) places[n] = malloc(cells * sizeof(real));
    int64_t planes[GIVEN + REPLAYED], pitches[GIVEN + REPLAYED], bytes[GIVEN], of_tape[REPLAYED + 1];
    for (int n = 0; n < GIVEN + REPLAYED; n++) planes[n] = count[1] * count[2], pitches[n] = count[2];
    for (int n = 0; n < GIVEN; n++) bytes[n] = n % 2 ? sizeof(half) : sizeof(real);
    for (int n = 0; n < REPLAYED; n++) of_tape[n] = sizeof(TAPED);
    StepArrays states = {3, stored, places, planes, pitches, bytes};
    int64_t beyond[AXES], lines[2] = {0, 0};
    reach_of_steps(MAX_STEPS, beyond);
    for (int a = 0; a < 2; a++) lines[a] = count[a] + 2 * beyond[a];
    int64_t* line = (int64_t*)malloc((lines[0] * lines[1] + 1) * sizeof(int64_t));
    Run* added = (Run*)malloc(lines[0] * lines[1] * sizeof(Run));
    for (int64_t n = 0; n <= lines[0] * lines[1]; n++) line[n] = n;
    for (int64_t n = 0; n < lines[0] * lines[1]; n++)
        added[n] = {int32_t(n * 5 % (count[2] + 2 * beyond[2] - 1) - beyond[2]), int32_t(2 * n), 2};
    real* values = (real*)calloc(4 * lines[0] * lines[1], sizeof(real));
    int64_t row_of[18 * INJECTIONS + 1];
    for (int n = 0; n < 18 * INJECTIONS; n++) row_of[n] = n % 3 - 1;
    Injection inject = {0, 18, 2 * lines[0] * lines[1], {beyond[0], beyond[1], beyond[2]}, row_of, line, added, values};
    set_injection(&inject);
    const size_t beside = 4 * count[1] * count[2] + 64;
    real* tape = (real*)calloc(cells + 2 * beside, sizeof(real));
    int64_t taped[18];
    void* values_of[18 * REPLAYED + 1];
    for (int n = 0; n < 18; n++) taped[n] = n;
    for (int n = 0; n < 18 * REPLAYED; n++) values_of[n] = tape + beside;
    StepArrays of_steps = {18, taped, values_of, planes, pitches, of_tape};
    set_replayed(&of_steps);
    const long steps[] = {0, 1, 5, 18, 18, 18, 18, 18, 18, 1};  // enough calls of 18 steps to measure several blockings
    double clock[] = {0, 0, 1e-3, 0};
    least_measured = 0;
    for (int n = 0; n < 10; n++) {
        samples.dense = n == 3, set_cell_samples(&samples), n % 2 ? add_field_records(&records) : drop_field_records(&records);
        set_state_records(n % 2 ? &states : nullptr);
        set_stencil_records(0, n % 2 && evaluates ? &stencils : nullptr);
        set_stencil_records(1, n % 3 && evaluates ? &stencil_cells : nullptr);
        set_stencil_records(2, n % 3 != 1 && evaluates ? &stencil_sums : nullptr), add_region_records(&of_values);
        n % 2 && can_average ? add_region_records(&of_fields) : drop_region_records(&of_fields);
        n % 3 && can_average ? add_region_records(&copied) : drop_region_records(&copied);
        clock[3] = (double)steps[n], call.clock = clock;
        call.fields = fields[n % 2], call.results = fields[n < 4 ? (n + 1) % 2 : n % 2];
        advance(&call);
    }
    for (int a = 0; a < AXES; a++) free((void*)(coordinates[a] - MARGIN));
    for (int f = 0; f < 2 * FIELDS; f++) free(fields[f / FIELDS][f % FIELDS]);
    set_field_sums(nullptr, sums), drop_cell_samples(&samples), free(sums), free(row), free(runs), free(samples.values);
    set_replayed(nullptr), free(tape);
    set_injection(nullptr), free(line), free(added), free(values);
    drop_field_records(&records), free(recorded), set_state_records(nullptr);
    drop_stencil_records(&stencil_sums), drop_region_records(&of_fields), drop_region_records(&of_values);
    drop_region_records(&copied), free(copies), free(over_time[0]), free(over_time[1]);
    drop_stencil_records(&stencils), drop_stencil_records(&stencil_cells), free(evaluated_sums), free(of_value.values);
    for (int n = 0; n < 3 * GIVEN; n++) free(places[n]);
    clock[3] = 18;
    printf("in place: %d, finite: %d\\n", choose_blocking(call, 18, THREADS).blocking.rows > 0, !stored_not_finite());
}
"""
SERIES = {"series": "samples.npy", "dt": 0.1}
SELF_FOCUSING = {
    "grid": {"shape": [47, 41, 61]},
    "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "(1 + a*u)*laplacian(u)"}},
    "boundary": {"x": "periodic", "y": "periodic", "z": {"dirichlet": 0.0}},
    "numerics": {"integrator": "leapfrog"},
    "objective": {"J": "integral(u**2)"},
    "gradient": {"of": ["initial.u"]},
}
CASES = {
    "3-D in place": {
        "grid": {"shape": [47, 41, 61]},
        "equation": {"name": "heat"},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "y": "periodic", "z": {"neumann": 0.2}},
        "numerics": {"integrator": "euler"},
    },
    "2-D in place, steps joined": {
        "grid": {"shape": [210, 130]},
        "equation": {"name": "wave"},
        "boundary": {"x": "periodic", "y": {"dirichlet": 0.0}},
        "numerics": {"order": 4, "integrator": "leapfrog"},
    },
    "2-D in tiles, steps joined": {
        "grid": {"shape": [3, 300]},
        "equation": {"name": "wave", "c": "1 + 0.1*sin(x*y)"},
        "numerics": {"order": 4, "integrator": "leapfrog", "precision": "float64"},
    },
    "2-D in tiles": {
        "grid": {"shape": [150, 130]},
        "equation": {"name": "shallow_water"},
        "boundary": {"x": "periodic"},
        "numerics": {"order": 4},
    },
    "2-D in tiles, with errors": {
        "grid": {"shape": [50, 70]},
        "equation": {"name": "gray_scott"},
        "numerics": {"integrator": "bs3"},
        "time": {"end": 1.0, "tolerance": 1e-3},
    },
    "3-D in tiles": {
        "grid": {"shape": [23, 31, 47]},
        "equation": {"name": "custom", "rhs": {"u": "0.01*laplacian(u**3 - u) - 0.001*dxx(dxx(u)) + sin(x*y + 1)"}},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "z": {"robin": {"a": 1.0, "b": 2.0, "value": 0.1}}},
        "numerics": {"integrator": "rk4", "precision": "float64"},
    },
    "2-D in tiles, layers": {
        "grid": {"shape": [150, 130], "upper": [15.0, 13.0]},
        "equation": {"name": "wave"},
        "boundary": {"x": {"cpml": {"width": 1.3, "speed": 1.0}}, "y": {"cpml": {"width": 1.1, "speed": 1.0}}},
        "numerics": {"integrator": "ssprk2", "order": 4},
    },
    "2-D in tiles, in reverse": {
        "grid": {"shape": [70, 61]},
        "equation": {"name": "acoustic", "f0": 10.0, "xs": 2.0},
        "boundary": {"x": "periodic", "y": {"dirichlet": 0.0}},
        "numerics": {"order": 4, "integrator": "leapfrog"},
        "probes": {f"of_{field}": {"field": field, "x": [1.0], "y": [2.0]} for field in ("p", "q")},
        "objective": {"J": "sum(of_p**2) + sum(of_q**2)"},
        "gradient": {"of": ["equation.c"]},
    },
    "3-D in place, a time series in reverse": {
        "grid": {"shape": [47, 41, 61]},
        "equation": {"name": "acoustic", "source": SERIES, "xs": 2.0},
        "numerics": {"order": 4, "integrator": "leapfrog"},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["equation.source"]},
    },
    "2-D in tiles, a time series in reverse": {
        "grid": {"shape": [70, 61]},
        "equation": {"name": "custom", "s": SERIES, "rhs": {"u": "0.01*laplacian(u) + s*u*(1 - u)"}},
        "numerics": {"integrator": "rk4", "precision": "float64"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["equation.s"]},
    },
    "3-D in place, with a tape": SELF_FOCUSING,
    "3-D in place, with a tape in half precision": {
        **SELF_FOCUSING,
        "gradient": {"of": ["initial.u"], "tape_precision": "half"},
    },
    "2-D in place, with a tape": {
        "grid": {"shape": [210, 131]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": "periodic"},
        "numerics": {"integrator": "euler"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u", "equation.F"]},
    },
    "3-D in place, layers": {
        "grid": {"shape": [61, 70, 83], "upper": [6.1, 7.0, 8.3]},
        "equation": {"name": "wave"},
        "boundary": {axis: {"cpml": {"width": 1.1, "speed": 1.0}} for axis in "xyz"},
        "numerics": {"integrator": "euler"},
    },
}
# These run in CI; the others are long.
QUICK = (
    ("3-D in place", "address,undefined"),
    ("3-D in place", "thread"),
    ("2-D in tiles, with errors", "address,undefined"),
    ("2-D in tiles, in reverse", "address,undefined"),
    ("3-D in place, a time series in reverse", "address,undefined"),
    ("3-D in place, with a tape in half precision", "address,undefined"),
)


def built(text, sanitizer, place):
    """The executable, and the environment for it. Skips if the compiler cannot build even an empty program with the sanitizer:
    not every distribution has its library."""
    source, made, empty = place / "program.cpp", place / "program", place / "empty.cpp"
    source.write_text(text)
    empty.write_text("int main() {}")
    flags = ("-std=c++17", "-march=native", "-ffp-contract=off", "-pthread", "-w", f"-fsanitize={sanitizer}")
    options = [option for option in (SANITIZERS[sanitizer],) if option]
    command = [*compiler(), *flags, *options, f"-I{SOURCES}", "-o", str(made)]
    if subprocess.run([*command, str(empty)], capture_output=True).returncode:
        pytest.skip(f"the compiler has no sanitizer {sanitizer}")
    done = subprocess.run([*command, str(source), *LIBRARIES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made, {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}


@pytest.mark.parametrize("name, sanitizer", [
    pytest.param(name, sanitizer, marks=() if (name, sanitizer) in QUICK else pytest.mark.long)
    for name in CASES for sanitizer in SANITIZERS
])  # fmt: skip
def test_a_program_is_sound_under_sanitizers(name, sanitizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("samples.npy", [1.0, 3.0, -2.0, 0.5])
    problem = problem_of(**CASES[name])
    if problem.objective:
        grid, ones = problem.config.grid, (1,) * len(problem.config.grid.shape)
        topology = Topology(grid.shape, problem.config.boundary.periodic, ones, ones, ones)
        adjoint = adjoint_of(problem, problem.initial)
        adjoint = with_tape(adjoint) if "tape" in name else adjoint
        problem = adjoint.reversing(topology, 3 if adjoint.needs_states else 1)
    made = program(problem)
    assert made.injections == 3 * len(problem.injected)
    shape, wraps = [1, 1, 1], [0, 0, 0]
    for axis, b in enumerate(AXIS_OF[len(problem.config.grid.shape)]):
        shape[b], wraps[b] = problem.config.grid.shape[axis], int(problem.config.boundary.periodic[axis])
    values = {
        "PARAMETER_VALUES": "".join(
            f"{x!r}, " for given in problem.parameters.values() for x in np.ravel(given).tolist()
        ),
        "CONSTANT_VALUES": "".join(f"{value!r}, " for value in made.constants),
        "SHAPE": f"{{{shape[0]}, {shape[1]}, {shape[2]}}}",
        "WRAPS": f"{{{wraps[0]}, {wraps[1]}, {wraps[2]}}}",
        "THREADS": "3",
        "TAPED": "half" if problem.replayed_in_half else "real",
    }
    main = MAIN
    for word, value in values.items():
        main = main.replace(word, value)
    executable, environment = built(made.text + main, sanitizer, tmp_path)
    done = subprocess.run([executable], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    assert done.stdout == f"in place: {int('in place' in name)}, finite: 1\n"
