// What generated code computes with: a vector of cells (vec), or one cell (real), under the same names.
template <class W> static inline W load(const real* p);
template <> inline vec load<vec>(const real* p) { return *(const loose*)p; }
template <> inline real load<real>(const real* p) { return *p; }
static inline void store(real* p, vec v) { *(loose*)p = v; }
static inline void store(real* p, real v) { *p = v; }
template <class W> static inline W splat(real a);
template <> inline vec splat<vec>(real a) { return a - vec{}; }
template <> inline real splat<real>(real a) { return a; }
template <class W> static inline W one() { return splat<W>(real(1)); }
template <class W> static inline W nil() { return splat<W>(real(0)); }

typedef decltype(vec{} < vec{}) lanes;
static inline vec choose(lanes c, vec a, vec b) { return c ? a : b; }
static inline real choose(bool c, real a, real b) { return c ? a : b; }

template <class W> static inline W f_minimum(W a, W b) { return choose(a != a, a, choose(a < b, a, b)); }
template <class W> static inline W f_maximum(W a, W b) { return choose(a != a, a, choose(a > b, a, b)); }
template <class W> static inline W f_sign(W a) { return choose(a > nil<W>(), one<W>(), choose(a < nil<W>(), -one<W>(), a)); }

#define LANEWISE(name, scalar)                             \
    static inline real name(real a) { return scalar; }     \
    static inline vec name(vec v) {                        \
        vec r;                                             \
        for (int l = 0; l < LANES; l++) r[l] = name(v[l]); \
        return r;                                          \
    }
LANEWISE(f_abs, real(sizeof(real) == 4 ? __builtin_fabsf(a) : __builtin_fabs(a)))
LANEWISE(f_sqrt, real(sizeof(real) == 4 ? __builtin_sqrtf(a) : __builtin_sqrt(a)))
LANEWISE(f_exp, real(sizeof(real) == 4 ? __builtin_expf(a) : __builtin_exp(a)))
LANEWISE(f_log, real(sizeof(real) == 4 ? __builtin_logf(a) : __builtin_log(a)))
LANEWISE(f_sin, real(sizeof(real) == 4 ? __builtin_sinf(a) : __builtin_sin(a)))
LANEWISE(f_cos, real(sizeof(real) == 4 ? __builtin_cosf(a) : __builtin_cos(a)))
LANEWISE(f_tan, real(sizeof(real) == 4 ? __builtin_tanf(a) : __builtin_tan(a)))
LANEWISE(f_tanh, real(sizeof(real) == 4 ? __builtin_tanhf(a) : __builtin_tanh(a)))
static inline real f_power(real a, real b) { return real(sizeof(real) == 4 ? __builtin_powf(a, b) : __builtin_pow(a, b)); }
static inline vec f_power(vec a, vec b) {
    vec r;
    for (int l = 0; l < LANES; l++) r[l] = f_power(a[l], b[l]);
    return r;
}
