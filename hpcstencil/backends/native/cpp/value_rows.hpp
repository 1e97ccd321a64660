// Values of expressions of fields, a row at a time, for their sums. The functions are compiled apart from the program
// (native/value_program.py), because the same steps serve any diagnostics.
#pragma once
#include "field_sums.hpp"

constexpr int MOST_VALUE_FIELDS = 16;

// Stores n values, a multiple of LANES. ``coordinates`` are those of the first cell per axis, and along the last axis
// those of the whole row. ``in`` are the first cells of the fields that the expression reads.
typedef void ValueRow(const double* parameters, double time, const double* const* coordinates, const real* const* in,
                      real* to, long n);

struct ValueTree {
    ValueRow* row;
    int64_t fields, field[MOST_VALUE_FIELDS];
};

// During its lifetime, this thread treats subnormal numbers as 0, as the threads of XLA that take steps do.
struct FlushedToZero {
#if defined(__x86_64__)
    const unsigned before = __builtin_ia32_stmxcsr();

    FlushedToZero() { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~FlushedToZero() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

    FlushedToZero() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        set(before | 1 << 24);
    }
    ~FlushedToZero() { set(before); }
    static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif
};

// Adds values of an expression to sums, those of several short rows together. ``coordinates`` are those of the block's
// cells per axis.
struct ValueRows {
    static constexpr long MOST = 1024;
    CellSums& sums;
    const ValueTree& tree;
    const double* parameters;
    double time;
    const double* const* coordinates;
    const FlushedToZero flushed = {};
    real made[MOST];
    long held = 0;

    ~ValueRows() { flush(); }

    // Adds cells x0 .. x1 - 1 of rows j0 .. j1 - 1 in plane i of the block. ``in`` is this plane of each field that the
    // expression reads.
    void add_plane(long i, long j0, long j1, long x0, long x1, const Rows* in) {
        for (long j = j0; j < j1; j++) {
            Row row;
            row.coordinates[0] = coordinates[0] + i, row.coordinates[1] = coordinates[1] + j;
            row.coordinates[2] = coordinates[2] + x0;
            for (int f = 0; f < tree.fields; f++) row.in[f] = in[f].p + j * in[f].pitch + x0;
            add(row, x1 - x0);
        }
    }

    // What the expression reads, from a cell of a row on. Of ``in``, those of its fields are set.
    struct Row {
        const double* coordinates[AXES];
        const real* in[MOST_VALUE_FIELDS];
    };

    void add(Row& row, long n) {
        for (long some; n > 0; n -= some, held += some) {
            if (held + LANES > MOST) flush();
            some = round_down(min(n, MOST - held), LANES);
            if (some) compute(row, some), advance(row, some);
            else compute_last(row, some = n);
        }
    }
    void advance(Row& row, long cells) const {
        row.coordinates[2] += cells;
        for (int f = 0; f < tree.fields; f++) row.in[f] += cells;
    }
    void compute(const Row& row, long n) { tree.row(parameters, time, row.coordinates, row.in, made + held, n); }

    // Fewer cells than a vector has are computed in one too, whose functions round differently.
    void compute_last(Row& row, long n) {
        real rest[MOST_VALUE_FIELDS][LANES];
        double places[LANES];
        for (long l = 0; l < LANES; l++) places[l] = row.coordinates[2][min(l, n - 1)];
        row.coordinates[2] = places;
        for (int f = 0; f < tree.fields; f++) {
            for (long l = 0; l < LANES; l++) rest[f][l] = row.in[f][min(l, n - 1)];
            row.in[f] = rest[f];
        }
        compute(row, LANES);
    }

    void flush() {
        sums.add_row(made, held);
        held = 0;
    }
};

// Adds the values of an expression at a ``time`` in ``count`` cells per axis to ``sum``, whose exponent is given.
// ``pitch`` are the distances in cells between two planes and between two rows of the ``fields`` that it reads.
ENTRY void sum_values(FieldSum* sum, const ValueTree* tree, const double* parameters, double time,
                           const double* const* coordinates, const real* const* fields, const int64_t* count,
                           const int64_t* pitch) {
    CellSums* cells = new CellSums();
    cells->begin(*sum);
    {
        ValueRows values{*cells, *tree, parameters, time, coordinates};
        for (long i = 0; i < count[0]; i++) {
            Rows in[MOST_VALUE_FIELDS];
            for (int f = 0; f < tree->fields; f++) in[f] = {(real*)fields[f] + i * pitch[0], pitch[1]};
            values.add_plane(i, 0, count[1], 0, count[2], in);
        }
    }
    cells->add_to(*sum);
    delete cells;
}
