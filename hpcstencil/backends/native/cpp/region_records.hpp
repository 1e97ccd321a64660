// Regions of fields and expressions after steps of a call: copies of their cells, or sums Σ weight·value.
#pragma once
#include "recorded_steps.hpp"

// A field, or a value of an evaluator, in ``count`` cells of the block per axis, from cell ``from`` on, ``stride``
// apart. They are added to ``sums``, or copied to ``copies``, record by record. Cells of members follow each other.
struct Region {
    int64_t field, from[AXES], count[AXES], stride[AXES];
    double* sums;
    real* copies;

    bool has(int a, long i) const {
        return i >= from[a] && (i - from[a]) % stride[a] == 0 && (i - from[a]) / stride[a] < count[a];
    }
    bool has(long plane, long j) const { return has(0, plane) && has(1, j); }

    // Records those of cells x0 .. x1 - 1 of a row.
    void put(const Call& call, long record, double weight, long plane, long j, const real* cells, long x0,
             long x1) const {
        const long n = (plane - from[0]) / stride[0], row = n * count[1] + (j - from[1]) / stride[1];
        const long size = count[0] * count[1] * count[2], step = stride[2];
        const long first = max(0, (x0 - from[2] + step - 1) / step),
                   end = min(count[2], (x1 - from[2] + step - 1) / step);
        const real* chosen = cells + from[2];
        if (sums) {
            double* to = sums + call.member * size + row * count[2];
            if (step == 1)
                for (long x = first; x < end; x++) to[x] += weight * double(chosen[x]);
            else
                for (long x = first; x < end; x++) to[x] += weight * double(chosen[x * step]);
        } else {
            real* to = copies + RecordedSteps::row(call, record) * size + row * count[2];
            for (long x = first; x < end; x++) to[x] = chosen[x * step];
        }
    }
};
// ``count`` regions, of fields if ``evaluator`` is -1, else of the values of the evaluator with this number. Sums have
// the weight weights[n] for record n.
struct RegionRecords : RecordedSteps {
    int64_t evaluator, count;
    const Region* region;
    const double* weights;

    double weight(long record) const { return weights ? weights[record] : 0.0; }
};

OWN inline std::vector<RegionRecords*> region_records;  // of several streams
OWN inline bool regions_need_whole_steps = false;

static void note_lost_fields() {
    regions_need_whole_steps = is_lost_between_steps([](int f) {
        for (const RegionRecords* each : region_records)
            for (int64_t n = 0; n < each->count && each->evaluator < 0; n++)
                if (each->region[n].field == f) return true;
        return false;
    });
}
// Later calls do not record there any more.
ENTRY void drop_region_records(RegionRecords* records) {
    for (size_t n = region_records.size(); n-- > 0;)
        if (region_records[n] == records) region_records.erase(region_records.begin() + n);
    note_lost_fields();
}
// Later calls also record there.
ENTRY void add_region_records(RegionRecords* records) {
    drop_region_records(records);
    region_records.push_back(records);
    note_lost_fields();
}
static bool records_regions(long step) {
    for (const RegionRecords* each : region_records)
        if (each->evaluator < 0 && each->number(step) >= 0) return true;
    return false;
}

// A region that a level records, with the number of the record and its weight.
struct RegionRecord {
    const Region* region;
    long record;
    double weight;

    // Calls body(region and record) for those of the evaluator with this number, or of fields (-1), after a step.
    template <class Body>
    static void each_after(long step, int evaluator, Body body) {
        for (const RegionRecords* each : region_records) {
            const long record = each->number(step);
            for (int64_t n = 0; n < each->count && each->evaluator == evaluator && record >= 0; n++)
                body(RegionRecord{each->region + n, record, each->weight(record)});
        }
    }
    void put(const Call& call, long plane, long j, const real* cells, long x0, long x1) const {
        region->put(call, record, weight, plane, j, cells, x0, x1);
    }
};

// What a level records of the fields that it makes.
struct LevelRegions {
    struct Entry {
        int output;
        RegionRecord to;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        each_field_made(pass, [&](int o, int f, int later) {
            RegionRecord::each_after(step + later + 1, -1, [&](const RegionRecord& each) {
                if (each.region->field == f) entries.push_back({o, each});
            });
        });
    }

    // Records what the pass has just computed, see `LevelRecords`.
    void put(const Call& call, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES]) const {
        for (const Entry& each : entries) {
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long n, const Rows& made) {
                const long plane = home(call, n);
                for (long j = from[1]; j < end[1]; j++)
                    if (each.to.region->has(plane, j))
                        each.to.put(call, plane, j, made.p + j * made.pitch, from[2], end[2]);
            });
        }
    }
};
