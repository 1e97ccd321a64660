// The sums of the squared errors of an attempted step. They are sums of integers, so they do not depend on the order of
// the cells, nor on tiles, threads or blocks. `numerics/error_norm.py` gives the definition, which all backends share.
#pragma once
#include "integer_sums.hpp"

static const int ERRORS = FIELDS - GIVEN;

// The sum of one field's squared errors is low 2^-44 + middle 2^-12 + high 2^20. ``broken`` counts the cells whose
// squared error is not below 2^50. Same order as the words of error_norm.py.
struct ErrorSum {
    int64_t low = 0, middle = 0, high = 0, broken = 0;

    // Any squared error, or NaN.
    void add(double v) {
        if (!(v < 0x1p50)) {
            broken++;
            return;
        }
        double top = __builtin_rint(v * 0x1p-20);
        v -= top * 0x1p20;
        double next = __builtin_rint(v * 0x1p12);
        v -= next * 0x1p-12;
        high += (int64_t)top, middle += (int64_t)next, low += (int64_t)__builtin_rint(v * 0x1p44);
    }

    // The n squared errors of a row.
    void add_row(const real* row, long n) {
        for (long x = 0; x < n; x += 1024) add_some(row + x, min(1024, n - x));
    }

    // The squared errors below 2^7 of up to 2^12 cells fit an integer. If one is larger, all are added one by one.
    void add_some(const real* v, long n) {
        integers sum = {};
        auto small = vec{} == vec{};
        long whole = n - n % LANES;
        for (long x = 0; x < whole; x += LANES) {
            vec here = *(const unaligned_vec*)(v + x);
            small &= here < vec{} + real(0x1p7);
            sum += shifted_cells(here, 0x1p8);
        }
        if (!any_of(~(integers)small)) low += (int64_t)(total_of(sum) - uint64_t(whole) * bits_of(0x1p8));
        else whole = 0;
        for (long x = whole; x < n; x++) add(v[x]);
        middle += low >> 32, low &= 0xffffffff;
    }
};

// The sums of one tile, which are added to those of the call.
struct ErrorSums {
    List<ErrorSum> sum{ERRORS};

    void add_to(int64_t* words) const {
        for (int e = 0; e < ERRORS; e++) {
            const int64_t mine[] = {sum[e].low, sum[e].middle, sum[e].high, sum[e].broken};
            for (int n = 0; n < 4; n++) __atomic_fetch_add(words + 4 * e + n, mine[n], __ATOMIC_RELAXED);
        }
    }
};
