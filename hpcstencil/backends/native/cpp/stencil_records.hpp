// Expressions with stencils, recorded after given steps while many steps are taken at once: their extrema and sums over
// the grid, single cells of them, or regions.
//
// Another program, the evaluator, has the pass that computes their values (native/stencil_values.py). A level with the
// first pass of a step calls it for the state before the step: because of `Level::evaluated` the pipeline keeps the
// neighbours and the ghost cells that it reads. So the state after the last step of a call is not recorded.
#pragma once
#include "cell_samples.hpp"
#include "evaluator.hpp"
#include "field_sums.hpp"
#include "region_records.hpp"

// Either record n has ``values`` sums, from ``sums`` + n ``values`` on; or ``cells`` are recorded, whose fields are the
// values by number; or, without either, regions of the values (`RegionRecords::evaluator`).
struct StencilRecords : RecordedSteps {
    int64_t least;  // the first record that is made: the state before a call may be in an earlier one already
    FieldSum* sums;
    int64_t values;
    const CellSamples* cells;
    const Evaluator* evaluator;
    Inputs inputs;         // those of the evaluator's pass, as arrays of this program
    const int64_t* value;  // the number of the value that each field of the evaluator holds
    const double *constants, *times;  // of the evaluator, and of the records

    long number(long step) const {
        const long n = RecordedSteps::number(step);
        return n < least ? -1 : n;
    }
};

OWN inline StencilRecords* stencil_records[EVALUATORS] = {};

// Stores how many cells further beyond a block a sweep of some steps loads, per axis, if the state before each of them
// is recorded by expressions that read these inputs. There is one of them per evaluator, or null.
ENTRY void more_reach(const Inputs* const* inputs, int64_t steps, int64_t* more) {
    Pipeline &plain = *new Pipeline(), &evaluating = *new Pipeline();
    steps = min(steps, MAX_STEPS);
    plain.lay_out(steps, false, nullptr, {}, ALL_APART);
    Evaluations evaluations;
    for (int e = 0; e < EVALUATORS; e++)
        if (inputs[e]) evaluations.of[e] = {ALL_APART, inputs[e]};
    evaluating.lay_out(steps, false, nullptr, {}, ALL_APART, evaluations);
    for (int a = 0; a < AXES; a++) more[a] = evaluating.level[0].reach[a] - plain.level[0].reach[a];
    delete &plain, delete &evaluating;
}
// Whether steps can record expressions that read these inputs: fields that are stored everywhere.
ENTRY int64_t can_record_stencils(const Inputs* inputs) {
    for (const Input& each : *inputs)
        if (layers_of[each.array]) return false;
    return true;
}
// Later calls record there with the evaluator of this number, or not with it.
ENTRY void set_stencil_records(int64_t number, StencilRecords* records) { stencil_records[number] = records; }
// Later calls do not record there any more.
ENTRY void drop_stencil_records(StencilRecords* records) {
    for (StencilRecords*& each : stencil_records)
        if (each == records) each = nullptr;
}

// What a level records with an evaluator, of the state before its step.
struct LevelEvaluation {
    static constexpr long MOST = 4096;  // values of an expression that are computed before they are added
    const StencilRecords* records = nullptr;
    const EvaluatorFunctions* functions;
    FieldSum* sums;               // of the record
    real* cells;                  // of the record, if it is of cells
    std::vector<RegionRecord> regions;
    std::vector<real> scalars, made;
    std::vector<CellSums> added;  // of each result of the pass
    std::vector<long> value;      // its number
    std::vector<Rows> in, out;
    std::vector<RowRuns> runs;

    // For the first pass of a step of the call's clock.
    OWN void find(const Call& call, long step, int number, const EvaluatorFunctions& of_call);

    // Records planes i .. end - 1 before the level computes them, since it may overwrite what it reads. ``from`` and
    // ``to`` bound the cells wanted. read(array, n) is plane n of an array that the level reads.
    OWN void record(const Call& call, long i, long end, const long from[AXES], const long to[AXES], Reader<int> read);

    void compute(const Variant& whole, long n, long j, long x0, long x1) {
        whole.compute({scalars.data() + whole.scalars, functions->tables, n}, in.data(), out.data(), j, j + 1, x0, x1);
    }

    void add_plane(const Variant& whole, long n, const long from[AXES], const long to[AXES]) {
        const long width = to[2] - from[2], room = max(MOST, width), pitch = room + LANES;  // rows end in whole vectors
        made.resize(out.size() * pitch);
        long held = 0;
        for (long j = from[1]; j < to[1]; j++) {
            if (held + width > room) flush(pitch, held);
            for (size_t o = 0; o < out.size(); o++) out[o] = {made.data() + o * pitch + held - from[2], 0};
            compute(whole, n, j, from[2], to[2]);
            held += width;
        }
        flush(pitch, held);
    }
    void flush(long pitch, long& held) {
        for (size_t o = 0; o < added.size(); o++) added[o].add_row(made.data() + o * pitch, held);
        held = 0;
    }

    void put_regions(const Call& call, const Variant& whole, long n, const long from[AXES], const long to[AXES]) {
        const long pitch = to[2] - from[2] + LANES, plane = home(call, n);
        made.resize(out.size() * pitch);
        for (size_t o = 0; o < out.size(); o++) out[o] = {made.data() + o * pitch - from[2], 0};
        for (long j = from[1]; j < to[1]; j++) {
            bool computed = false;
            for (const RegionRecord& each : regions) {
                if (!each.region->has(plane, j)) continue;
                if (!computed) compute(whole, n, j, from[2], to[2]), computed = true;
                for (size_t o = 0; o < out.size(); o++)
                    if (value[o] == each.region->field) each.put(call, plane, j, out[o].p, from[2], to[2]);
            }
        }
    }

    // Whether cells in rows j0 .. j1 - 1 of a plane are recorded.
    bool has_cells(const Call& call, long n, long j0, long j1) const {
        for (long v : value) {
            const int64_t* begin = records->cells->begin[v];
            if (!begin || j0 >= j1) continue;
            const int64_t* row = begin + home(call, n) * call.count[1];
            if (row[j0] < row[j1]) return true;
        }
        return false;
    }
    void put_cells(const Call& call, const Variant& whole, long n, const long from[AXES], const long to[AXES]) {
        constexpr long pitch = 2 * LANES;
        made.resize(out.size() * pitch);
        for (long j = from[1]; j < to[1]; j++) {
            for (size_t o = 0; o < out.size(); o++)
                if (records->cells->begin[value[o]])
                    runs[o].find(*records->cells, value[o], call, n, j, from[2], to[2]);
            each_vectors(runs.data(), runs.size(), [&](long v0, long v1) {
                for (size_t o = 0; o < out.size(); o++) out[o] = {made.data() + o * pitch - v0, 0};
                compute(whole, n, j, v0, v1);
                for (size_t o = 0; o < out.size(); o++) runs[o].put(cells, made.data() + o * pitch - v0, v0, v1);
            });
        }
    }

    // Adds the sums of this thread's cells to the record.
    OWN void end();
};

// What a level records of expressions.
struct LevelStencils {
    LevelEvaluation of[EVALUATORS];

    // For a level with the pass of this number in a step of the call's clock.
    void find(const Call& call, long step, int number, const EvaluatorFunctions functions[EVALUATORS]) {
        for (int e = 0; e < EVALUATORS && call.records && !number; e++) of[e].find(call, step, e, functions[e]);
    }
    void record(const Call& call, long i, long end, const long from[AXES], const long to[AXES], Reader<int> read) {
        for (LevelEvaluation& each : of)
            if (each.records) each.record(call, i, end, from, to, read);
    }
    void end() {
        for (LevelEvaluation& each : of)
            if (each.records) each.end();
    }
};
