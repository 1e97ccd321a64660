// Numbers with half the bits of the run's, in memory only. Those of floats have their first 16 bits (bfloat16), and so
// the same range; those of doubles are floats.
#pragma once
#include <stdint.h>
#include <string.h>

#include "program.hpp"

template <class Real>
struct HalfOf;

template <>
struct HalfOf<float> {
    typedef uint16_t half;
    typedef half halves __attribute__((vector_size(VECTOR / 2)));
    typedef uint32_t words __attribute__((vector_size(VECTOR)));
    typedef float reals __attribute__((vector_size(VECTOR)));

    static reals widened(halves given) { return (reals)(__builtin_convertvector(given, words) << 16); }
    // Rounds to the nearest number, and to an even last bit between two. What is not a number stays so.
    static halves rounded(reals given) {
        const words bits = (words)given, isnan = (words)(given != given);
        const words nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        return __builtin_convertvector((nearest & ~isnan) | (0x7fc0 & isnan), halves);
    }
};
template <>
struct HalfOf<double> {
    typedef float half;
    typedef half halves __attribute__((vector_size(VECTOR / 2)));
    typedef double reals __attribute__((vector_size(VECTOR)));

    static reals widened(halves given) { return __builtin_convertvector(given, reals); }
    static halves rounded(reals given) { return __builtin_convertvector(given, halves); }
};

typedef HalfOf<real>::half half;
typedef HalfOf<real>::halves halves;

// The first n numbers of a vector, at most LANES; the others are 0.
template <class Vector, class Number>
static inline Vector first_of(const Number* from, long n) {
    Vector found{};
    memcpy(&found, from, n * sizeof(Number));
    return found;
}

// Numbers in memory as those of the run: of a vector of cells (vec), or of a single cell (real).
template <class W>
static inline W load(const half* p) {
    const halves found = first_of<halves>(p, sizeof(W) / sizeof(real));
    if constexpr (sizeof(W) == sizeof(real)) return HalfOf<real>::widened(found)[0];
    else return HalfOf<real>::widened(found);
}
