// Extrema and exact sums of fields, for diagnostics. A call reduces its results while they are in cache
// (`set_field_sums`); `sum_cells` reduces an array later. native/field_sums.py uses both.
#pragma once
#include <type_traits>

#include "integer_sums.hpp"

// The sum and the extrema of a field's cells. The sum is Σ_j part[j] 2^(exponent - (j + 1) bits), in which every value
// is rounded to a multiple of the last unit, as in xla/reductions.py.
struct FieldSum {
    int64_t wanted, exponent, bits;
    double high, low;  // the largest value, and the largest negative of a value
    int64_t part[3];
    int64_t unfit, broken;  // whether a value was not below 2^exponent: part is not the sum; whether one was not finite
    const void* at;         // the array of these values
};

// The sums of the results of the last call, for each field but not for error estimates. ``stored`` says whether the
// call has filled them.
struct FieldSums {
    int64_t stored;
    FieldSum field[];  // GIVEN
};

static FieldSums* field_sums = nullptr;
static pthread_mutex_t field_sums_lock = PTHREAD_MUTEX_INITIALIZER;

// Makes later calls reduce the wanted fields; null stops that if it was set to ``instead_of``.
extern "C" void set_field_sums(FieldSums* sums, FieldSums* instead_of) {
    if (sums || field_sums == instead_of) field_sums = sums;
}

constexpr bool SINGLE = sizeof(real) == 4;
constexpr long MANTISSA = SINGLE ? 23 : 52;
constexpr long UNITS = 51;  // a value below 2^exponent is less than 2^UNITS of the first unit, 2^(exponent - UNITS)
typedef std::conditional<SINGLE, uint32_t, uint64_t>::type word;

// The bits of the real number 2^n, or of the least positive number where that is larger.
static word bits_of_power(long n) {
    long biased = n + (SINGLE ? 127 : 1023), most = SINGLE ? 255 : 2047;
    return biased <= 0 ? 1 : word(min(biased, most)) << MANTISSA;
}

// The cells that one thread has seen.
//
// Adding 1.5 2^(exponent + 1) in double precision to a value below 2^exponent leaves its multiple of the first unit in
// the last bits of the sum, ready to be added as an integer. In double precision a second unit takes up the rest. Both
// are exact unless a value is tiny; a row with such a value is added cell by cell.
struct CellSums {
    typedef word words __attribute__((vector_size(VECTOR)));

    long exponent = 0, bits = 1, held = 0, second_units = 0;
    double first_shift = 0, second_shift = 0, scale = 1, unit = 1;
    word limit = 0, least = 1;
    bool quick = false, unfit = false, broken = false;
    vec most = vec{} - real(__builtin_inf()), fewest = vec{} + real(__builtin_inf());
    integers first = {}, second = {};
    double high = -__builtin_inf(), low = -__builtin_inf();
    int64_t part[3] = {0, 0, 0};

    void begin(const FieldSum& wanted) {
        exponent = wanted.exponent, bits = wanted.bits;
        scale = __builtin_ldexp(1.0, -exponent), unit = __builtin_ldexp(1.0, bits);
        second_units = min(2 * UNITS, 3 * bits);
        first_shift = __builtin_ldexp(1.5, exponent + 1);
        second_shift = __builtin_ldexp(1.5, exponent + 52 - second_units);
        limit = bits_of_power(exponent), least = bits_of_power(exponent - (SINGLE ? UNITS : second_units) + MANTISSA);
        quick = bits >= 26 && exponent > -900 && exponent < 900;
    }

    void add_row(const real* v, long n) {
        for (long x = 0; x < n; x += 1024) add_some(v + x, min(1024, n - x));
    }

    void add_some(const real* v, long n) {
        long whole = quick ? n - n % LANES : 0;
        words smallest = words{} - 1, largest = {};
        integers one = {}, two = {};
        for (long x = 0; x < whole; x += LANES) {
            vec here = *(const unaligned_vec*)(v + x);
            most = here > most ? here : most, fewest = here < fewest ? here : fewest;
            words size = (words)here & (word(-1) >> 1), before = size - 1;  // of zero: the largest
            smallest = before < smallest ? before : smallest, largest = size > largest ? size : largest;
            one += shifted_cells(here, first_shift);
            if constexpr (!SINGLE) {
                vec rounded = here + real(first_shift) - real(first_shift);
                two += shifted_cells(here - rounded, second_shift);
            }
        }
        if (whole && !all_fit(smallest, largest)) whole = 0;
        if (whole) {
            first += one, second += two, held += whole;
            if (held > 1024) flush();
        }
        for (long x = whole; x < n; x++) add_cell(v[x]);
    }

    bool all_fit(words smallest, words largest) const {
        auto wrong = (smallest < words{} + (least - 1)) | (largest >= words{} + limit);
        return !any_of((integers)wrong);
    }

    void add_cell(double v) {
        if (!(v - v == 0)) {
            broken = unfit = true;
            return;
        }
        high = v > high ? v : high, low = -v > low ? -v : low;
        double rest = v * scale;
        if (!(__builtin_fabs(rest) < 1)) {
            unfit = true;
            return;
        }
        for (int j = 0; j < 3; j++) {
            rest *= unit;
            double units = __builtin_rint(rest);
            rest -= units, part[j] += (int64_t)units;
        }
    }

    // Adds n units 2^(exponent - units).
    void add_units(int64_t n, long units) {
        int j = units <= bits ? 0 : units <= 2 * bits ? 1 : 2;
        __int128 one = 1, all = n * (one << ((j + 1) * bits - units));
        for (; j > 0; j--) {
            __int128 carried = all >> bits;
            part[j] += (int64_t)(all - carried * (one << bits)), all = carried;
        }
        part[0] += (int64_t)all;
    }

    void flush() {
        add_units((int64_t)(total_of(first) - uint64_t(held) * bits_of(first_shift)), UNITS);
        if (!SINGLE) add_units((int64_t)(total_of(second) - uint64_t(held) * bits_of(second_shift)), second_units);
        first = second = integers{}, held = 0;
    }

    // Adds the sums and extrema of this thread's cells to ``sum``.
    void add_to(FieldSum& sum) {
        flush();
        for (long l = 0; l < LANES; l++) {
            if (most[l] > high) high = most[l];
            if (-fewest[l] > low) low = -fewest[l];
        }
        pthread_mutex_lock(&field_sums_lock);
        if (high > sum.high) sum.high = high;
        if (low > sum.low) sum.low = low;
        for (int j = 0; j < 3; j++) sum.part[j] += part[j];
        sum.unfit |= unfit, sum.broken |= broken;
        if (broken) __atomic_store_n(&not_finite, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&field_sums_lock);
    }
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
    sum.high = sum.low = -__builtin_inf(), sum.unfit = sum.broken = 0, sum.at = at;
    memset(sum.part, 0, sizeof sum.part);
}

// The sums to take in this call; null if there are none. Whatever was stored before does not hold any more.
static FieldSums* field_sums_of(const Call& call) {
    FieldSums* sums = field_sums;
    bool wanted = false;
    if (sums) sums->stored = 0;
    for (int f = 0; f < GIVEN && sums && !call.section; f++) {
        clear(sums->field[f], call.results[f]);
        wanted = wanted || sums->field[f].wanted;
    }
    return wanted ? sums : nullptr;
}

// Adds the n cells at ``data`` to ``sum``, whose exponent and bits are given.
extern "C" void sum_cells(FieldSum* sum, const void* data, int64_t n) {
    CellSums* cells = new CellSums();
    cells->begin(*sum);
    cells->add_row((const real*)data, n);
    cells->add_to(*sum);
    delete cells;
}
