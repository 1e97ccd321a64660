// The driver that runs a generated step on one block. It takes many steps per sweep through memory, either in tiles
// (tiled_driver.hpp) or in place (wavefront.hpp), whichever costs less (blocking_choice.hpp, blocking_search.hpp).
// Grids with fewer than three axes have length 1 along the others.
//
// The planes of the first axis stream through levels: a load, the passes of step 1, those of step 2, ..., a store.
// Each level computes a plane as soon as its inputs are ready. Only a few planes lie between two levels, so they stay
// in the cache.
//
// The driver knows a step only by the declarations of program.hpp, so it is compiled once for all steps. Index 0 is the
// block's first own cell; ghost cells have negative indices, or indices beyond the end. Rows are computed in whole
// vectors, so a few cells beyond a region may hold meaningless values, which nothing reads.
#include <sys/mman.h>

#include "blocking_search.hpp"
#include "chosen_steps.hpp"
#include "plan_layout.hpp"

// In tiled_driver.hpp, another part of the driver.
OWN void step_in_tiles(const Call& call, const Blocking& blocking, long steps, long threads, bool non_temporal,
                       CallMemory* memory);

static void publish_first_edges(const Call& call, long sweeps, long threads, bool non_temporal) {
    EdgeExchange::Stored done;
    call.edges->begin(call, threads);
    for (int f = 0; f < GIVEN; f++)
        for (long i = 0; i < call.count[0]; i++)
            for (long j = 0; j < call.count[1]; j++)
                call.edges->put(call, done, f, i, j,
                                (const real*)call.fields[f] + (i * call.capacity[1] + j) * call.capacity[2], 0,
                                call.count[2], non_temporal);
    call.edges->stored(done);
    call.edges->turn(call, sweeps > 1);
}

static void step_in_place(const Call& call, const Blocking& blocking, long steps, long threads, bool non_temporal,
                          CallMemory* memory) {
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.non_temporal = non_temporal, wavefront.sums = field_sums_of(call);
    wavefront.lay_out(steps, call.edges ? sweeps_between(call, steps) : (steps + blocking.steps - 1) / blocking.steps);
    wavefront.fill_functions(memory);
    wavefront.on_threads(threads, [&](long n) { wavefront.work(n, memory->thread[n]); });
    if (wavefront.snapshot) wavefront.snapshot->stored = 1;
    if (wavefront.sums) wavefront.sums->stored = 1;
    delete &wavefront;
}

// A call without steps: allocates the memory for steps in place, so that the first step takes no longer than others.
static void prepare_memory(const Call& call, long threads, CallMemory* memory) {
    for (int f = 0; f < FIELDS; f++)
        if (call.fields[f] != call.results[f])
            copy((real*)call.results[f], (const real*)call.fields[f], cells_of(call));
    if (is_short(call)) return;
    // In place, a search finds no blocking that needs more memory than the choice of the cost model.
    const long steps = steps_of_sweep(call, call.edges ? call.every : MAX_STEPS);
    Blocking blocking = cheapest_blocking(call, steps, takes_one_sweep(call), threads);
    if (!blocking.rows) return;
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.on_threads(threads, [&](long n) { wavefront.allocate_part(n, memory->thread[n]); });
    delete &wavefront;
}

// Returns whether any call has stored a NaN or infinite value since the last call of this function.
ENTRY int64_t stored_not_finite() { return __atomic_exchange_n(&not_finite, 0, __ATOMIC_RELAXED); }

// Asks the system for large pages where results that are not stored over the fields lie. New memory comes much faster
// in large pages; for other memory nothing changes.
static void ask_for_large_pages(const Call& call) {
#ifdef MADV_HUGEPAGE
    size_t bytes = cells_of(call) * sizeof(real), page = 4096;
    for (int f = 0; f < FIELDS && !call.section && bytes >= 1 << 22; f++) {
        if (f < GIVEN && call.results[f] == call.fields[f]) continue;
        char* begin = (char*)round_up((long)call.results[f], page);
        if (call.results[f]) madvise(begin, round_down((char*)call.results[f] + bytes - begin, page), MADV_HUGEPAGE);
    }
#endif
}

// Takes the steps of a call's clock. Returns the error code of a failed MPI call, or 0.
static int64_t take_steps(const Call& call) {
    long steps = (long)call.clock[3];
    if (steps <= 0) {
        CallMemory* memory = borrow();
        prepare_memory(call, min(call.threads, MAX_THREADS), memory);
        give_back(memory);
        return 0;
    }
    double cells = (double)call.count[0] * call.count[1] * call.count[2];
    long threads = cells * steps * PASSES < 1e5 ? 1 : min(call.threads, MAX_THREADS);
    bool non_temporal = FIELDS * cells * sizeof(real) > 4.0 * call.l2_bytes;
    CallMemory* memory = borrow();
    ask_for_large_pages(call);
    if (call.edges) publish_first_edges(call, sweeps_between(call, steps), threads, non_temporal);
    const ChosenBlocking chosen = choose_blocking(call, steps, threads);
    // Without the time of waiting for neighbours, whose blockings have searches of their own.
    auto now = [&] { return seconds_now() - (call.edges ? call.edges->waited : 0); };
    const double begun = now();
    (chosen.blocking.rows ? step_in_place : step_in_tiles)(
        call, chosen.blocking, steps, threads, non_temporal, memory);
    note_time(call, chosen, steps, threads, now() - begun);
    if (call.edges) call.edges->end(call);
    give_back(memory);
    return call.edges ? mpi_has_failed() : 0;
}

ENTRY int64_t advance(const Call* call) { return and_chosen_steps(*call, take_steps); }
