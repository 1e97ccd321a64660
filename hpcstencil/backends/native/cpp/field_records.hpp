// The extrema and sums of fields after given steps, recorded while many steps are taken at once.
#pragma once
#include "field_sums.hpp"
#include "recorded_steps.hpp"

// Record n has GIVEN sums, from ``sums`` + n GIVEN on.
struct FieldRecords : RecordedSteps {
    FieldSum* sums;

    // The record of the state after a step of the call's clock; null if it is not recorded.
    FieldSum* record(long step) const {
        const long n = number(step);
        return n < 0 ? nullptr : sums + n * GIVEN;
    }
};

static FieldRecords* field_records = nullptr;
static bool records_need_whole_steps = false;

// Later calls record there, or nowhere.
extern "C" void set_field_records(FieldRecords* records) {
    field_records = records;
    records_need_whole_steps = records && is_lost_between_steps([&](int f) { return records->sums[f].wanted != 0; });
}
// Later calls do not record there any more.
extern "C" void drop_field_records(FieldRecords* records) {
    if (field_records == records) set_field_records(nullptr);
}

// Whether each of the first GIVEN fields can be recorded: whether passes compute its values after a step,
// ``everywhere`` or only in absorbing layers.
extern "C" void find_recordable(int64_t* recordable, int64_t everywhere) {
    for (int f = 0; f < GIVEN; f++) {
        recordable[f] = false;
        for (int p = 0; p < PASSES && !(everywhere && layers_of[ends[f]]); p++)
            if (stores(passes[p], ends[f])) recordable[f] = true;
    }
}

// The sums to which a level adds the fields that it makes.
struct LevelSums {
    struct Entry {
        int output;
        FieldSum* to;
        CellSums cells;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        FieldSum* after[2] = {};
        for (long n = 0; n < 2 && field_records; n++) after[n] = field_records->record(step + n + 1);
        each_field_made(pass, [&](int o, int f, int later) {
            if (!after[later] || !after[later][f].wanted) return;
            entries.push_back({o, after[later] + f, {}});
            entries.back().cells.begin(after[later][f]);
        });
    }

    // Adds what the pass has just computed, see `LevelRecords`.
    void add(const Pass& pass, long i, const Rows* out, const long from[AXES], const long end[AXES]) {
        for (Entry& each : entries)
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long, const Rows& made) {
                for (long j = from[1]; j < end[1]; j++)
                    each.cells.add_row(made.p + j * made.pitch + from[2], end[2] - from[2]);
            });
    }

    // Adds the sums of this thread's cells to the records.
    void end() {
        for (Entry& each : entries) each.cells.add_to(*each.to);
        entries.clear();
    }
};
