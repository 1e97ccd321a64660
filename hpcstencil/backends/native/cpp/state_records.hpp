// Whole states after given steps, stored while many steps are taken at once: those from which a reverse sweep begins.
#pragma once
#include "copy.hpp"
#include "recorded_steps.hpp"
#include "step_arrays.hpp"

// The states after steps: GIVEN arrays each, null for fields that are not stored.
OWN inline StepArrays* state_records = nullptr;
OWN inline bool states_need_whole_steps = false;

// Whether the pass that joins a step to the next one does not store all that is wanted after a step.
static bool state_is_lost(long step) {
    void* const* wanted = state_records ? state_records->of(step, GIVEN) : nullptr;
    return wanted && is_lost_between_steps([&](int f) { return wanted[f] != nullptr; });
}

// Later calls store states there, or nowhere.
ENTRY void set_state_records(StepArrays* records) {
    state_records = records;
    states_need_whole_steps = false;
    for (int64_t n = 0; records && n < records->count; n++) states_need_whole_steps |= state_is_lost(records->steps[n]);
}

// What a level stores of the fields that it makes.
struct LevelStates {
    struct Entry {
        int output, field;
        char* to;
        long plane, pitch, bytes;  // bytes: of a number, fewer in half precision (half.hpp)
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        void* const* after[2] = {};
        for (long n = 0; n < 2 && state_records; n++) after[n] = state_records->of(step + n + 1, GIVEN);
        each_field_made(pass, [&](int o, int f, int later) {
            if (after[later] && after[later][f])
                entries.push_back({o, f, (char*)after[later][f], state_records->planes[f], state_records->pitches[f],
                                   state_records->bytes[f]});
        });
    }

    // Stores what the pass has just computed, see `LevelRecords`.
    void put(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES], bool non_temporal) const {
        for (const Entry& each : entries)
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long n, const Rows& made) {
                char* plane = each.to + home(call, n) * each.plane * each.bytes;
                for (bool zero : {true, false})
                    layers.each_piece(each.field, zero, n, from[1], end[1], from[2], end[2],
                                      [&](long j0, long j1, long x0, long x1) {
                                          for (long j = j0; j < j1; j++) {
                                              char* row = plane + (j * each.pitch + x0) * each.bytes;
                                              const real* cells = made.p + j * made.pitch + x0;
                                              if (zero) memset(row, 0, max(0, x1 - x0) * each.bytes);
                                              else if (each.bytes < long(sizeof(real)))
                                                  copy_out((half*)row, cells, x1 - x0, non_temporal);
                                              else copy_out((real*)row, cells, x1 - x0, non_temporal);
                                          }
                                      });
            });
    }
};
