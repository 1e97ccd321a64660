// Values of single cells, recorded after given steps while many steps are taken at once.
#pragma once
#include "pipeline.hpp"

// Cells x .. x + width - 1 of a row, and the place of the first one in a record.
struct Run {
    int32_t x, slot, width;
};

// A record has ``size`` values. The state after step n of the run goes to record n / every - first, if n is a multiple
// of ``every`` and there is room for it. Step 0 of a call's clock is step ``origin`` of the run.
struct CellSamples {
    int64_t every, origin, first, records, size;
    int64_t width;                // of most runs: 2, 4 or 8
    const int64_t* const* begin;  // of each field: where each row's runs begin, plane by plane; null without cells
    const Run* run;
    real* values;

    // The record of the state after a step of the call's clock; null if it is not recorded.
    real* record(long step) const {
        long now = origin + step, n = now / every - first;
        return now % every == 0 && n >= 0 && n < records ? values + n * size : nullptr;
    }

    // Records cells x0 .. x1 - 1 of rows j0 .. j1 - 1 of plane i of field f.
    template <int WIDTH>
    void put(real* to, int f, const Call& call, long i, long j0, long j1, Rows from, long x0, long x1) const {
        const int64_t* row = begin[f] + i * call.count[1];
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

static CellSamples* cell_samples = nullptr;

// Later calls record there.
extern "C" void set_cell_samples(CellSamples* samples) { cell_samples = samples; }
// Later calls do not record there any more.
extern "C" void drop_cell_samples(CellSamples* samples) {
    if (cell_samples == samples) cell_samples = nullptr;
}

// The records of the states after the step of a level and after the next one; null where nothing is recorded.
struct Records {
    real* after[2] = {nullptr, nullptr};

    void find(long step) {
        for (long n = 0; n < 2 && cell_samples; n++) after[n] = cell_samples->record(step + n + 1);
    }
    bool wanted() const { return after[0] || after[1]; }
};

// Records what a pass has just computed, for every field whose value after a step it is. The pass computed planes
// i .. i + at_once - 1 into ``out``; ``from`` and ``to`` bound the cells wanted.
static inline void record_cells(const Records& records, const Call& call, const Pass& pass, long i, const Rows* out,
                                const long from[AXES], const long to[AXES]) {
    for (int o = 0; o < pass.outputs; o++) {
        long later = pass.output[o] >= ARRAYS;
        for (int f = 0; records.after[later] && f < FIELDS; f++) {
            if (ends[f] != pass.output[o] - later * ARRAYS || !cell_samples->begin[f]) continue;
            auto put = cell_samples->width == 2   ? &CellSamples::put<2>
                       : cell_samples->width == 4 ? &CellSamples::put<4>
                                                  : &CellSamples::put<8>;
            for (long n = max(i, from[0]); n < min(i + pass.at_once, to[0]); n++)
                (cell_samples->*put)(records.after[later], f, call, n, from[1], to[1], out[o + (n - i) * pass.outputs],
                                     from[2], to[2]);
        }
    }
}

template <int WIDTH>
struct Vectors {
    typedef double columns __attribute__((vector_size(8 * WIDTH)));
    typedef real cells __attribute__((vector_size(sizeof(real) * WIDTH)));
};

// Weighted sums of the cells around each receiver, receivers x rows x WIDTH; that of receiver r becomes number place[r]
// of the result. The products of a column are added row by row, then the columns.
template <int WIDTH>
static void weigh(const real* values, const double* weights, const int64_t* place, long receivers, long rows,
                  real* result) {
    typedef typename Vectors<WIDTH>::columns columns;
    for (long r = 0; r < receivers; r++) {
        columns sum = {};
        double total = 0;
        for (long m = 0; m < rows; m++, values += WIDTH, weights += WIDTH) {
            columns weight;
            typename Vectors<WIDTH>::cells cells;
            memcpy(&weight, weights, sizeof weight), memcpy(&cells, values, sizeof cells);
            sum += weight * __builtin_convertvector(cells, columns);
        }
        for (int k = 0; k < WIDTH; k++) total += sum[k];
        result[place[r]] = real(total);
    }
}

// The weighted sums of ``records``, which begin ``size`` values apart.
extern "C" void weigh_records(const real* values, int64_t records, int64_t size, const double* weights,
                              const int64_t* place, int64_t receivers, int64_t rows, int64_t width, real* result) {
    auto one = width == 2 ? &weigh<2> : width == 4 ? &weigh<4> : &weigh<8>;
    for (long n = 0; n < records; n++) one(values + n * size, weights, place, receivers, rows, result + n * receivers);
}
