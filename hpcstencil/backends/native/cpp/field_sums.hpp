// Extrema and exact sums of fields, for diagnostics. A call reduces its results while they are in cache
// (`set_field_sums`), and fields after earlier steps (field_records.hpp); `sum_cells` reduces an array later.
// native/field_sums.py uses all of them.
#pragma once
#include "exact_sum.hpp"

// What is wanted of a field's cells.
enum Wanted : int64_t { NOTHING, SUM_AND_EXTREMA, EXTREMA };

// The sum and the extrema of a field's cells.
struct FieldSum {
    int64_t wanted;            // see `Wanted`
    int64_t exponent;          // most values are expected to be below 2^exponent, and not much smaller
    double high, low;          // the largest value, and the largest negative of a value
    int64_t broken;            // values that are not finite: the sum and the extrema are those of the others
    const void* at;            // the array of these values
    ExactSum sum;
};

// The sums of the results of the last call, for each field but not for error estimates. ``stored`` says whether the
// call has filled them.
struct FieldSums {
    int64_t stored;
    FieldSum field[];  // GIVEN
};

OWN inline FieldSums* field_sums = nullptr;
OWN inline pthread_mutex_t field_sums_lock = PTHREAD_MUTEX_INITIALIZER;

// Makes later calls reduce the wanted fields; null stops that if it was set to ``instead_of``.
ENTRY void set_field_sums(FieldSums* sums, FieldSums* instead_of) {
    if (sums || field_sums == instead_of) field_sums = sums;
}

constexpr long MANTISSA = SINGLE ? 23 : 52;
constexpr long UNITS = 51;  // a value below 2^exponent is less than 2^UNITS of the first unit, 2^(exponent - UNITS)
constexpr int FEW_UNITS = SINGLE ? 1 : 2;  // which take up most values
constexpr int HELD_UNITS = FEW_UNITS + 2;  // in single precision they take up all values if the exponent is 0
constexpr long MOST_UNITS = SINGLE ? 6 : 40;
constexpr long QUICKEST = SINGLE ? 150 : 900;  // the largest exponent for which all units are numbers of this precision
typedef std::conditional<SINGLE, uint32_t, uint64_t>::type word;

// The bits of the real number 2^n, or of the least positive number where that is larger.
static word bits_of_power(long n) {
    long biased = n + (SINGLE ? 127 : 1023), most = SINGLE ? 255 : 2047;
    return biased <= 0 ? 1 : word(min(biased, most)) << MANTISSA;
}

// The cells that one thread has seen.
//
// Adding 1.5 2^(exponent + 1) in double precision to a value below 2^exponent leaves its multiple of the first unit in
// the last bits of the sum, ready to be added as an integer. What remains of the value is added in the second unit,
// 2^UNITS times smaller than the first, and so on. Rows with small values need more units. The number of units of a row
// is first that of the row before. If this is too small, the row is added again with the right number. Only rows with
// values that are too large, or close to the least positive number, are added cell by cell.
struct CellSums {
    typedef word words __attribute__((vector_size(VECTOR)));

    long exponent = 0, broken = 0;
    int units = FEW_UNITS;  // with which the next row is added
    double shift[HELD_UNITS] = {};
    word limit = 0, least[HELD_UNITS] = {};  // values from least[n] on need units 0 .. n only
    bool quick = false, sums = true;
    vec most = vec{} - real(__builtin_inf()), fewest = vec{} + real(__builtin_inf());
    integers sum[HELD_UNITS] = {};
    long held[HELD_UNITS] = {};  // the cells in each sum
    double high = -__builtin_inf(), low = -__builtin_inf();
    ExactSum exact;

    OWN void begin(const FieldSum& wanted);
    double shift_of(long unit) const { return __builtin_ldexp(1.5, exponent + 1 - unit * UNITS); }

    OWN void add_row(const real* v, long n);

    // Only their extrema.
    void add_extrema(const real* v, long n) {
        const long whole = n - n % LANES;
        vec differences = {};
        for (long x = 0; x < whole; x += LANES) {
            const vec here = *(const unaligned_vec*)(v + x);
            most = here > most ? here : most, fewest = here < fewest ? here : fewest;
            differences += here - here;
        }
        for (long x = are_zero(differences) ? whole : 0; x < n; x++) add_extremum(v[x]);
    }

    // Returns whether the value is finite.
    bool add_extremum(double v) {
        if (!(v - v == 0)) {
            broken++;
            return false;
        }
        high = v > high ? v : high, low = -v > low ? -v : low;
        return true;
    }

    // Adds some cells with ``units`` units, which are at least N.
    template <int N>
    void add_some(const real* v, long n) {
        if constexpr (N < HELD_UNITS)
            if (units > N) return add_some<N + 1>(v, n);
        long whole = quick ? n - n % LANES : 0;
        words smallest = words{} - 1, largest = {};
        integers made[N] = {};
        for (long x = 0; x < whole; x += LANES) {
            vec here = *(const unaligned_vec*)(v + x);
            most = here > most ? here : most, fewest = here < fewest ? here : fewest;
            words size = (words)here & (word(-1) >> 1), before = size - 1;  // of zero: the largest
            smallest = before < smallest ? before : smallest, largest = size > largest ? size : largest;
            add_units(here, N, shift, made);
        }
        if (whole && all_fit(smallest, largest, least[N - 1])) {
            for (int k = 0; k < N; k++) sum[k] += made[k], held[k] += whole;
            if (held[0] > 1024) flush();
            if constexpr (N > FEW_UNITS)
                if (all_fit(smallest, largest, least[N - 2])) units = N - 1;
        } else if (const long needed = whole ? units_for(smallest, largest) : 0) {
            add_in_units(v, whole, needed);
            if (needed <= HELD_UNITS) units = max(needed, FEW_UNITS);
        } else whole = 0;
        for (long x = whole; x < n; x++) add_cell(v[x]);
    }

    // Adds the multiples of the first n units in some cells.
    INLINED static void add_units(vec cells, long n, const double* shift, integers* to) {
        auto add = [&](doubles rest) INLINED {
            for (long k = 0; k < n; k++) {
                const doubles shifted = rest + shift[k];
                to[k] += (integers)shifted;
                if (k + 1 < n) rest -= shifted - shift[k];
            }
        };
        if constexpr (SINGLE) add(half_of(cells, 0)), add(half_of(cells, 1));
        else add((doubles)cells);
    }

    // The number of units that take up all bits of some cells; 0 if they must be added cell by cell.
    long units_for(words smallest, words largest) const {
        word least_size = smallest[0];
        for (long l = 0; l < LANES; l++) {
            if (largest[l] >= limit) return 0;
            if (smallest[l] < least_size) least_size = smallest[l];
        }
        const long last_bit = max(1, (least_size + 1) >> MANTISSA) - (SINGLE ? 127 : 1023) - MANTISSA,
                   needed = (exponent - last_bit + UNITS - 1) / UNITS;
        return last_bit > -QUICKEST && needed <= MOST_UNITS ? needed : 0;
    }

    void add_in_units(const real* v, long n, long needed) {
        double shifts[MOST_UNITS];
        integers made[MOST_UNITS];
        for (long k = 0; k < needed; k++) shifts[k] = shift_of(k), made[k] = integers{};
        for (long x = 0; x < n; x += LANES) add_units(*(const unaligned_vec*)(v + x), needed, shifts, made);
        for (long k = 0; k < needed; k++) add_exactly(made[k], n, k, shifts[k]);
    }

    bool all_fit(words smallest, words largest, word from) const {
        auto wrong = (smallest < words{} + (from - 1)) | (largest >= words{} + limit);
        return !any_of((integers)wrong);
    }

    void add_cell(double v) {
        if (add_extremum(v)) exact.add(v);
    }

    // Adds what `add_units` has made of n cells for a unit.
    void add_exactly(integers made, long n, long unit, double shift) {
        exact.add(int64_t(total_of(made) - uint64_t(n) * bits_of(shift)), exponent - (unit + 1) * UNITS);
    }

    void flush() {
        for (int k = 0; k < HELD_UNITS; k++)
            if (held[k]) add_exactly(sum[k], held[k], k, shift[k]), sum[k] = integers{}, held[k] = 0;
    }

    // Adds the sums and extrema of this thread's cells to ``sum``.
    OWN void add_to(FieldSum& sum);
};

// The results of a call: whether they are finite, and their sums; no sums if ``sums`` is null.
struct ResultSums {
    FieldSums* sums = nullptr;
    List<CellSums> cells{GIVEN};
    vec differences = {};  // as in `store_result`

    void begin(FieldSums* wanted) {
        sums = wanted;
        for (int f = 0; f < GIVEN && sums; f++) cells[f].begin(sums->field[f]);
    }
    bool wants(int f) const { return sums && f < GIVEN && sums->field[f].wanted; }
    // Stores n results of field f, and adds them to its sum if that is wanted.
    void store(int f, real* to, const real* from, long n, bool non_temporal) {
        if (!wants(f)) return store_result(to, from, n, non_temporal, differences);
        copy_out(to, from, n, non_temporal);
        cells[f].add_row(from, n);
    }
    // Adds n results of field f, which are stored already, to its sum if that is wanted.
    void add(int f, const real* from, long n) {
        if (wants(f)) cells[f].add_row(from, n);
    }
    void end() {
        check_finite(differences);
        for (int f = 0; f < GIVEN && sums; f++)
            if (sums->field[f].wanted) cells[f].add_to(sums->field[f]);
    }
};

static void clear(FieldSum& sum, const void* at) {
    sum.high = sum.low = -__builtin_inf(), sum.broken = 0, sum.at = at, sum.sum = ExactSum();
}

// The sums to take in this call; null if there are none. Whatever was stored before does not hold any more.
static FieldSums* field_sums_of(const Call& call) {
    FieldSums* sums = call.records ? field_sums : nullptr;
    bool wanted = false;
    if (sums) sums->stored = 0;
    for (int f = 0; f < GIVEN && sums && !call.section; f++) {
        clear(sums->field[f], call.results[f]);
        wanted = wanted || sums->field[f].wanted;
    }
    return wanted ? sums : nullptr;
}

// The numbers with which an `ExactSum` is to be read.
ENTRY int64_t limbs_of_sums() { return LIMBS; }
ENTRY int64_t least_bit_of_sums() { return LEAST_BIT; }

// Adds the n cells at ``data`` to ``sum``, whose exponent is given.
ENTRY void sum_cells(FieldSum* sum, const void* data, int64_t n) {
    CellSums* cells = new CellSums();
    cells->begin(*sum);
    cells->add_row((const real*)data, n);
    cells->add_to(*sum);
    delete cells;
}
