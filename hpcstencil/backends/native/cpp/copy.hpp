// Cells from one place of memory to another.
#pragma once
#include "pipeline.hpp"

static inline void copy(real* to, const real* from, long n) { memcpy(to, from, n * sizeof(real)); }

// Past the caches where the processor can: nobody reads the cells soon.
static void copy_out(real* to, const real* from, long n, bool past) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    typedef float unaligned __attribute__((vector_size(64), aligned(4), may_alias));
    if (past && n >= 4 * LANES) {
        long skewed = (-(intptr_t)to & 63) / (long)sizeof(real);
        copy(to, from, skewed);
        for (to += skewed, from += skewed, n -= skewed; n >= LANES; to += LANES, from += LANES, n -= LANES)
            __builtin_ia32_movntps512((float*)to, *(const unaligned*)from);
    }
#endif
    copy(to, from, n);
}

static int64_t not_finite = 0;  // whether results have been stored some value of which is not finite

// Results, of which it is noted where they are not finite: then a cell less itself is not 0.
static void store_result(real* to, const real* from, long n, bool past) {
    copy_out(to, from, n, past);
    vec differences = {};
    real rest = 0;
    long x = 0;
    for (; x + LANES <= n; x += LANES) differences += *(const loose*)(from + x) - *(const loose*)(from + x);
    for (; x < n; x++) rest += from[x] - from[x];
    for (long l = 0; l < LANES; l++) rest += differences[l];
    if (rest != 0) __atomic_store_n(&not_finite, 1, __ATOMIC_RELAXED);
}
