// Whole states after given steps, stored while many steps are taken at once: those from which a reverse sweep begins.
#pragma once
#include <algorithm>

#include "cell_samples.hpp"

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
    state_records = records, states_need_whole_steps = false;
    for (int f = 0; f < GIVEN && records && records->count; f++)
        if (records->fields[f] && !stored_between_steps(f)) states_need_whole_steps = true;
}

// What a level stores of the fields that it makes.
struct LevelStates {
    struct Entry {
        int output, field;
        real* to;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        for (int later = 0; later < 2 && state_records; later++) {
            void* const* record = state_records->record(step + later + 1);
            for (int o = 0; o < pass.outputs && record; o++)
                for (int f = 0; f < GIVEN; f++)
                    if (record[f] && pass.output[o] == ends[f] + later * ARRAYS)
                        entries.push_back({o, f, (real*)record[f]});
        }
    }

    // Stores what a pass has just computed, planes i .. i + at_once - 1 in ``out``; ``from`` and ``end`` bound the cells
    // wanted.
    void put(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES], bool non_temporal) const {
        for (const Entry& each : entries)
            for (long n = max(i, from[0]); n < min(i + pass.at_once, end[0]); n++) {
                const Rows& made = out[each.output + (n - i) * pass.outputs];
                real* plane = each.to + home(call, n) * call.capacity[1] * call.capacity[2];
                auto rows = [&](bool zero, auto body) {
                    layers.each_piece(each.field, zero, n, from[1], end[1], from[2], end[2],
                                      [&](long j0, long j1, long x0, long x1) {
                                          for (long j = j0; j < j1; j++) body(plane + j * call.capacity[2], j, x0, x1);
                                      });
                };
                rows(true, [&](real* row, long, long x0, long x1) { Layers::clear(row, x0, x1); });
                rows(false, [&](real* row, long j, long x0, long x1) {
                    copy_out(row + x0, made.p + j * made.pitch + x0, x1 - x0, non_temporal);
                });
            }
    }
};
