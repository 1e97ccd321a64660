// The operations that generated code uses. Each is defined for a vector of cells (vec) and for a single cell (real).
template <class W>
static inline W load(const real* p);
template <>
inline vec load<vec>(const real* p) {
    return *(const unaligned_vec*)p;
}
template <>
inline real load<real>(const real* p) {
    return *p;
}
static inline void store(real* p, vec v) { *(unaligned_vec*)p = v; }
static inline void store(real* p, real v) { *p = v; }
template <class W>
static inline W splat(real a);
template <>
inline vec splat<vec>(real a) {
    return a - vec{};
}
template <>
inline real splat<real>(real a) {
    return a;
}
// A vector of numbers in double precision, rounded.
static inline vec rounded(const double* p) {
    vec r;
    for (int l = 0; l < LANES; l++) r[l] = real(p[l]);
    return r;
}
template <class W>
static inline W one() {
    return splat<W>(real(1));
}
template <class W>
static inline W zero() {
    return splat<W>(real(0));
}

// a b + c, rounded once. The program says where: a compiler would choose by the surrounding code.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMA)
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
// GCC's own instructions, since compilers before GCC 12 leave the loop over the lanes as it is.
static inline vec fused(vec a, vec b, vec c) {
#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
    typedef float floats __attribute__((vector_size(VECTOR)));
    typedef double doubles __attribute__((vector_size(VECTOR)));
#ifdef __AVX512F__
    if constexpr (sizeof(real) == 4)
        return (vec)__builtin_ia32_vfmaddps512_mask((floats)a, (floats)b, (floats)c, (unsigned short)-1, 4);
    else return (vec)__builtin_ia32_vfmaddpd512_mask((doubles)a, (doubles)b, (doubles)c, (unsigned char)-1, 4);
#else
    if constexpr (sizeof(real) == 4) return (vec)__builtin_ia32_vfmaddps256((floats)a, (floats)b, (floats)c);
    else return (vec)__builtin_ia32_vfmaddpd256((doubles)a, (doubles)b, (doubles)c);
#endif
#else
    vec sum;
    for (int l = 0; l < LANES; l++) sum[l] = fused(a[l], b[l], c[l]);
    return sum;
#endif
}
#else
template <class W>
static inline W fused(W a, W b, W c) {
    return a * b + c;
}
#endif

// Returns Σ_k w[k] p[k], k < n, for each cell of the vector at p: a run of weights of a large stencil. Four partial
// sums hide the latency of the additions.
template <class W>
static inline W convolved(const real* w, long n, const real* p) {
    W sums[4] = {zero<W>(), zero<W>(), zero<W>(), zero<W>()};
    long k = 0;
    for (; k + 4 <= n; k += 4)
        for (int m = 0; m < 4; m++) sums[m] = sums[m] + splat<W>(w[k + m]) * load<W>(p + k + m);
    for (; k < n; k++) sums[0] = sums[0] + splat<W>(w[k]) * load<W>(p + k);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A sliding window of three successive vectors along a row. Where the processor has an instruction for it, an unaligned
// vector is combined from two of them; loading it from memory would cross two cache lines.
struct Sliding {
    const real* row;
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    vec before, here, after;

    Sliding(const real* row, long x) : row(row), before(load<vec>(row + x - LANES)), here(load<vec>(row + x)) {}
    void enter(long x) { after = load<vec>(row + x + LANES); }
    void leave() { before = here, here = after; }
    template <int D>
    vec at() const {
        if constexpr (D > 0) return joined<D>(here, after);
        else if constexpr (D < 0) return joined<LANES + D>(before, here);
        else return here;
    }
    template <int D>
    static vec joined(vec a, vec b) {
        typedef int ints __attribute__((vector_size(64)));
        typedef long long longs __attribute__((vector_size(64)));
        if constexpr (sizeof(real) == 4)
            return (vec)__builtin_ia32_alignd512_mask((ints)b, (ints)a, D, ints{}, (unsigned short)-1);
        else return (vec)__builtin_ia32_alignq512_mask((longs)b, (longs)a, D, longs{}, (unsigned char)-1);
    }
#else
    long x;

    Sliding(const real* row, long x) : row(row), x(x) {}
    void enter(long now) { x = now; }
    void leave() {}
    template <int D>
    vec at() const {
        return load<vec>(row + x + D);
    }
#endif
};

typedef decltype(vec{} < vec{}) lanes;
static inline vec choose(lanes c, vec a, vec b) { return c ? a : b; }
static inline real choose(bool c, real a, real b) { return c ? a : b; }

template <class W>
static inline W f_minimum(W a, W b) {
    return choose(a != a, a, choose(a < b, a, b));
}
template <class W>
static inline W f_maximum(W a, W b) {
    return choose(a != a, a, choose(a > b, a, b));
}
template <class W>
static inline W f_sign(W a) {
    return choose(a > zero<W>(), one<W>(), choose(a < zero<W>(), -one<W>(), a));
}

// OF_LIBRARY calls a function of the C library on one cell. LANEWISE defines a function of one cell, and applies it to
// the cells of a vector in turn.
#define OF_LIBRARY(function, ...) \
    real(sizeof(real) == 4 ? __builtin_##function##f(__VA_ARGS__) : __builtin_##function(__VA_ARGS__))
#define LANEWISE(name, scalar)                             \
    static inline real name(real a) { return scalar; }     \
    static inline vec name(vec v) {                        \
        vec r;                                             \
        for (int l = 0; l < LANES; l++) r[l] = name(v[l]); \
        return r;                                          \
    }
// Returns a time series, or its slope, at `place`: a time in units of the sampling interval. It is linear between
// samples and 0 outside. A time that round-off has moved just beyond the last sample counts as that sample.
static inline double series(double place, const double* samples, int64_t count, double per_second, int slope) {
    const double last = double(count - 1);
    if (!(place >= 0.0 && place <= last * (1.0 + 1e-15))) return 0.0;
    if (place > last) place = last;
    const int64_t first = place < last ? int64_t(place) : count - 2;
    const double step = samples[first + 1] - samples[first];
    return slope ? step * per_second : samples[first] + (place - double(first)) * step;
}

LANEWISE(f_abs, OF_LIBRARY(fabs, a))
LANEWISE(f_sqrt, OF_LIBRARY(sqrt, a))

static inline real f_power(real a, real b) { return OF_LIBRARY(pow, a, b); }

// Vector functions of glibc's libmvec, by the names that the x86-64 vector ABI gives them.
#if defined(__AVX2__) && defined(__x86_64__) && defined(__GLIBC__)
#ifdef __AVX512F__
#define OF_FLOATS(function) _ZGVeN16##function##f
#define OF_DOUBLES(function) _ZGVeN8##function
#else
#define OF_FLOATS(function) _ZGVdN8##function##f
#define OF_DOUBLES(function) _ZGVdN4##function
#endif
#define OF_REALS(function, ...) \
    (sizeof(real) == 4 ? OF_FLOATS(function)(__VA_ARGS__) : OF_DOUBLES(function)(__VA_ARGS__))
#define OF_VECTORS(name, function)                                      \
    extern "C" vec OF_FLOATS(v_##function)(vec);                        \
    extern "C" vec OF_DOUBLES(v_##function)(vec);                       \
    static inline real name(real a) { return OF_LIBRARY(function, a); } \
    static inline vec name(vec a) { return OF_REALS(v_##function, a); }
extern "C" vec OF_FLOATS(vv_pow)(vec, vec);
extern "C" vec OF_DOUBLES(vv_pow)(vec, vec);
static inline vec f_power(vec a, vec b) { return OF_REALS(vv_pow, a, b); }
#else
#define OF_VECTORS(name, function) LANEWISE(name, OF_LIBRARY(function, a))
static inline vec f_power(vec a, vec b) {
    vec r;
    for (int l = 0; l < LANES; l++) r[l] = f_power(a[l], b[l]);
    return r;
}
#endif
OF_VECTORS(f_exp, exp)
OF_VECTORS(f_log, log)
OF_VECTORS(f_sin, sin)
OF_VECTORS(f_cos, cos)
#if defined(__GLIBC__) && !__GLIBC_PREREQ(2, 35)  // libmvec has them from this version on
LANEWISE(f_tan, OF_LIBRARY(tan, a))
LANEWISE(f_tanh, OF_LIBRARY(tanh, a))
#else
OF_VECTORS(f_tan, tan)
OF_VECTORS(f_tanh, tanh)
#endif
