// Copies of cells.
#pragma once
#include "half.hpp"
#include "pipeline.hpp"

// Copies n cells, by whole vectors: of the rows of a field, memcpy took a fifth longer (measured manually).
static inline void copy(real* to, const real* from, long n) {
    long x = 0;
    for (; x + LANES <= n; x += LANES) *(unaligned_vec*)(to + x) = *(const unaligned_vec*)(from + x);
    memcpy(to + x, from + x, (n - x) * sizeof(real));
}

// Copies n cells to an array in half precision.
static inline void copy(half* to, const real* from, long n) {
    for (; n >= LANES; to += LANES, from += LANES, n -= LANES) {
        const halves rounded = HalfOf<real>::rounded(*(const unaligned_vec*)from);
        memcpy(to, &rounded, sizeof rounded);
    }
    const halves rest = HalfOf<real>::rounded(first_of<vec>(from, n));
    memcpy(to, &rest, n * sizeof(half));
}

#if defined(__AVX__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_NON_TEMPORAL_STORES
// Copies cells to VECTOR bytes at a multiple of VECTOR, bypassing the caches.
static inline void copy_past_caches(real* to, const real* from) {
    typedef float floats __attribute__((vector_size(VECTOR)));
    const floats cells = (floats)*(const unaligned_vec*)from;
#ifdef __AVX512F__
    __builtin_ia32_movntps512((float*)to, cells);
#else
    __builtin_ia32_movntps256((float*)to, cells);
#endif
}
static inline void copy_past_caches(half* to, const real* from) {
    const halves cells[2] = {HalfOf<real>::rounded(*(const unaligned_vec*)from),
                             HalfOf<real>::rounded(*(const unaligned_vec*)(from + LANES))};
    copy_past_caches((real*)to, (const real*)cells);
}
#endif

// Copies n cells, or rounds them to half precision. With ``non_temporal``, stores bypass the caches where
// the processor supports it, for numbers that are not read soon.
template <class Number>
static void copy_out(Number* to, const real* from, long n, bool non_temporal) {
#ifdef HAS_NON_TEMPORAL_STORES
    if (non_temporal && n * sizeof(Number) >= 64) {  // at least a cache line
        long skewed = (-(intptr_t)to & 63) / (long)sizeof(Number);
        copy(to, from, skewed);
        constexpr long some = VECTOR / sizeof(Number);
        for (to += skewed, from += skewed, n -= skewed; n >= some; to += some, from += some, n -= some)
            copy_past_caches(to, from);
    }
#endif
    copy(to, from, n);
}

OWN inline int64_t not_finite = 0;  // 1 if a stored result was NaN or infinite

// Stores results, and adds each cell minus itself to ``differences``: only if a cell is NaN or infinite is that not 0.
static void store_result(real* to, const real* from, long n, bool non_temporal, vec& differences) {
    copy_out(to, from, n, non_temporal);
    vec found = differences;
    long x = 0;
    for (; x + LANES <= n; x += LANES)
        found += *(const unaligned_vec*)(from + x) - *(const unaligned_vec*)(from + x);
    for (; x < n; x++) found[0] += from[x] - from[x];
    differences = found;
}

// Whether all of the ``differences`` are 0.
static bool are_zero(vec differences) {
    real rest = 0;
    for (long l = 0; l < LANES; l++) rest += differences[l];
    return rest == 0;
}
// Sets `not_finite` if any of the ``differences`` is not 0.
static void check_finite(vec differences) {
    if (!are_zero(differences)) __atomic_store_n(&not_finite, 1, __ATOMIC_RELAXED);
}
