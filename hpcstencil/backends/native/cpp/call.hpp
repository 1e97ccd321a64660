// The arguments of a call of a program. The bridge (xla_bridge.cpp) and speed_probe.py fill them.
#pragma once
#include <stdint.h>

#define AXES 3

struct Call {
    const void* const* fields;  // FIELDS arrays of ``capacity`` cells; the first GIVEN are read
    const void* const* ghosts;  // per axis the lower and upper strips of all fields; null if not received
    void* const* results;
    const double* parameters;
    const double* constants;
    const double* const* coordinates;  // per axis, with ``margin`` more on both sides
    const double* clock;               // time at step 0, first step, step size, number of steps
    int64_t capacity[AXES], count[AXES], margin[AXES], width[AXES];
    int32_t wraps[AXES], boundary[AXES][2];
    // l2_bytes: of the second-level cache. l3_is_far: whether the third is a server's mesh. l3_bytes: a core's share of
    // it, 0 if unknown.
    int64_t threads, l2_bytes, l3_is_far, l3_bytes;
    struct EdgeExchange* edges;  // null where no edges are exchanged inside the passes
    int64_t every;               // steps between two exchanges of edges
    // Null for whole steps. For a section of a step: its first pass, the pass after its last, the numbers of input and
    // output arrays, and the indices of these arrays. ``fields`` and ``results`` are then these arrays.
    const int64_t* section;
    // Null, or for an attempted step the words of each error's sum (error_sums.hpp), to which the call adds. The errors
    // themselves, the last arrays of ``results``, are then not stored.
    int64_t* error_sums;
    int64_t records;  // whether the recorders that are set (`set_cell_samples` and others) are for this call
    int64_t member, members;  // the number of the member of an ensemble, and their count; 0 for a single run
};
