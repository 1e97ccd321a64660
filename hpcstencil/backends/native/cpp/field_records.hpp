// The extrema and sums of fields after given steps, recorded while many steps are taken at once.
#pragma once
#include "cell_samples.hpp"
#include "field_sums.hpp"
#include "state_records.hpp"

// Record n has GIVEN sums, from ``sums`` + n GIVEN on. Its number is that of `CellSamples::record`.
struct FieldRecords {
    int64_t every, origin, first, records;
    FieldSum* sums;

    // The record of the state after a step of the call's clock; null if it is not recorded.
    FieldSum* record(long step) const {
        long now = origin + step, n = now / every - first;
        return now % every == 0 && n >= 0 && n < records ? sums + n * GIVEN : nullptr;
    }
};

static FieldRecords* field_records = nullptr;
static bool records_need_whole_steps = false;

// Later calls record there, or nowhere.
extern "C" void set_field_records(FieldRecords* records) {
    field_records = records, records_need_whole_steps = false;
    for (int f = 0; f < GIVEN && records; f++)
        if (records->sums[f].wanted && !stored_between_steps(f)) records_need_whole_steps = true;
}
// Later calls do not record there any more.
extern "C" void drop_field_records(FieldRecords* records) {
    if (field_records == records) set_field_records(nullptr);
}

// Whether each of the first GIVEN fields can be recorded: whether passes compute its values after a step, ``everywhere``
// or only in absorbing layers.
extern "C" void find_recordable(int64_t* recordable, int64_t everywhere) {
    for (int f = 0; f < GIVEN; f++) {
        recordable[f] = false;
        for (int p = 0; p < PASSES && !(everywhere && layers_of[ends[f]]); p++)
            if (stores(passes[p], ends[f])) recordable[f] = true;
    }
}

static bool needs_whole_steps() {
    return samples_need_whole_steps || records_need_whole_steps || states_need_whole_steps;
}
// Whether the state after a step of the call's clock is recorded, and must be stored for that. This step is then not
// joined to the next one.
static bool is_whole(long step) {
    return (samples_need_whole_steps && cell_samples->record(step))
           || (records_need_whole_steps && field_records->record(step))
           || (states_need_whole_steps && state_records->record(step));
}

// What a level records of the fields that it makes.
struct LevelSums {
    struct Entry {
        int output;
        FieldSum* to;
        CellSums cells;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        for (int later = 0; later < 2 && field_records; later++) {
            FieldSum* record = field_records->record(step + later + 1);
            for (int o = 0; o < pass.outputs && record; o++)
                for (int f = 0; f < GIVEN; f++) {
                    if (!record[f].wanted || pass.output[o] != ends[f] + later * ARRAYS) continue;
                    entries.push_back({o, record + f, {}});
                    entries.back().cells.begin(record[f]);
                }
        }
    }

    // Adds what a pass has just computed, planes i .. i + at_once - 1 in ``out``; ``from`` and ``end`` bound the cells
    // wanted.
    void add(const Pass& pass, long i, const Rows* out, const long from[AXES], const long end[AXES]) {
        for (Entry& each : entries)
            for (long n = max(i, from[0]); n < min(i + pass.at_once, end[0]); n++) {
                const Rows& made = out[each.output + (n - i) * pass.outputs];
                for (long j = from[1]; j < end[1]; j++)
                    each.cells.add_row(made.p + j * made.pitch + from[2], end[2] - from[2]);
            }
    }

    // Adds the sums of this thread's cells to the records.
    void end() {
        for (Entry& each : entries) each.cells.add_to(*each.to);
        entries.clear();
    }
};
