// Half precision, for arrays in memory: a float is rounded to its first 16 bits (bfloat16), which keep its range, and a
// double to a float.
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

    static reals widened(halves given) {
#if defined(__AVX512BW__) && defined(__GNUC__) && !defined(__clang__)
        typedef short shorts __attribute__((vector_size(32)));
        typedef int ints __attribute__((vector_size(64)));  // GCC converts eight at a time
        return (reals)((words)__builtin_ia32_pmovzxwd512_mask((shorts)given, ints{}, (unsigned short)-1) << 16);
#else
        return (reals)(__builtin_convertvector(given, words) << 16);
#endif
    }
    // Rounds to the nearest number; in the middle between two, to that of larger magnitude. NaN stays NaN, unless all
    // bits of its fraction are set, which no operation makes.
    static halves rounded(reals given) { return __builtin_convertvector((words)given + 0x8000 >> 16, halves); }
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

// Loads a vector of cells (vec), or a single cell (real), from an array in half precision.
template <class W>
static inline W load(const half* p) {
    const halves found = first_of<halves>(p, sizeof(W) / sizeof(real));
    if constexpr (sizeof(W) == sizeof(real)) return HalfOf<real>::widened(found)[0];
    else return HalfOf<real>::widened(found);
}
