// The functions that make the plan of a call (`Plan`).
#pragma once
#include <algorithm>
#include <array>

#include "blocking_plan.hpp"

void Plan::lay_out(long steps_, long sweeps_) {
    steps = steps_, sweeps = sweeps_;
    std::vector<std::array<long, 4 + EVALUATORS>> kinds;
    for (long k = 0; k < sweeps; k++) {
        const long count = steps / sweeps + (k < steps % sweeps), first = first_step(k);
        const Evaluations evaluations = evaluations_of(call, first, count);
        long apart = 0;
        for (long t = 0; t < count; t++) apart |= long(is_whole(call, first + t + 1)) << t;
        const bool begun = joins_sweeps && k && !is_whole(call, first),
                   next = joins_sweeps && k + 1 < sweeps && !is_whole(call, first + count);
        std::array<long, 4 + EVALUATORS> mine = {count, begun, next, apart};
        for (int e = 0; e < EVALUATORS; e++) mine[4 + e] = evaluations.of[e].steps;
        kind.push_back(std::find(kinds.begin(), kinds.end(), mine) - kinds.begin());
        if (kind[k] < (long)kinds.size()) continue;
        kinds.push_back(mine), pipelines.emplace_back();
        pipelines.back().lay_out(count, has_boundary(call, 0), call.section, {begun, next}, apart, evaluations);
        if (evaluates(call)) pipelines.back().widen(widest(count));
    }
}

const Pipeline& Plan::widest(int count) {
    Pipeline*& found = all_recorded[count];
    if (!found) {
        found = new Pipeline();
        found->lay_out(count, has_boundary(call, 0), call.section, {}, ALL_APART, all_evaluations(call));
    }
    return *found;
}

void Plan::fill_functions(CallMemory* memory) {
    long reach[AXES];
    for (int a = 0; a < AXES; a++) reach[a] = longest().level[0].reach[a] + longest().level[0].deep[a];
    fill_tables(call, reach, memory, tables, layers);
    fill_fixed_arrays(call, reach, memory, fixed_arrays);
    for (int e = 0; e < EVALUATORS && call.records; e++)
        if (const StencilRecords* each = stencil_records[e])
            each->evaluator->open(call, each->constants, reach, &evaluator_functions[e]);
}
