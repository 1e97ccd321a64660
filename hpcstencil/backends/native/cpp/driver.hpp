// Runs a generated step on one block: many steps per pass through memory, in tiles (tiled_driver.hpp) or in place (wavefront.hpp), whichever
// is less work (blocking_choice.hpp). Grids with fewer than three axes have length 1 along others.
//
// The planes of the first axis stream through levels: a load, the passes of step 1, those of step 2, ..., a store. Each level works on
// the plane that is just ready, so what lies between two levels is a few planes, which stay in the cache.
//
// The generated code defines, before it includes this: real (the cell's type) and the counts PARAMETERS, CONSTANTS, FIELDS, GIVEN (of
// those that a step starts from: it makes the others), ARRAYS, PASSES, AT_ONCE and PLANES (the most planes that a pass computes at once,
// and looks at or writes), TABLES, FIXED, SCALARS, MOST_OFFSET (cells beyond its own that a function of coordinates looks at) and
// STATEMENTS (of a pass for a cell, on average); and after it what is declared here. All indices are those of the block's own cells;
// ghost cells lie at negative indices and beyond the end. Rows are computed in whole vectors, so a few cells beyond a region may hold
// rubbish, which nothing reads.
#include "tiled_driver.hpp"
#include "blocking_choice.hpp"

static void hand_over_first(const Call& call, bool past) {
    for (int f = 0; f < FIELDS; f++)
        for (long i = 0; i < call.count[0]; i++)
            for (long j = 0; j < call.count[1]; j++)
                call.area->put(call.width, (call.area->epoch + 1) % 2, f, i, j, (const real*)call.fields[f] + (i * call.capacity[1] + j) * call.capacity[2], 0, call.count[2], past);
    __sync_synchronize();  // what went past the caches too
    call.area->hand_over(call);
}

static void in_place(const Call& call, const Blocking& blocking, long steps, long threads, bool past, Kept* memory) {
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.past = past;
    wavefront.lay_out(steps, call.area ? passes_between(call, steps) : (steps + blocking.steps - 1) / blocking.steps);
    fill_tables(call, wavefront.longest(), memory, wavefront.tables);
    fill_fixtures(call, wavefront.longest(), memory, wavefront.fixtures);
    wavefront.on_threads(threads, [&](long n) { wavefront.work(n, memory->thread[n]); });
    if (wavefront.also) wavefront.also->stored = 1;
    delete &wavefront;
}

// No steps: the memory that steps in place take is made ready, so that the first one does not take longer than others.
static void rest(const Call& call, long threads, Kept* memory) {
    for (int f = 0; f < FIELDS; f++)
        if (call.fields[f] != call.results[f]) copy((real*)call.results[f], (const real*)call.fields[f], cells_of(call));
    Blocking blocking = choose(call, call.area ? call.every : MOST_STEPS, threads);
    if (!blocking.rows) return;
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.on_threads(threads, [&](long n) { wavefront.divide(n, memory->thread[n]); });
    delete &wavefront;
}

// Whether a call since this was asked before has stored a value that is not finite.
extern "C" int64_t stored_not_finite() { return __atomic_exchange_n(&not_finite, 0, __ATOMIC_RELAXED); }

extern "C" void advance(const Call* given) {
    const Call& call = *given;
    long steps = (long)call.clock[3];
    if (steps <= 0) {
        Kept* memory = borrow();
        rest(call, least(call.threads, MOST_THREADS), memory);
        give_back(memory);
        return;
    }
    double cells = (double)call.count[0] * call.count[1] * call.count[2];
    long threads = cells * steps * PASSES < 1e5 ? 1 : least(call.threads, MOST_THREADS);
    bool past = FIELDS * cells * sizeof(real) > 4.0 * call.cache;
    Kept* memory = borrow();
    if (call.area) hand_over_first(call, past);
    Blocking blocking = choose(call, steps, threads);
    (blocking.rows ? in_place : in_tiles)(call, blocking, steps, threads, past, memory);
    give_back(memory);
}
