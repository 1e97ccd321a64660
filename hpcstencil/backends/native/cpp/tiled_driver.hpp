// Many steps in tiles: the planes between two levels are in rings; the other axes are cut into tiles, which compute what they need of
// their neighbours again (A. Nguyen et al., "3.5-D blocking optimization for stencil computations", SC'10). Each pass reads one array
// per field and writes another.
#pragma once
#include "coordinate_tables.hpp"
#include "tile.hpp"

// A block cut to tiles, which threads take as they come.
struct Tiles : Plan {
    Blocking blocking;
    real* scratch[FIELDS];
    bool aliased;  // results are where the fields are
    long next_tile = 0;

    Tiles(const Call& call, const Blocking& blocking) : Plan(call), blocking(blocking), aliased(call.fields[0] == call.results[0]) {}

    Job job_of(long k) const {
        Job job;
        job.plan = this;
        job.pipeline = &pipeline[which(k)];
        job.first = first_step(k);
        for (int a = 0; a < AXES; a++) job.parts[a] = blocking.parts[a];
        job.given = k == 0, job.last = k + 1 == passes, job.part = is_part(call) && (k == 0 || call.area);
        job.turn = call.area && k + 1 < passes ? (call.area->epoch + 1) % 2 : -1;
        for (int f = 0; f < job.pipeline->loaded; f++) job.source[f] = k == 0 ? (const real*)call.fields[f] : buffer(k - 1, f);
        for (int f = 0; f < job.pipeline->stored; f++) job.target[f] = buffer(k, f);
        return job;
    }

    // Whether the last pass must not write the result, since the first one, whose source that is, would too.
    bool ends_aside() const { return aliased && passes % 2; }

    // The array that pass k writes.
    real* buffer(long k, int f) const { return (passes - 1 - k + ends_aside()) % 2 == 0 ? (real*)call.results[f] : scratch[f]; }

    void work(Memory& memory) {
        long count = blocking.parts[0] * blocking.parts[1] * blocking.parts[2];
        for (long k = 0; k < passes; k++) {
            Job job = job_of(k);
            for (long n; (n = __atomic_fetch_add(&next_tile, 1, __ATOMIC_ACQ_REL)) < count;) {
                long number[AXES] = {n / (blocking.parts[1] * blocking.parts[2]), n / blocking.parts[2] % blocking.parts[1], n % blocking.parts[2]};
                Tile* tile = new Tile(job, number, memory);  // too large for a stack
                tile->stream();
                delete tile;
            }
            __sync_synchronize();  // what went past the caches too
            barrier.wait([&] {
                next_tile = 0;
                if (call.area && k + 1 < passes) call.area->hand_over(call);
            });
        }
    }
};

static void in_tiles(const Call& call, const Blocking& blocking, long steps, long threads, bool past, Kept* memory) {
    Tiles& tiles = *new Tiles(call, blocking);
    tiles.past = past;
    size_t bytes = cells_of(call) * sizeof(real);
    long passes = is_part(call) ? 1 : (steps + blocking.steps - 1) / blocking.steps;
    if (call.area) passes = passes_between(call, steps);
    else if (tiles.aliased && !is_part(call) && (passes > 1 || bytes > (1 << 16))) passes = least(steps, up(passes, 2));
    tiles.lay_out(steps, passes);
    size_t room = passes > 1 || tiles.aliased ? up(bytes, 4096) : 0;
    for (int f = 0; f < FIELDS && room; f++) tiles.scratch[f] = (real*)((char*)memory->fields.take(room * FIELDS) + room * f);
    fill_tables(call, tiles.longest(), memory, tiles.tables);
    fill_fixtures(call, tiles.longest(), memory, tiles.fixtures);
    tiles.on_threads(threads, [&](long n) { tiles.work(memory->thread[n]); });
    if (tiles.ends_aside())
        for (int f = 0; f < FIELDS; f++)
            for (long i = 0; i < call.count[0]; i++)
                for (long j = 0; j < call.count[1]; j++)
                    copy((real*)call.results[f] + (i * call.capacity[1] + j) * call.capacity[2], tiles.scratch[f] + (i * call.count[1] + j) * call.count[2], call.count[2]);
    delete &tiles;
}
