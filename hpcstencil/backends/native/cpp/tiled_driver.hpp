// Many steps in tiles. The block is divided into tiles, and each tile recomputes the cells that it needs of its
// neighbours; ring buffers hold the planes between two levels. Each sweep reads one array per field and writes another.
// After A. Nguyen et al., "3.5-D blocking optimization for stencil computations", SC'10.
#pragma once
#include "tile.hpp"

// A block divided into tiles. A thread that has finished a tile takes the next free one.
struct Tiles : Plan {
    Blocking blocking;
    List<real*> scratch{FIELDS};
    int moving;    // the first field that does not stay where it is
    bool aliased;  // its result lies where the field is
    long next_tile = 0;

    Tiles(const Call& call, const Blocking& blocking)
        : Plan(call),
          blocking(blocking),
          moving(first_moving(call)),
          aliased(call.fields[moving] == call.results[moving]) {}

    Job job_of(long k) const {
        Job job;
        job.plan = this;
        job.pipeline = &pipeline_of(k);
        job.first = first_step(k);
        for (int a = 0; a < AXES; a++) job.parts[a] = blocking.parts[a];
        job.given = k == 0, job.last = k + 1 == sweeps;
        job.has_neighbours = needs_ghosts(call) && (k == 0 || call.edges);
        job.stores_edges = call.edges && k + 1 < sweeps;
        job.keeps_zeros = k >= 2 || (aliased && buffer(k, moving) == (real*)call.results[moving]);
        job.moving = moving;
        for (int f = 0; f < ARRAYS; f++) job.stays[f] = f < FIELDS && stays(call, f);
        for (int f = 0; f < job.pipeline->loaded; f++)
            job.source[f] = k == 0 || job.stays[f] ? (const real*)call.fields[f] : buffer(k - 1, f);
        for (int f = 0; f < job.pipeline->stored; f++) job.target[f] = buffer(k, f);
        return job;
    }

    // Whether the result is copied at the end. With aliased arrays and an odd number of sweeps, the first sweep would
    // overwrite its own input.
    bool needs_final_copy() const { return aliased && sweeps % 2; }

    // The array that sweep k writes.
    real* buffer(long k, int f) const {
        return (sweeps - 1 - k + needs_final_copy()) % 2 == 0 ? (real*)call.results[f] : scratch[f];
    }

    void work(Buffer& memory) {
        long count = blocking.parts[0] * blocking.parts[1] * blocking.parts[2];
        for (long k = 0; k < sweeps; k++) {
            Job job = job_of(k);
            for (long n; (n = __atomic_fetch_add(&next_tile, 1, __ATOMIC_ACQ_REL)) < count;) {
                long number[AXES] = {n / (blocking.parts[1] * blocking.parts[2]),
                                     n / blocking.parts[2] % blocking.parts[1], n % blocking.parts[2]};
                Tile* tile = new Tile(job, number, memory);  // too large for a stack
                tile->stream();
                delete tile;
            }
            __sync_synchronize();  // orders non-temporal stores too
            barrier.wait([&] {
                next_tile = 0;
                if (call.edges && k + 1 < sweeps) call.edges->turn(call, k + 2 < sweeps);
            });
        }
    }
};

OWN void step_in_tiles(const Call& call, const Blocking& blocking, long steps, long threads, bool non_temporal,
                       CallMemory* memory) {
    Tiles& tiles = *new Tiles(call, blocking);
    tiles.non_temporal = non_temporal, tiles.sums = field_sums_of(call);
    size_t bytes = cells_of(call) * sizeof(real);
    long sweeps = needs_ghosts(call) ? 1 : (steps + blocking.steps - 1) / blocking.steps;
    if (call.edges) sweeps = sweeps_between(call, steps);
    else if (tiles.aliased && !needs_ghosts(call) && (sweeps > 1 || bytes > (1 << 16)))
        sweeps = min(steps, round_up(sweeps, 2));
    tiles.lay_out(steps, sweeps);
    size_t room = sweeps > 1 || tiles.aliased ? round_up(bytes, 4096) : 0;
    int moved = 0;
    for (int f = 0; f < FIELDS; f++) moved += !stays(call, f);
    char* next = room ? (char*)memory->fields.reserve(room * moved) : nullptr;
    for (int f = 0; f < FIELDS && room; f++)
        if (!stays(call, f)) tiles.scratch[f] = (real*)next, next += room;
    tiles.fill_functions(memory);
    start_threads(threads, [&](long count) { tiles.barrier.threads = count; },
                  [&](long n) { tiles.work(memory->thread[n]); });
    if (tiles.sums) tiles.sums->stored = 1;
    if (tiles.needs_final_copy())
        for (int f = 0; f < FIELDS; f++)
            for (long i = 0; i < call.count[0] && !stays(call, f); i++)
                for (long j = 0; j < call.count[1]; j++)
                    copy((real*)call.results[f] + (i * call.capacity[1] + j) * call.capacity[2],
                         tiles.scratch[f] + (i * call.count[1] + j) * call.count[2], call.count[2]);
    delete &tiles;
}
