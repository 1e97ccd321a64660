// Whole states after given steps, stored while many steps are taken at once: those from which a reverse sweep begins.
#pragma once
#include <algorithm>

#include "copy.hpp"
#include "recorded_steps.hpp"

// The states after ``steps``, ascending steps of the call's clock. Each is GIVEN arrays of ``fields`` with the shape of
// the caller's arrays; null for fields that are not stored.
struct StateRecords {
    int64_t count;
    const int64_t* steps;
    void* const* fields;

    // The arrays of the state after a step; null if it is not stored.
    void* const* record(long step) const {
        const int64_t* found = std::lower_bound(steps, steps + count, step);
        return found < steps + count && *found == step ? fields + (found - steps) * GIVEN : nullptr;
    }
};

static StateRecords* state_records = nullptr;
static bool states_need_whole_steps = false;

// Later calls store states there, or nowhere.
extern "C" void set_state_records(StateRecords* records) {
    state_records = records;
    states_need_whole_steps =
        records && records->count && is_lost_between_steps([&](int f) { return records->fields[f] != nullptr; });
}

// What a level stores of the fields that it makes.
struct LevelStates {
    struct Entry {
        int output, field;
        real* to;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        void* const* after[2] = {};
        for (long n = 0; n < 2 && state_records; n++) after[n] = state_records->record(step + n + 1);
        each_field_made(pass, [&](int o, int f, int later) {
            if (after[later] && after[later][f]) entries.push_back({o, f, (real*)after[later][f]});
        });
    }

    // Stores what the pass has just computed, see `LevelRecords`.
    void put(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES], bool non_temporal) const {
        for (const Entry& each : entries)
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long n, const Rows& made) {
                real* plane = each.to + home(call, n) * call.capacity[1] * call.capacity[2];
                for (bool zero : {true, false})
                    layers.each_piece(each.field, zero, n, from[1], end[1], from[2], end[2],
                                      [&](long j0, long j1, long x0, long x1) {
                                          for (long j = j0; j < j1; j++) {
                                              real* row = plane + j * call.capacity[2];
                                              const real* cells = made.p + j * made.pitch;
                                              if (zero) Layers::clear(row, x0, x1);
                                              else copy_out(row + x0, cells + x0, x1 - x0, non_temporal);
                                          }
                                      });
            });
    }
};
