// What a level records of the state after its step, in the middle of a call.
#pragma once
#include "cell_samples.hpp"
#include "field_records.hpp"
#include "state_records.hpp"
#include "stencil_records.hpp"

// Whether any step of a call begins with expressions of the state before it, and whether this step of its clock does.
static bool evaluates(const Call& call) {
    for (const StencilRecords* each : stencil_records)
        if (call.records && each) return true;
    return false;
}
static bool evaluates(const Call& call, long step) {
    for (const StencilRecords* each : stencil_records)
        if (call.records && each && each->number(step) >= 0) return true;
    return false;
}
// What is evaluated in a call if all steps are recorded.
static Evaluations all_evaluations(const Call& call) {
    Evaluations found;
    for (int e = 0; e < EVALUATORS && call.records; e++)
        if (stencil_records[e]) found.of[e] = {ALL_APART, &stencil_records[e]->inputs};
    return found;
}
// What is evaluated in a sweep over ``count`` steps of the call's clock.
static Evaluations evaluations_of(const Call& call, long first, long count) {
    Evaluations found = all_evaluations(call);
    for (int e = 0; e < EVALUATORS; e++) {
        found.of[e].steps = 0;
        for (long t = 0; t < count && found.of[e].inputs; t++)
            found.of[e].steps |= uint32_t(stencil_records[e]->number(first + t) >= 0) << t;
    }
    return found;
}
// A number for what may be evaluated in a call; 0 if nothing is.
static long hash_of_inputs(const Call& call) {
    unsigned long hash = 0;
    for (const Evaluation& each : all_evaluations(call).of) hash = 3 * hash + (each.inputs ? each.inputs->hash() : 0);
    return hash;
}

static bool needs_whole_steps(const Call& call) {
    if (!call.records) return false;
    return samples_need_whole_steps || records_need_whole_steps || states_need_whole_steps || regions_need_whole_steps
           || evaluates(call);
}
// Whether the state after a step of the call's clock is recorded, and must be stored for that. This step is then not
// joined to the next one.
static bool is_whole(const Call& call, long step) {
    if (!call.records) return false;
    return (samples_need_whole_steps && cell_samples->number(step) >= 0)
           || (records_need_whole_steps && records_fields(step))
           || (states_need_whole_steps && state_is_lost(step))
           || (regions_need_whole_steps && records_regions(step))
           || evaluates(call, step);
}

struct LevelRecords {
    LevelCells cells;
    LevelSums sums;
    LevelStates states;
    LevelRegions regions;

    OWN void find(const Call& call, long step, const Pass& pass);
    bool empty() const {
        return cells.entries.empty() && sums.entries.empty() && states.entries.empty() && regions.entries.empty();
    }

    // Records what the pass has just computed, planes i .. i + at_once - 1 in ``out``; ``from`` and ``end`` bound the
    // cells wanted. read(array, n) is plane n of an array that the pass reads.
    void put(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out, Reader<int> read,
             const long from[AXES], const long end[AXES], bool non_temporal) {
        if (!empty()) put_all(call, layers, pass, i, out, read, from, end, non_temporal);
    }
    OWN void end();  // adds the sums of this thread's cells to the records

   private:
    OWN void put_all(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out,
                     Reader<int> read, const long from[AXES], const long end[AXES], bool non_temporal);
};
