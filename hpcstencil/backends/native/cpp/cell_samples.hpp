// Values of single cells, recorded after given steps while many steps are taken at once.
#pragma once
#include "recorded_steps.hpp"

// Cells x .. x + width - 1 of a row, and the place of the first one in a record.
struct Run {
    int32_t x, slot, width;
};

// Of each record, ``size`` values.
struct CellSamples : RecordedSteps {
    int64_t size;
    int64_t width;                // of most runs: 1 to 8
    int64_t dense;                // on all processes: whether to store fields instead of computing samples again
    const int64_t* const* begin;  // of the first GIVEN fields: where each row's runs begin, plane by plane; or null
    const Run* run;
    real* values;

    // The record of the state after a step of the call's clock; null if it is not recorded.
    real* record(const Call& call, long step) const {
        const long n = number(step);
        return n < 0 ? nullptr : values + row(call, n) * size;
    }

    // Records cells x0 .. x1 - 1 of rows j0 .. j1 - 1 of plane i of field f.
    template <int WIDTH>
    void put(real* to, int f, const Call& call, long i, long j0, long j1, Rows from, long x0, long x1) const {
        const int64_t* row = begin[f] + home(call, i) * call.count[1];
        if (j0 >= j1 || row[j0] == row[j1]) return;
        for (long j = j0; j < j1; j++) {
            const real* cells = from.p + j * from.pitch;
            for (const Run *r = run + row[j], *end = run + row[j + 1]; r < end; r++) {
                if (r->width == WIDTH && r->x >= x0 && r->x + WIDTH <= x1)
                    memcpy(to + r->slot, cells + r->x, WIDTH * sizeof(real));
                else
                    for (long x = max(r->x, x0); x < min(r->x + r->width, x1); x++) to[r->slot + x - r->x] = cells[x];
            }
        }
    }
};

// `CellSamples::put` by the width of runs. All loaded programs would share a static variable of a member function.
static constexpr decltype(&CellSamples::put<1>) PUT[] = {
    &CellSamples::put<1>, &CellSamples::put<2>, &CellSamples::put<3>, &CellSamples::put<4>,
    &CellSamples::put<5>, &CellSamples::put<6>, &CellSamples::put<7>, &CellSamples::put<8>};

OWN inline CellSamples* cell_samples = nullptr;
OWN inline bool samples_need_whole_steps = false;  // otherwise `Unstored` computes what joined steps do not store

// Later calls record there, or nowhere.
ENTRY void set_cell_samples(CellSamples* samples) {
    cell_samples = samples;
    samples_need_whole_steps =
        samples && samples->dense && is_lost_between_steps([&](int f) { return samples->begin[f] != nullptr; });
}
// Later calls do not record there any more.
ENTRY void drop_cell_samples(CellSamples* samples) {
    if (cell_samples == samples) set_cell_samples(nullptr);
}

// The runs of a row that are still to be recorded, cut to the cells wanted.
struct RowRuns {
    const Run *next = nullptr, *end = nullptr;
    long x0, x1;

    // Those of a field, of cells x0 .. x1 - 1 in row j of plane i.
    void find(const CellSamples& samples, int f, const Call& call, long i, long j, long x0_, long x1_) {
        const int64_t* row = samples.begin[f] + home(call, i) * call.count[1] + j;
        next = samples.run + row[0], end = samples.run + row[1], x0 = x0_, x1 = x1_;
        skip();
    }
    void skip() {
        while (next < end && first() >= last()) next++;
    }
    bool empty() const { return next >= end; }
    long first() const { return max(next->x, x0); }
    long last() const { return min(next->x + next->width, x1); }

    // Records the next runs, if they lie in cells v0 .. v1 - 1 of ``cells``.
    void put(real* to, const real* cells, long v0, long v1) {
        for (; !empty() && first() >= v0 && last() <= v1; next++, skip())
            memcpy(to + next->slot + first() - next->x, cells + first(), (last() - first()) * sizeof(real));
    }
};
static inline bool is_empty(const RowRuns* runs, long count) {
    for (long n = 0; n < count; n++)
        if (!runs[n].empty()) return false;
    return true;
}
// Calls body(v0, v1) for vectors, at most two at a time, with the next runs of any of some rows; it records them.
template <class Body>
static void each_vectors(RowRuns* runs, long count, Body body) {
    while (!is_empty(runs, count)) {
        long v0 = UNBOUNDED, v1 = 0;
        for (long n = 0; n < count; n++)
            if (!runs[n].empty()) v0 = min(v0, round_down(runs[n].first(), LANES));
        for (long n = 0; n < count; n++)
            if (!runs[n].empty() && runs[n].first() < v0 + LANES) v1 = max(v1, round_up(runs[n].last(), LANES));
        body(v0, v1);
    }
}

// The cells that a level records: after its step and after the next one. ``after`` is null where nothing is recorded.
struct LevelCells {
    struct Entry {
        int output, field, later;  // output of the pass that is the field after this step, or after the next one
    };
    real* after[2] = {nullptr, nullptr};
    std::vector<Entry> entries;

    void find(const Call& call, long step, const Pass& pass) {
        for (long n = 0; n < 2 && cell_samples; n++) after[n] = cell_samples->record(call, step + n + 1);
        each_field_made(pass, [&](int o, int f, int later) {
            if (after[later] && cell_samples->begin[f]) entries.push_back({o, f, later});
        });
    }

    // Records what the pass has just computed, see `LevelRecords`.
    void put(const Call& call, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES]) const {
        for (const Entry& each : entries)
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long n, const Rows& made) {
                (cell_samples->*PUT[cell_samples->width - 1])(after[each.later], each.field, call, n, from[1], end[1],
                                                              made, from[2], end[2]);
            });
    }
};

// The values after a step that the pass joining it to the next step keeps in registers. The pass that ends a step
// computes them again, only in the vectors with samples.
struct Unstored {
    real* to = nullptr;  // the record
    std::vector<int> fields;

    static const Pass& pass() { return passes[PASSES - 1]; }
    static int array(const Plane& plane) { return pass().input[plane.input].array; }

    // For a level that records these ``cells`` with the pass of this number.
    void find(int number, const LevelCells& cells) {
        to = cells.after[0];
        for (int f = 0; f < GIVEN && to && JOINS_STEPS && number == PASSES; f++)
            if (cell_samples->begin[f] && stores(pass(), ends[f]) && !stores(passes[number], ends[f]))
                fields.push_back(f);
    }

    // Records planes i .. i + AT_ONCE - 1 before the level computes them, since it may overwrite what it reads.
    // ``source(plane, n)`` is what the pass reads for plane n; ``from`` and ``end`` bound the cells wanted.
    void record(const Call& call, const real* scalars, const real* const* tables, const Layers& layers, long i,
                const long from[AXES], const long end[AXES], Reader<const Plane&> source) const {
        if (!fields.empty()) record_planes(call, scalars, tables, layers, i, from, end, source);
    }

   private:
    OWN void record_planes(const Call& call, const real* scalars, const real* const* tables, const Layers& layers,
                           long i, const long from[AXES], const long end[AXES], Reader<const Plane&> source) const;

    template <class Compute>
    void record_row(int f, long j, RowRuns* runs, Compute compute) const {
        if (is_empty(runs, pass().at_once)) return;
        Matrix<real> made{PLANES, 2 * LANES};
        List<Rows> out{PLANES};
        int o = 0;
        while (pass().output[o] != ends[f]) o++;
        each_vectors(runs, pass().at_once, [&](long v0, long v1) {
            for (int p = 0; p < pass().outputs * pass().at_once; p++) out[p] = {made[p] - v0, 0};
            compute(out.data(), v0, v1);
            for (long n = 0; n < pass().at_once; n++) runs[n].put(to, made[o + n * pass().outputs] - v0, v0, v1);
        });
    }
};

// Weighted sums of the cells around each receiver, receivers x rows x WIDTH; that of receiver r becomes number place[r]
// of the result. The products of a column are added row by row, then the columns.
template <int WIDTH>
static void weigh(const real* values, const double* weights, const int64_t* place, long receivers, long rows,
                  real* result) {
    for (long r = 0; r < receivers; r++) {
        double sum[WIDTH] = {}, total = 0;
        for (long m = 0; m < rows; m++, values += WIDTH, weights += WIDTH)
            for (int k = 0; k < WIDTH; k++) sum[k] += weights[k] * double(values[k]);
        for (int k = 0; k < WIDTH; k++) total += sum[k];
        result[place[r]] = real(total);
    }
}

// The weighted sums of ``records``, which begin ``size`` values apart.
ENTRY void weigh_records(const real* values, int64_t records, int64_t size, const double* weights,
                              const int64_t* place, int64_t receivers, int64_t rows, int64_t width, real* result) {
    static constexpr decltype(&weigh<1>) of_width[] = {weigh<1>, weigh<2>, weigh<3>, weigh<4>,
                                                       weigh<5>, weigh<6>, weigh<7>, weigh<8>};
    for (long n = 0; n < records; n++)
        of_width[width - 1](values + n * size, weights, place, receivers, rows, result + n * receivers);
}
