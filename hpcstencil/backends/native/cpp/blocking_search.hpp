// The blocking of a call: the choice of the cost model at first, then the fastest that calls of the same kind have
// measured. Values do not depend on it.
#pragma once
#include <cmath>

#include "blocking_choice.hpp"

// A search begins with a call that takes at least this time, in seconds. If it is infinite, calls take the choice of
// the cost model. Tests and benchmarks change it.
double least_measured = 1e-3;

// The search among blockings for the fastest one. It begins with the choice of the cost model, and measures it and the
// blockings beside it in turn (`beside`). Then it goes on from the fastest of these, and ends when none is 5 % faster.
struct BlockingSearch {
    static constexpr int CALLS = 3, MOST = 16;       // calls that measure a blocking, and blockings to measure
    static constexpr double LONG = 0.3;              // seconds; one call that takes so long suffices
    static constexpr double GAIN = 0.95, BAD = 1.5;  // relative to the time of the best one so far
    static constexpr double NOT_MEASURED = 1e300;
    struct Candidate {
        Blocking blocking;
        int calls_left;  // that measure it before the search goes on
        double seconds;  // per step, the least of its calls
    };
    Candidate candidates[MOST];
    int count, best;

    void begin(const Blocking& blocking) { candidates[0] = {blocking, 1, NOT_MEASURED}, count = 1, best = 0; }

    // The number of the candidate for the next call, of those with most calls left; the best one after the end.
    int next() const {
        int found = best;
        for (int n = 0; n < count; n++)
            if (candidates[n].calls_left > candidates[found].calls_left) found = n;
        return found;
    }
    // Notes the time of a call. When all candidates are measured, goes on from the fastest one, or ends.
    template <class Beside>
    void took(int number, long steps, double seconds, Beside beside) {
        Candidate& mine = candidates[number];
        if (!mine.calls_left || (count == 1 && seconds < least_measured)) return;
        const bool is_first = mine.calls_left == CALLS;  // the first call may allocate memory
        mine.seconds = std::min(mine.seconds, seconds / steps);
        const bool bad = !is_first && mine.seconds > BAD * candidates[best].seconds;
        mine.calls_left = bad || seconds > LONG ? 0 : mine.calls_left - 1;
        int fastest = best;
        for (int n = 0; n < count; n++) {
            if (candidates[n].calls_left) return;
            if (candidates[n].seconds < candidates[fastest].seconds) fastest = n;
        }
        if (count > 1 && candidates[fastest].seconds > GAIN * candidates[best].seconds) return;
        best = fastest;
        for (const Blocking& blocking : beside(candidates[best].blocking)) {
            bool known = count == MOST;
            for (int n = 0; n < count; n++) known |= is_same(candidates[n].blocking, blocking);
            if (!known) candidates[count++] = {blocking, CALLS, NOT_MEASURED}, candidates[best].calls_left = CALLS;
        }
    }
    static bool is_same(const Blocking& a, const Blocking& b) {
        return a.steps == b.steps && a.rows == b.rows && !memcmp(a.parts, b.parts, sizeof a.parts);
    }
};

constexpr double MOST_RINGS = 8;  // the largest rings of a tile in a search, relative to the second-level cache

// The blockings beside one, with half, twice and four times as many rows per tile (cells, where planes are single
// rows), and with half and twice as many steps per sweep, up to ``most``. With ``given``, the steps stay. Tiles stay
// tiles, and steps in place stay in place.
static std::vector<Blocking> beside(const Call& call, const Blocking& from, long most, bool given, long threads) {
    std::vector<Blocking> found;
    const bool flat = call.count[1] == 1;
    const int axis = flat ? 2 : 1;  // that tiles divide
    Pipeline& pipe = *new Pipeline();
    FieldDrift& field_drift = *new FieldDrift();
    auto rings = [&](const Blocking& blocking) {
        pipe.lay_out(blocking.steps, has_boundary(call, 0), call.section, {}, 0, all_evaluations(call));
        return bytes_of_rings(call, pipe, blocking.parts[1], blocking.parts[2]);
    };
    const double most_rings = from.rows ? 0 : std::max(MOST_RINGS * call.l2_bytes, rings(from));
    auto add_tiles = [&](int steps, long parts) {
        Blocking next = from;
        next.steps = steps, next.parts[axis] = parts;
        next.parts[0] = parts_of_first_axis(call, next.parts[1] * next.parts[2], threads);
        if (may_divide(call, axis, parts) && rings(next) <= most_rings) found.push_back(next);
    };
    auto add_in_place = [&](int steps, long rows) {
        Blocking next = from;
        next.steps = steps, next.rows = rows;
        if ((flat || (rows >= LEAST_ROWS && rows <= MOST_ROWS))
            && is_possible_in_place(call, steps, threads, pipe, field_drift))
            found.push_back(next);
    };
    if (from.rows && !flat)
        for (long rows : {from.rows / 2, 2 * from.rows, 4 * from.rows}) add_in_place(from.steps, rows);
    const long parts = from.parts[axis];
    if (!from.rows)
        for (long next : {2 * parts, (parts + 1) / 2, (parts + 3) / 4}) add_tiles(from.steps, next);
    for (long steps : {from.steps / 2L, 2L * from.steps})
        if (!given && steps && steps <= most)
            from.rows ? add_in_place(steps, from.rows) : add_tiles(steps, parts);
    delete &pipe;
    delete &field_drift;
    return found;
}

// The blocking of one call, which candidate it is, and the number of its search.
struct ChosenBlocking {
    Blocking blocking;
    int candidate;
    long search;
};

// A search for calls of one kind, described by ``key``. ``number`` counts the searches, and ``used`` their uses.
struct KnownSearch {
    long key[23], number, used;
    BlockingSearch search;
};
static KnownSearch known_searches[32];
static long searches_begun = 0, searches_used = 0;
static pthread_mutex_t searches_lock = PTHREAD_MUTEX_INITIALIZER;  // for the three variables above

static bool takes_one_sweep(const Call& call) {
    return call.edges || needs_ghosts(call) || call.section || is_short(call);
}

// The steps of a sweep of blocks that exchange edges, else of the call.
static long steps_of_sweep(const Call& call, long steps) {
    return call.edges ? (steps + sweeps_between(call, steps) - 1) / sweeps_between(call, steps) : steps;
}

// The search for calls like this one. A new search replaces the one that was used least recently. Calls with more than
// a few sweeps are alike.
static KnownSearch& search_for(const Call& call, long call_steps, long threads) {
    const long steps = steps_of_sweep(call, call_steps);
    long key[23] = {
        min(steps, 4 * MAX_STEPS), call.edges ? 1 + call.every : -takes_one_sweep(call), threads, call.count[0],
        call.count[1], call.count[2]};
    for (int a = 0; a < AXES; a++)
        key[6 + a] = call.wraps[a], key[9 + a] = 2 * call.boundary[a][0] + call.boundary[a][1];
    key[12] = call.l2_bytes, key[13] = call.l3_is_far, key[14] = call.section ? call.section[1] : 0;
    key[15] = call.l3_bytes, key[16] = hash_of_inputs(call);
    key[17] = call.records ? 1 + needs_whole_steps(call) : 0;  // such calls take longer
    for (int a = 0; a < AXES && call.edges; a++) key[18 + a] = call.edges->narrowest[a];
    if (call.edges) key[21] = call.edges->most_threads;
    key[22] = is_short(call);
    KnownSearch* mine = known_searches;
    for (KnownSearch& known : known_searches) {
        if (known.number && !memcmp(known.key, key, sizeof key)) return known;
        if (known.used < mine->used) mine = &known;
    }
    mine->number = ++searches_begun;
    memcpy(mine->key, key, sizeof key);
    const auto cheapest = is_short(call) ? cheapest_tiles : cheapest_blocking;
    mine->search.begin(cheapest(call, steps, takes_one_sweep(call), threads));
    return *mine;
}

static ChosenBlocking choose_blocking(const Call& call, long steps, long threads) {
    pthread_mutex_lock(&searches_lock);
    KnownSearch& mine = search_for(call, steps, threads);
    mine.used = ++searches_used;
    const int candidate = std::isinf(least_measured) ? 0 : mine.search.next();
    const ChosenBlocking found = {mine.search.candidates[candidate].blocking, candidate, mine.number};
    pthread_mutex_unlock(&searches_lock);
    return found;
}

// Tells the search of a blocking how long the steps of a call with it took.
static void note_time(const Call& call, const ChosenBlocking& chosen, long steps, long threads, double seconds) {
    pthread_mutex_lock(&searches_lock);
    for (KnownSearch& known : known_searches)
        if (known.number == chosen.search)
            known.search.took(chosen.candidate, steps, seconds, [&](const Blocking& from) {
                const long most = from.rows ? known.search.candidates[0].blocking.steps : MAX_STEPS;
                return beside(call, from, min(most, steps_of_sweep(call, steps)), takes_one_sweep(call), threads);
            });
    pthread_mutex_unlock(&searches_lock);
}

// Returns the number of blockings that the searches of this program have measured.
extern "C" int64_t blockings_measured() {
    int64_t sum = 0;
    pthread_mutex_lock(&searches_lock);
    for (const KnownSearch& known : known_searches)
        for (int n = 0; known.number && n < known.search.count; n++)
            sum += known.search.candidates[n].seconds < BlockingSearch::NOT_MEASURED;
    pthread_mutex_unlock(&searches_lock);
    return sum;
}
