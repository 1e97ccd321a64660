// Values of expressions of fields, a row at a time, for their sums. The functions are compiled apart from the program
// (native/value_program.py), because the same steps serve any diagnostics.
#pragma once
#include "field_sums.hpp"

constexpr int MOST_VALUE_FIELDS = 16;

// Stores n values, a multiple of LANES, at a ``time``. ``coordinates`` are, per axis, those of the first cell, and along the
// last axis those of the whole row. ``in`` are the first cells of the fields that the expression reads.
typedef void ValueRow(const double* parameters, double time, const double* const* coordinates, const real* const* in,
                      real* to, long n);

struct ValueTree {
    ValueRow* row;
    int64_t fields, field[MOST_VALUE_FIELDS];
};

// The cells of a row: what an expression reads there. Of ``in``, those of its fields are set.
struct RowOfFields {
    const double* parameters;
    double time;
    const double* coordinates[AXES];
    const real* in[MOST_VALUE_FIELDS];

    void advance(const ValueTree& tree, long cells) {
        coordinates[2] += cells;
        for (int f = 0; f < tree.fields; f++) in[f] += cells;
    }
};

// While it lives, this thread takes numbers below the least normal one as 0, as the threads of XLA do that take steps.
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

// Adds values of an expression to sums, those of several short rows together.
struct ValueRows {
    static constexpr long MOST = 1024;
    CellSums& sums;
    const ValueTree& tree;
    const FlushedToZero flushed;
    real made[MOST];
    long held = 0;

    ValueRows(CellSums& sums, const ValueTree& tree) : sums(sums), tree(tree) {}
    ~ValueRows() { flush(); }

    // Adds n cells of a row, which it changes.
    void add(RowOfFields& row, long n) {
        for (long some; n > 0; n -= some, held += some) {
            if (held + LANES > MOST) flush();
            some = round_down(min(n, MOST - held), LANES);
            if (some) compute(row, some), row.advance(tree, some);
            else compute_last(row, some = n);
        }
    }

    // Fewer cells than a vector has are computed in one too, whose functions round differently.
    void compute_last(RowOfFields& row, long n) {
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
    void compute(const RowOfFields& row, long n) {
        tree.row(row.parameters, row.time, row.coordinates, row.in, made + held, n);
    }
    void flush() {
        sums.add_row(made, held);
        held = 0;
    }
};

// Adds the values of an expression at a ``time`` in ``count`` cells per axis to ``sum``, whose exponent is given.
// ``pitch`` are the distances in cells between two planes and between two rows of the ``fields`` that it reads.
extern "C" void sum_values(FieldSum* sum, const ValueTree* tree, const double* parameters, double time,
                           const double* const* coordinates, const real* const* fields, const int64_t* count,
                           const int64_t* pitch) {
    CellSums* cells = new CellSums();
    cells->begin(*sum);
    ValueRows* values = new ValueRows(*cells, *tree);
    for (long i = 0; i < count[0]; i++)
        for (long j = 0; j < count[1]; j++) {
            RowOfFields row;
            row.parameters = parameters, row.time = time;
            row.coordinates[0] = coordinates[0] + i, row.coordinates[1] = coordinates[1] + j;
            row.coordinates[2] = coordinates[2];
            for (int f = 0; f < tree->fields; f++) row.in[f] = fields[f] + i * pitch[0] + j * pitch[1];
            values->add(row, count[2]);
        }
    delete values;
    cells->add_to(*sum);
    delete cells;
}
