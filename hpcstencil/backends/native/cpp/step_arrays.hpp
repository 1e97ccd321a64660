// Arrays of which each step has its own: states and values that a call stores after its steps, and values that the
// passes of a step read.
#pragma once
#include <algorithm>

#include "coordinate_tables.hpp"
#include "prefetch.hpp"

// For each of ``steps``, ascending steps of a call's clock, some arrays of the caller's block. The n-th array of each
// step has planes[n] cells from one plane to the next, and pitches[n] from one row to the next. Each of its
// numbers takes bytes[n] bytes, which says whether it is in half precision (half.hpp).
struct StepArrays {
    int64_t count;
    const int64_t* steps;
    void* const* arrays;
    const int64_t *planes, *pitches, *bytes;

    // The arrays of a step, which has ``each`` of them; null if it has none.
    void* const* of(long step, long each) const {
        const int64_t* found = std::lower_bound(steps, steps + count, step);
        return found < steps + count && *found == step ? arrays + (found - steps) * each : nullptr;
    }
};

OWN inline StepArrays* replayed = nullptr;

// Passes of later calls read these arrays, REPLAYED in each step. They have the cells of other blocks that the steps
// between two exchanges compute, and room for a few planes before and behind these.
ENTRY void set_replayed(StepArrays* arrays) { replayed = arrays; }

// What the passes of a step read besides its arrays: functions of coordinates, and the arrays of this step.
struct StepInputs {
    const FixedArrays* fixed = nullptr;
    void* const* arrays = nullptr;
    const Call* call = nullptr;

    void find(const Call& of, const FixedArrays& fixed_arrays, long step) {
        call = &of, fixed = &fixed_arrays, arrays = REPLAYED ? replayed->of(step, REPLAYED) : nullptr;
    }
    // What a pass that computes plane i reads. Row m of a call is row m * rows of plane i + m * planes; arrays of the
    // step have it ``wrapped`` rows further up. The pass knows whether these are in half precision.
    Rows at(const Plane& read, long i, long planes = 0, long rows = 1, long wrapped = 0) const {
        if (read.input > OF_STEP)
            return {fixed->at(read, i).p, planes * fixed->plane + rows * fixed->pitch};
        const int n = OF_STEP - read.input;
        const long pitch = replayed->pitches[n], plane = replayed->planes[n];
        const long first = home(*call, i + read.offset) * plane + wrapped * pitch;
        return {(real*)((char*)arrays[n] + first * replayed->bytes[n]), planes * plane + rows * pitch};
    }
    // Has rows j0 .. j1 - 1 of planes i0 .. i1 - 1 prefetched, of the arrays of this step that a pass reads.
    void prefetch(Prefetch& upcoming, const Pass& pass, long i0, long i1, long j0, long j1) const {
        const Variant& whole = pass.whole();
        for (int p = 0; p < whole.planes && arrays; p++)
            for (long i = i0; i < i1 && whole.plane[p].input <= OF_STEP; i += pass.at_once) {
                const Rows row = at(whole.plane[p], i);
                const long bytes = replayed->bytes[OF_STEP - whole.plane[p].input], pitch = row.pitch * bytes;
                upcoming.add_bytes((const char*)row.p + j0 * pitch, call->count[2] * bytes, j1 - j0, pitch);
            }
    }
};
