// What the recorders of cells, of sums and of whole states share: after which steps they record, which results of a
// pass are the fields then, and which of its planes are wanted.
#pragma once
#include "layers.hpp"

// The state after step n of the run goes to record n / every - first, if n is a multiple of ``every`` and there is room
// for it. Step 0 of a call's clock is step ``origin`` of the run. In an ensemble a record has a row for each member.
struct RecordedSteps {
    int64_t every, origin, first, records;

    // The number of the record of the state after a step of the call's clock; -1 if it is not recorded.
    long number(long step) const {
        const long now = origin + step, n = now / every - first;
        return now % every == 0 && n >= 0 && n < records ? n : -1;
    }
    // The row of a record for the member of a call.
    static long row(const Call& call, long number) { return number * max(1, call.members) + call.member; }
};

static inline bool stores(const Pass& pass, int array) {
    for (int o = 0; o < pass.outputs; o++)
        if (pass.output[o] == array) return true;
    return false;
}

// Whether the pass that joins a step to the next one does not store one of the ``wanted`` fields between them.
template <class Wanted>
static bool is_lost_between_steps(Wanted wanted) {
    for (int f = 0; f < GIVEN && JOINS_STEPS; f++)
        if (wanted(f) && !stores(passes[PASSES], ends[f])) return true;
    return false;
}

// Calls body(o, f, later) for each output o of a pass that is field f after this step (0), or after the next one (1).
template <class Body>
static void each_field_made(const Pass& pass, Body body) {
    for (int o = 0; o < pass.outputs; o++) {
        const int later = pass.output[o] >= ARRAYS;
        for (int f = 0; f < GIVEN; f++)
            if (ends[f] == pass.output[o] - later * ARRAYS) body(o, f, later);
    }
}

// Calls body(n, rows) for each plane n, from ``from`` to ``end``, of an output that a pass has just computed in planes
// i .. i + at_once - 1 of ``out``.
template <class Body>
static void each_plane_made(const Pass& pass, int output, long i, const Rows* out, long from, long end, Body body) {
    for (long n = max(i, from); n < min(i + pass.at_once, end); n++) body(n, out[output + (n - i) * pass.outputs]);
}
