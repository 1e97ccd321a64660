// Values that are added to single cells after given steps, while many steps are taken at once: the derivatives of an
// objective with respect to what receivers record, which a reverse sweep adds up.
#pragma once
#include "cell_samples.hpp"

// Row r of ``values`` has ``size`` numbers. In step n of the call's clock, number m of the arrays that are injected
// into (`injected` of program.hpp) gets row row_of[(n - first) * INJECTIONS + m], or nothing if that is -1.
struct Injection {
    int64_t first, count, size;
    int64_t beyond[AXES];  // cells beyond the block that ``begin`` covers: blocks compute cells of their neighbours too
    const int64_t* row_of;
    const int64_t* begin;  // where the runs of each row of cells begin, plane by plane
    const Run* run;
    const real* values;

    const real* row(long step, int number) const {
        long n = step - first;
        return n >= 0 && n < count && row_of[n * INJECTIONS + number] >= 0
                   ? values + row_of[n * INJECTIONS + number] * size
                   : nullptr;
    }

    // Adds a row to cells x0 .. x1 - 1 of rows j0 .. j1 - 1 of plane i.
    void add(const real* from, const Call& call, long i, long j0, long j1, Rows to, long x0, long x1) const {
        long rows = call.count[1] + 2 * beyond[1];
        if (i < -beyond[0] || i >= call.count[0] + beyond[0]) return;
        j0 = max(j0, -beyond[1]), j1 = min(j1, call.count[1] + beyond[1]);
        const int64_t* row = begin + (i + beyond[0]) * rows + beyond[1];
        if (j0 >= j1 || row[j0] == row[j1]) return;
        for (long j = j0; j < j1; j++) {
            real* cells = to.p + j * to.pitch;
            for (const Run *r = run + row[j], *end = run + row[j + 1]; r < end; r++)
                for (long x = max(r->x, x0); x < min(r->x + r->width, x1); x++) cells[x] += from[r->slot + x - r->x];
        }
    }
};

OWN inline const Injection* injection = nullptr;

// Later calls add its values, or none.
ENTRY void set_injection(const Injection* given) { injection = given; }

// What is added to the results of a level.
struct Injected {
    struct Entry {
        int output;
        const real* values;
    };
    std::vector<Entry> entries;

    OWN void find(const Call& call, long step, const Pass& pass);

    // Adds to cells x0 .. x1 - 1 of rows j0 .. j1 - 1 of some planes from i on, which a pass has just computed.
    void add(const Call& call, const Pass& pass, long i, long planes, const Rows* out, long j0, long j1, long x0,
             long x1) const {
        for (const Entry& each : entries)
            for (long n = 0; n < planes; n++)
                injection->add(each.values, call, i + n, j0, j1, out[each.output + n * pass.outputs], x0, x1);
    }
};
