// Values of single cells, recorded after given steps while many steps are taken at once.
#pragma once
#include "pipeline.hpp"

// A cell of a row, and its place in a record.
struct SampledCell {
    int32_t x, slot;
};

// A record has ``size`` values. The state after step n of the run goes to record n / every - first, if n is a multiple
// of ``every`` and there is room for it. Step 0 of a call's clock is step ``origin`` of the run.
struct CellSamples {
    int64_t every, origin, first, records, size;
    const int64_t* const* begin;  // of each field: where each row's cells begin, plane by plane; null without cells
    const SampledCell* cell;
    real* values;

    // The record of the state after a step of the call's clock; null if it is not recorded.
    real* record(long step) const {
        long now = origin + step, n = now / every - first;
        return now % every == 0 && n >= 0 && n < records ? values + n * size : nullptr;
    }

    // Records cells x0 .. x1 - 1 of rows j0 .. j1 - 1 of plane i of field f.
    void put(real* to, int f, const Call& call, long i, long j0, long j1, Rows from, long x0, long x1) const {
        const int64_t* row = begin[f] + i * call.count[1];
        if (j0 >= j1 || row[j0] == row[j1]) return;
        for (long j = j0; j < j1; j++)
            for (const SampledCell* c = cell + row[j]; c < cell + row[j + 1]; c++)
                if (c->x >= x0 && c->x < x1) to[c->slot] = from.p[j * from.pitch + c->x];
    }
};

static CellSamples* cell_samples = nullptr;

// Later calls record there.
extern "C" void set_cell_samples(CellSamples* samples) { cell_samples = samples; }

// Records what a pass has just computed, for every field whose value after a step it is. ``step``: of the call's clock,
// before the pass. The pass computed planes i .. i + at_once - 1 into ``out``; the other bounds are of the cells wanted.
static inline void record_cells(const Call& call, const Pass& pass, long step, long i, const Rows* out, const long from[AXES],
                                const long to[AXES]) {
    for (int o = 0; o < pass.outputs; o++) {
        long later = pass.output[o] >= ARRAYS;
        real* record = cell_samples->record(step + later + 1);
        for (int f = 0; record && f < FIELDS; f++) {
            if (ends[f] != pass.output[o] - later * ARRAYS || !cell_samples->begin[f]) continue;
            for (long n = max(i, from[0]); n < min(i + pass.at_once, to[0]); n++)
                cell_samples->put(record, f, call, n, from[1], to[1], out[o + (n - i) * pass.outputs], from[2], to[2]);
        }
    }
}
