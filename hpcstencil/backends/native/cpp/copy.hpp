// Copies of cells.
#pragma once
#include "pipeline.hpp"

static inline void copy(real* to, const real* from, long n) { memcpy(to, from, n * sizeof(real)); }

// Copies n cells. With ``non_temporal``, stores bypass the caches where the processor supports it, for cells that are
// not read soon.
static void copy_out(real* to, const real* from, long n, bool non_temporal) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    typedef float unaligned __attribute__((vector_size(64), aligned(4), may_alias));
    if (non_temporal && n >= 4 * LANES) {
        long skewed = (-(intptr_t)to & 63) / (long)sizeof(real);
        copy(to, from, skewed);
        for (to += skewed, from += skewed, n -= skewed; n >= LANES; to += LANES, from += LANES, n -= LANES)
            __builtin_ia32_movntps512((float*)to, *(const unaligned*)from);
    }
#endif
    copy(to, from, n);
}

static int64_t not_finite = 0;  // 1 if a stored result was NaN or infinite

// Stores results and sets `not_finite` if any is NaN or infinite: only then is a cell minus itself not 0.
static void store_result(real* to, const real* from, long n, bool non_temporal) {
    copy_out(to, from, n, non_temporal);
    vec differences = {};
    real rest = 0;
    long x = 0;
    for (; x + LANES <= n; x += LANES)
        differences += *(const unaligned_vec*)(from + x) - *(const unaligned_vec*)(from + x);
    for (; x < n; x++) rest += from[x] - from[x];
    for (long l = 0; l < LANES; l++) rest += differences[l];
    if (rest != 0) __atomic_store_n(&not_finite, 1, __ATOMIC_RELAXED);
}
