// Sums of integers made from floating-point numbers, a vector at a time. They do not depend on an order.
#pragma once
#include "copy.hpp"

typedef double doubles __attribute__((vector_size(VECTOR)));
typedef uint64_t integers __attribute__((vector_size(VECTOR)));

static inline doubles to_doubles(float __attribute__((vector_size(VECTOR / 2))) a) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    return __builtin_ia32_cvtps2pd512_mask(a, doubles{}, (unsigned char)-1, 4);  // GCC converts four at a time
#else
    return __builtin_convertvector(a, doubles);
#endif
}

// The first (0) or the second half (1) of single-precision cells.
static inline doubles half_of(vec cells, int half) {
    union {
        vec whole;
        float __attribute__((vector_size(VECTOR / 2))) halves[2];
    } split = {cells};
    return to_doubles(split.halves[half]);
}

// Adds ``shift``, a power of two or 1.5 times one, in double precision to each cell. A cell that is small enough then
// leaves its multiple of the last bit of ``shift``, rounded, in the last bits of the sum. Returns the sums as integers,
// added up to one vector; subtract `bits_of(shift)` for each cell.
static inline integers shifted_cells(vec cells, double shift) {
    if constexpr (sizeof(real) == 8) return (integers)((doubles)cells + shift);
    else return (integers)(half_of(cells, 0) + shift) + (integers)(half_of(cells, 1) + shift);
}

static inline uint64_t bits_of(double a) {
    uint64_t bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
// Whether any of the integers is not 0.
static inline bool any_of(integers a) {
    uint64_t found = 0;
    for (int l = 0; l < VECTOR / 8; l++) found |= a[l];
    return found;
}
static inline uint64_t total_of(integers a) {
    uint64_t sum = 0;
    for (int l = 0; l < VECTOR / 8; l++) sum += a[l];
    return sum;
}
