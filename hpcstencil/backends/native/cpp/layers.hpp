// Where a block lies outside absorbing layers. Memory fields of the layers along an axis, and arrays computed from
// them, are 0 outside these layers (zero_regions.py), and no pass reads them in cells that are further away.
#pragma once
#include "pipeline.hpp"

// Whether an array is 0 in cells that lie in the layers of the axes ``mask`` (a set of bits) and of no other.
static inline bool vanishes(int array, int mask) { return layers_of[array] && !(layers_of[array] & mask); }

// `compute_variant` for a variant that stores fewer outputs, or computes fewer planes at once, than its pass.
static void compute_in_calls(const Pass& pass, const Variant& variant, const real* scalars, const real* const* tables,
                             long i, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1, bool upward) {
    Rows to[PLANES];
    int calls = pass.at_once / variant.at_once;
    for (int m = 0; m < calls; m++) {
        int call = upward ? m : calls - 1 - m, n = call * variant.at_once;
        Rows* next = to;
        for (int k = n; k < n + variant.at_once; k++)
            for (int o = 0; o < variant.outputs; o++) *next++ = out[k * pass.outputs + variant.output[o]];
        variant.compute({scalars + variant.scalars, tables, i + n}, in + call * variant.planes, to, j0, j1, x0, x1);
    }
}

// Computes planes i .. i + at_once - 1 of a pass by one of its variants. ``in`` are the planes that the variant reads,
// for each of its calls, and ``out`` those of all outputs of the pass. ``upward`` is the order of the calls.
static inline void compute_variant(const Pass& pass, const Variant& variant, const real* scalars,
                                   const real* const* tables, long i, const Rows* in, const Rows* out, long j0, long j1,
                                   long x0, long x1, bool upward) {
    if (!variant.outputs) return;
    if (&variant == &pass.whole() && variant.at_once == pass.at_once)
        variant.compute({scalars + variant.scalars, tables, i}, in, out, j0, j1, x0, x1);
    else compute_in_calls(pass, variant, scalars, tables, i, in, out, j0, j1, x0, x1, upward);
}

// The planes that the variants of a pass read, each found when its variant is first used.
struct VariantPlanes {
    Matrix<Rows> planes{VARIANTS, PLANES};
    bool known[1 << AXES] = {};

    void forget() { memset(known, 0, sizeof known); }

    // The planes for each call of a variant; find(n, k) is its n-th plane, k planes after those of the first call.
    template <class Find>
    const Rows* of(const Pass& pass, int mask, Find find) {
        const Variant& variant = *pass.variant[mask];
        Rows* next = planes[mask];
        for (int k = 0; k < pass.at_once && !known[mask]; k += variant.at_once)
            for (int n = 0; n < variant.planes; n++) *next++ = find(n, k);
        known[mask] = true;
        return planes[mask];
    }
};

// Returns what a level reads for plane n of an ``Of``: a function of any type, for code that is compiled once.
template <class Of>
struct Reader {
    const void* function;
    Rows (*call)(const void* function, Of of, long n);

    template <class Function>
    Reader(const Function& given)
        : function(&given),
          call([](const void* function, Of of, long n) { return (*(const Function*)function)(of, n); }) {}
    Rows operator()(Of of, long n) const { return call(function, of, n); }
};

struct Layers {
    // Cells lo .. hi - 1 along an axis are outside its layers, further away than the right-hand sides read, which count
    // as part of the layers. All cells are inside if the axis has layers and lo = hi.
    long lo[AXES], hi[AXES];

    // All cells are in the layers of all axes.
    Layers() {
        for (int a = 0; a < AXES; a++) lo[a] = hi[a] = UNBOUNDED;
    }

    // Finds the cells in the tables, whose indices are -beyond .. count - 1 + beyond.
    void find(const Call& call, const real* const* tables, long beyond) {
        for (int a = 0; a < AXES; a++) {
            lo[a] = -UNBOUNDED, hi[a] = UNBOUNDED;
            if (!(LAYERS >> a & 1)) continue;
            long end = call.count[a] + beyond, first = -beyond, best0 = 0, best1 = 0;
            for (long x = -beyond; x <= end; x++) {
                bool zero = x < end;
                for (int n = 0; n < LAYER_TABLES && zero; n++)
                    zero = table_axis[layer_table[n]] != a || tables[layer_table[n]][x] == 0;
                if (zero) continue;
                if (x - first > best1 - best0) best0 = first, best1 = x;
                first = x + 1;
            }
            if (best0 > -beyond) lo[a] = best0 + LAYER_REACH[a];
            if (best1 < end) hi[a] = best1 - LAYER_REACH[a];
            if (a == 2) lo[a] = round_up(lo[a], LANES), hi[a] = round_down(hi[a], LANES);
            if (hi[a] <= lo[a]) lo[a] = hi[a] = UNBOUNDED;
        }
    }

    // The cells next to a layer, on its outside, in which arrays that vanish there hold zeros: others read them.
    static long margin(int a) {
        return a == 0   ? LAYER_REACH[0] + AT_ONCE
               : a == 1 ? LAYER_REACH[1]
                        : (LAYER_REACH[2] + LANES - 1) / LANES * LANES;
    }

    // Whether cells from .. to - 1 along an axis begin in a layer, and the end of the piece that all lies there or all
    // outside.
    bool inside(int a, long from, long to, long& end) const {
        bool in = from < lo[a] || from >= hi[a];
        end = from < lo[a] ? min(to, lo[a]) : in ? to : min(to, hi[a]);
        return in;
    }
    bool near(int a, long n) const { return n < lo[a] + margin(a) || n >= hi[a] - margin(a); }

    // Calls body(mask, j0, j1, x0, x1) for the parts of the planes i .. i + planes - 1 that lie in the layers of
    // different axes. The planes count as one. Calls nothing if there are no cells: the last tile of long rows may be
    // empty.
    template <class Body>
    INLINED void each_region(long i, long planes, long j0, long j1, long x0, long x1, Body body) const {
        if (!LAYERS) {
            if (j0 < j1 && x0 < x1) body(0, j0, j1, x0, x1);
            return;
        }
        int across = i < lo[0] || i + planes > hi[0];
        for (long j = j0, j2; j < j1; j = j2) {
            int along1 = inside(1, j, j1, j2);
            for (long x = x0, x2; x < x1; x = x2) {
                int along2 = inside(2, x, x1, x2);
                body(across | along1 << 1 | along2 << 2, j, j2, x, x2);
            }
        }
    }

    // Calls body(j0, j1, x0, x1) for the cells of plane i in which an array must hold values, among those given.
    // For a ring, these are not the margins that `clear_ring_margin` has cleared.
    template <class Body>
    void each_kept(int array, bool ring, long i, long j0, long j1, long x0, long x1, Body body) const {
        int axes = layers_of[array];
        bool cleared = ring && stays_in_place(array);
        auto margin = [&](int a) { return cleared ? 0 : Layers::margin(a); };
        if (!axes || (axes & 1 && near(0, i))) return body(j0, j1, x0, x1);
        long top = axes & 2 ? min(j1, max(j0, lo[1] + margin(1))) : j0,
             bottom = axes & 2 ? max(top, min(j1, hi[1] - margin(1))) : j1;
        if (j0 < top) body(j0, top, x0, x1);
        if (axes & 4 && top < bottom) {
            long left = min(x1, lo[2] + margin(2)), right = max(x0, hi[2] - margin(2));
            if (left >= right) body(top, bottom, x0, x1);
            else {
                if (x0 < left) body(top, bottom, x0, left);
                if (right < x1) body(top, bottom, right, x1);
            }
        }
        if (bottom < j1) body(bottom, j1, x0, x1);
    }

    // Whether all rows of plane i of an array hold values.
    bool holds_planes(int array, long i) const { return !layers_of[array] || (layers_of[array] & 1 && near(0, i)); }

    // Whether no pass reads plane i of an array.
    bool is_empty(int array, long i) const { return layers_of[array] == 1 && !near(0, i); }

    // Calls body(j0, j1, x0, x1) for the cells of plane i in which an array is 0 whatever its memory holds, or, without
    // ``zero``, for the others, among those given.
    template <class Body>
    void each_piece(int array, bool zero, long i, long j0, long j1, long x0, long x1, Body body) const {
        if (layers_of[array])
            each_region(i, 1, j0, j1, x0, x1, [&](int mask, long from, long to, long v0, long v1) {
                if (vanishes(array, mask) == zero) body(from, to, v0, v1);
            });
        else if (!zero) body(j0, j1, x0, x1);
    }

    // Stores zeros in the margins that belong to a region of ``each_region``, for the outputs of a pass in ``out``. In
    // ``rings`` most margins along the second and the third axis still hold the zeros of `clear_ring_margin`.
    void clear_margins(const Pass& pass, const Rows* out, bool rings, int mask, long i, long j0, long j1, long x0,
                       long x1) const {
        for (int n = 0; n < pass.outputs && LAYERS; n++) {
            int array = pass.output[n] % ARRAYS, axes = layers_of[array];
            if (!vanishes(array, mask)) continue;
            if (rings && stays_in_place(array)) axes &= 1;
            for (long k = 0; k < pass.at_once && axes; k++)
                clear_margin(axes, out[k * pass.outputs + n], i + k, j0, j1, x0, x1);
        }
    }

    // The same for a plane of a ring, once for all planes that it will hold.
    void clear_ring_margin(int array, Rows to, long j0, long j1, long x0, long x1) const {
        if (!stays_in_place(array) || !(layers_of[array] & 6)) return;
        each_region(0, 1, j0, j1, x0, x1, [&](int mask, long from, long end, long v0, long v1) {
            if (!(layers_of[array] & mask)) clear_margin(layers_of[array], to, 0, from, end, v0, v1);
        });
    }

   private:
    // Whether an array is 0 outside the layers of one axis, so that its margins are the same cells of all planes.
    static bool stays_in_place(int array) { return !(layers_of[array] & (layers_of[array] - 1)); }

    // Stores zeros in those cells of a plane that lie in the margin of one of the ``axes``.
    void clear_margin(int axes, Rows to, long i, long j0, long j1, long x0, long x1) const {
        bool all = axes & 1 && near(0, i);
        if (!all && axes == 1) return;
        for (long j = j0; j < j1; j++) {
            real* row = to.p + j * to.pitch;
            if (all || (axes & 2 && near(1, j))) clear(row, x0, x1);
            else if (axes & 4) {
                clear(row, x0, min(x1, lo[2] + margin(2)));
                clear(row, max(x0, hi[2] - margin(2)), x1);
            }
        }
    }

   public:
    static void clear(real* row, long x0, long x1) {
        if (x0 < x1) memset(row + x0, 0, (x1 - x0) * sizeof(real));
    }
};
