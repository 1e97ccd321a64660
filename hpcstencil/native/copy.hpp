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
