// The extrema and sums of expressions with stencils, after given steps, recorded while many steps are taken at once.
//
// Another program, the evaluator, has the pass that computes their values (native/stencil_values.py). A level with the
// first pass of a step calls it for the state before the step: because of `Level::evaluated` the pipeline keeps the
// neighbours and the ghost cells that it reads. So the state after the last step of a call is not recorded.
#pragma once
#include "cell_samples.hpp"
#include "field_sums.hpp"

struct Evaluator {
    const Pass* pass;
    void (*prepare)(const double*, const double*, double, double, double, real*);
    const int* field_of;
    int64_t scalars;
};

// The only pass of this program, which reads no tables and no fixed arrays, as an evaluator for other programs.
extern "C" void find_evaluator(Evaluator* found) { *found = {passes, prepare, field_of, SCALARS}; }

// Record n has ``values`` sums, from ``sums`` + n ``values`` on.
struct StencilRecords : RecordedSteps {
    FieldSum* sums;
    int64_t values;
    const Evaluator* evaluator;
    Inputs inputs;         // those of the evaluator's pass, as arrays of this program
    const int64_t* value;  // the number of the value that each field of the evaluator holds
    const double *constants, *times;  // of the evaluator, and of the records
};

static StencilRecords* stencil_records = nullptr;

// Stores how many cells further beyond a block a sweep of some steps loads, per axis, if the state before each of them
// is recorded by expressions that read these inputs.
extern "C" void more_reach(const Inputs* inputs, int64_t steps, int64_t* more) {
    Pipeline &plain = *new Pipeline(), &evaluating = *new Pipeline();
    steps = min(steps, MAX_STEPS);
    plain.lay_out(steps, false, nullptr, {}, ALL_APART);
    evaluating.lay_out(steps, false, nullptr, {}, ALL_APART, {ALL_APART, inputs});
    for (int a = 0; a < AXES; a++) more[a] = evaluating.level[0].reach[a] - plain.level[0].reach[a];
    delete &plain, delete &evaluating;
}
// Whether steps can record expressions that read these inputs: fields that are stored everywhere.
extern "C" int64_t can_record_stencils(const Inputs* inputs) {
    for (const Input& each : *inputs)
        if (layers_of[each.array]) return false;
    return true;
}
// Later calls record there, or nowhere.
extern "C" void set_stencil_records(StencilRecords* records) { stencil_records = records; }
// Later calls do not record there any more.
extern "C" void drop_stencil_records(StencilRecords* records) {
    if (stencil_records == records) stencil_records = nullptr;
}

// The sums to which a level adds the values of the state before its step.
struct LevelStencils {
    static constexpr long MOST = 4096;  // values of an expression that are computed before they are added
    const StencilRecords* records = nullptr;
    FieldSum* to;
    std::vector<real> scalars, made;
    std::vector<CellSums> cells;  // of each result of the pass
    std::vector<long> value;      // its number
    std::vector<Rows> in, out;

    // For a level with the pass of this number in a step of the call's clock.
    void find(const Call& call, long step, int number) {
        if (!call.records || !stencil_records || number) return;
        const long n = stencil_records->number(step);
        if (n < 0) return;
        records = stencil_records;
        const Evaluator& evaluator = *records->evaluator;
        to = records->sums + n * records->values;
        scalars.resize(evaluator.scalars + 1);
        evaluator.prepare(call.parameters, records->constants, records->times[n], 0, 1, scalars.data());
        const Variant& whole = evaluator.pass->whole();
        in.resize(whole.planes), out.resize(whole.outputs);
        cells.resize(whole.outputs), value.resize(whole.outputs);
        for (int o = 0; o < whole.outputs; o++) {
            value[o] = records->value[evaluator.field_of[evaluator.pass->output[whole.output[o]]]];
            cells[o].begin(to[value[o]]);
        }
    }

    // Adds the values in planes i .. end - 1, before the level computes them, since it may overwrite what it reads.
    // ``from`` and ``to`` bound the cells wanted. read(array, n) is plane n of an array that the level reads.
    template <class Read>
    void add(long i, long end, const long from[AXES], const long to[AXES], Read read) {
        if (!records) return;
        const Variant& whole = records->evaluator->pass->whole();
        const long width = to[2] - from[2], room = max(MOST, width), pitch = room + LANES;  // rows end in whole vectors
        made.resize(out.size() * pitch);
        for (long n = max(i, from[0]); n < min(end, to[0]); n++) {
            for (int p = 0; p < whole.planes; p++)
                in[p] = read(records->inputs.input[whole.plane[p].input].array, n + whole.plane[p].offset);
            long held = 0;
            for (long j = from[1]; j < to[1]; j++) {
                if (held + width > room) flush(pitch, held);
                for (size_t o = 0; o < out.size(); o++) out[o] = {made.data() + o * pitch + held - from[2], 0};
                whole.compute({scalars.data() + whole.scalars, nullptr, n}, in.data(), out.data(), j, j + 1, from[2],
                              to[2]);
                held += width;
            }
            flush(pitch, held);
        }
    }
    void flush(long pitch, long& held) {
        for (size_t o = 0; o < cells.size(); o++) cells[o].add_row(made.data() + o * pitch, held);
        held = 0;
    }

    // Adds the sums of this thread's cells to the record.
    void end() {
        for (size_t o = 0; o < cells.size(); o++) cells[o].add_to(to[value[o]]);
        cells.clear();
    }
};
