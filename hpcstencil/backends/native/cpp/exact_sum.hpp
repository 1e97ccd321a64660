// The exact sum of floating-point numbers. It does not depend on the order of the additions.
#pragma once
#include "integer_sums.hpp"

constexpr bool SINGLE = sizeof(real) == 4;
constexpr int LIMBS = SINGLE ? 14 : 72;
constexpr long LEAST_BIT = SINGLE ? -224 : -1152;  // below the last bit of every number of this precision

// Σ_k limb[k] 2^(32 k + LEAST_BIT). A limb has room for 2^31 additions.
struct ExactSum {
    int64_t limb[LIMBS] = {};

    // Adds n 2^exponent.
    void add(int64_t n, long exponent) {
        const long k = (exponent - LEAST_BIT) / 32, rest = (exponent - LEAST_BIT) % 32;
        const __int128 shifted = __int128(n) * (int64_t(1) << rest);
        limb[k] += uint32_t(shifted), limb[k + 1] += uint32_t(shifted >> 32), limb[k + 2] += int64_t(shifted >> 64);
    }
    void add(double v) {
        int exponent;
        const double fraction = __builtin_frexp(v, &exponent);
        add(int64_t(fraction * (int64_t(1) << 53)), exponent - 53);
    }
    // Makes all limbs but the last one 0 .. 2^32 - 1, so that sums can be added.
    void carry() {
        for (int k = 0; k + 1 < LIMBS; k++) limb[k + 1] += limb[k] >> 32, limb[k] &= 0xffffffff;
    }
};
