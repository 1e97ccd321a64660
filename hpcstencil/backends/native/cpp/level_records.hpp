// What a level records of the state after its step, in the middle of a call.
#pragma once
#include "cell_samples.hpp"
#include "field_records.hpp"
#include "state_records.hpp"
#include "stencil_records.hpp"

// Whether any step of a call begins with expressions of the state before it, and whether this step of its clock does.
static bool evaluates(const Call& call) { return call.records && stencil_records; }
static bool evaluates(const Call& call, long step) { return evaluates(call) && stencil_records->number(step) >= 0; }
// What is evaluated in a call, if it is before all of these ``steps`` of a sweep.
static Evaluation evaluation_of(const Call& call, uint32_t steps = ALL_APART) {
    return evaluates(call) ? Evaluation{steps, &stencil_records->inputs} : Evaluation{0, nullptr};
}

static bool needs_whole_steps(const Call& call) {
    if (!call.records) return false;
    return samples_need_whole_steps || records_need_whole_steps || states_need_whole_steps || evaluates(call);
}
// Whether the state after a step of the call's clock is recorded, and must be stored for that. This step is then not
// joined to the next one.
static bool is_whole(const Call& call, long step) {
    if (!call.records) return false;
    return (samples_need_whole_steps && cell_samples->record(step))
           || (records_need_whole_steps && field_records->record(step))
           || (states_need_whole_steps && state_records->record(step))
           || evaluates(call, step);
}

struct LevelRecords {
    LevelCells cells;
    LevelSums sums;
    LevelStates states;

    void find(const Call& call, long step, const Pass& pass) {
        if (call.records) cells.find(step, pass), sums.find(step, pass), states.find(step, pass);
    }
    bool empty() const { return cells.entries.empty() && sums.entries.empty() && states.entries.empty(); }

    // Records what the pass has just computed, planes i .. i + at_once - 1 in ``out``; ``from`` and ``end`` bound the
    // cells wanted. read(array, n) is plane n of an array that the pass reads.
    template <class Read>
    void put(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out, Read read,
             const long from[AXES], const long end[AXES], bool non_temporal) {
        cells.put(call, pass, i, out, from, end);
        sums.add(call, pass, i, out, read, from, end);
        states.put(call, layers, pass, i, out, from, end, non_temporal);
    }
};
