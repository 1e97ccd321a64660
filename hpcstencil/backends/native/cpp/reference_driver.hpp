// The reference driver, for tests: plain loops over steps, passes and cells on whole arrays, without tiles, threads or
// steps in place. It supports only undecomposed grids. One set holds the arrays of a step, another the fields of the
// next step.
#include "chosen_steps.hpp"
#include "ghosts.hpp"
#include "injection.hpp"
#include "step_arrays.hpp"

struct Reference {
    const Call& call;
    Matrix<long> needed{ARRAYS, AXES};  // cells of an array that passes read beyond the grid
    Matrix<long> extent{PASSES, AXES};  // cells beyond the grid that a pass computes, of arrays that are deep
    long stride[AXES] = {0, 0, 1};
    long offset;  // of cell (0, 0, 0) in an array's memory
    Matrix<real*> origin{2, ARRAYS};
    Matrix<real> scalars{2, SCALARS + 1};  // of this step and of the next
    List<const real*> tables{TABLES};
    FixedArrays fixed_arrays;

    explicit Reference(const Call& call) : call(call) {
        long most[AXES] = {};
        for (int p = PASSES - 1; p >= 0; p--)
            for (int a = 0; a < AXES; a++) {
                for (int o = 0; o < passes[p].outputs; o++)
                    if (int array = passes[p].output[o]; arrays[array].deep && call.boundary[a][0])
                        extent[p][a] = max(extent[p][a], needed[array][a]);
                for (int n = 0; n < passes[p].inputs; n++) {
                    const Input& input = passes[p].input[n];
                    needed[input.array][a] = max(needed[input.array][a], extent[p][a] + input.reach[a]);
                    most[a] = max(most[a], needed[input.array][a]);
                }
            }
        long before = round_up(most[2], LANES) + LANES;
        stride[1] = before + round_up(call.count[2] + most[2], LANES) + 2 * LANES;
        stride[0] = (call.count[1] + 2 * most[1]) * stride[1];
        long cells = (call.count[0] + 2 * most[0] + 2 * AT_ONCE) * stride[0];
        offset = most[0] * stride[0] + most[1] * stride[1] + before;
        for (int set = 0; set < 2; set++)
            for (int n = 0; n < ARRAYS; n++) origin[set][n] = (real*)calloc(cells, sizeof(real)) + offset;
    }
    ~Reference() {
        for (int set = 0; set < 2; set++)
            for (int n = 0; n < ARRAYS; n++) free(origin[set][n] - offset);
    }

    template <class Row>
    void each_row(Row row) const {
        for (long i = 0; i < call.count[0]; i++)
            for (long j = 0; j < call.count[1]; j++)
                row((i * call.count[1] + j) * call.count[2], i * stride[0] + j * stride[1]);
    }

    // Fills the ghost cells of an array axis by axis; later axes include the ghost cells of earlier ones. The final
    // value of a field in this step has the field's boundary conditions at the time of the next step.
    void fill_ghosts(real* const* set, int n) const {
        int array = n, next_step = 0;
        for (int f = 0; f < FIELDS; f++)
            if (ends[f] == n && n >= FIELDS) array = f, next_step = 1;
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2; side++)
                for (long k = 1; k <= needed[n][a]; k++) {
                    const Face& face = arrays[array].face[a][side];
                    long count = call.count[a], lo[AXES], hi[AXES];
                    Mirrored at = call.wraps[a]
                                      ? Mirrored{side ? count + k - 1 : -k, modulo(side ? k - 1 : -k, count), k}
                                      : mirrored(face, side, count, k);
                    if (!call.wraps[a] && (arrays[n].deep || !face.fill)) continue;
                    for (int b = 0; b < AXES; b++) lo[b] = b < a ? -needed[n][b] : 0, hi[b] = call.count[b] - lo[b];
                    lo[a] = at.ghost, hi[a] = at.ghost + 1;
                    for (long i = lo[0]; i < hi[0]; i++) fill_plane(set, n, face, next_step, a, side, at, i, lo, hi);
                }
    }

    void fill_plane(real* const* set, int n, const Face& face, int next_step, int a, int side, Mirrored at, long i,
                    const long* lo, const long* hi) const {
        real *ghost = set[n] + i * stride[0] + (a == 2 ? at.ghost : 0),
             *mirror = ghost + (at.mirror - at.ghost) * stride[a];
        Rows next[FIELDS + 1];
        for (int m = 0; m < face.nexts && !call.wraps[a]; m++) {
            int beside = next_step ? ends[face.next[m]] : face.next[m];
            long inner = side ? call.count[a] - 1 : 0;
            next[m] = {set[beside] + (a ? i * stride[0] : 0) + inner * stride[a], a == 1 ? 0 : stride[1]};
        }
        Place place = {scalars[next_step] + face.scalars, tables.data(), i};
        for (long j = lo[1]; j < hi[1]; j++)
            if (call.wraps[a]) copy(ghost + j * stride[1], mirror + j * stride[1], a == 2 ? 1 : call.count[2]);
            else
                face.fill(place, ghost, mirror, stride[1], next, at.k, j, j + 1, 0,
                          a == 2 ? 1 : round_up(call.count[2], LANES));
    }

    void compute(int p, real* const* set, long step) const {
        const Pass& pass = passes[p];
        for (int n = 0; n < pass.inputs; n++) fill_ghosts(set, pass.input[n].array);
        const Variant& whole = pass.whole();
        const long* more = extent[p];
        Rows in[PLANES], out[PLANES];
        Injected added;
        added.find(call, step, pass);
        StepInputs inputs;
        inputs.find(call, fixed_arrays, step);
        for (long i = -more[0]; i < call.count[0] + more[0]; i += whole.at_once) {
            for (int n = 0; n < whole.planes; n++) {
                const Plane& plane = whole.plane[n];
                if (plane.input >= 0)
                    in[n] = {set[pass.input[plane.input].array] + (i + plane.offset) * stride[0], stride[1]};
                else in[n] = inputs.at(plane, i);
            }
            for (int n = 0; n < pass.outputs * whole.at_once; n++)
                out[n] = {set[pass.output[n % pass.outputs]] + (i + n / pass.outputs) * stride[0], stride[1]};
            Place place = {scalars[0] + whole.scalars, tables.data(), i};
            for (long j = -more[1]; j < call.count[1] + more[1]; j++)
                for (long x = round_down(-more[2], LANES); x < call.count[2] + more[2]; x += LANES)
                    whole.compute(place, in, out, j, j + 1, x, x + LANES);
            added.add(call, pass, i, whole.at_once, out, -more[1], call.count[1] + more[1], -more[2],
                      call.count[2] + more[2]);
        }
    }

    void run() {
        CallMemory* memory = borrow();
        Pipeline* one_step = new Pipeline();
        one_step->lay_out(1, has_boundary(call, 0));
        Layers unused;
        long reach[AXES];
        for (int a = 0; a < AXES; a++) reach[a] = one_step->level[0].reach[a] + one_step->level[0].deep[a];
        fill_tables(call, reach, memory, tables, unused);
        fill_fixed_arrays(call, reach, memory, fixed_arrays);
        real **now = origin[0], **next = origin[1];
        for (int f = 0; f < FIELDS; f++)
            each_row([&](long from, long to) { copy(now[f] + to, (const real*)call.fields[f] + from, call.count[2]); });
        for (long t = 0; t < (long)call.clock[3]; t++) {
            for (int n = 0; n < 2; n++)
                prepare(call.parameters, call.constants, call.clock[0], call.clock[1] + t + n, call.clock[2],
                        scalars[n]);
            for (int p = 0; p < PASSES; p++) compute(p, now, call.clock[1] + t);
            for (int f = 0; f < FIELDS; f++)
                each_row([&](long, long row) { copy(next[f] + row, now[ends[f]] + row, call.count[2]); });
            real** swapped = now;
            now = next, next = swapped;
        }
        vec differences = {};
        for (int f = 0; f < FIELDS; f++)
            each_row([&](long to, long from) {
                store_result((real*)call.results[f] + to, now[f] + from, call.count[2], false, differences);
            });
        check_finite(differences);
        delete one_step;
        give_back(memory);
    }
};

// As in driver.hpp.
ENTRY int64_t stored_not_finite() { return __atomic_exchange_n(&not_finite, 0, __ATOMIC_RELAXED); }

static int64_t take_steps(const Call& call) {
    bool whole = !needs_ghosts(call) && !call.section && !call.edges;
    for (int a = 0; a < AXES; a++) whole = whole && call.capacity[a] == call.count[a];
    if (!whole) abort();  // for tests of whole grids
    Reference* reference = new Reference(call);
    reference->run();
    delete reference;
    return 0;
}

ENTRY int64_t advance(const Call* call) { return and_chosen_steps(*call, take_steps); }
