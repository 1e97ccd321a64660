// A cost model of steps in tiles and in place, and the choice between them.
#pragma once
#include "call_memory.hpp"
#include "wavefront.hpp"

// Calls with(t) for each number of steps t that a sweep may take. With ``given``, a sweep takes all ``steps``.
template <class With>
static void for_steps(long steps, bool given, With with) {
    long top = min(steps, MAX_STEPS);
    for (long t = given ? top : 1; t <= top; t++)
        if (given || t <= 4 || t % 2 == 0) with(t);
}

// The time to move a cell between caches and memory, relative to the time of a pass for one cell. It counts less where
// passes have many statements.
static const double MOVES = STATEMENTS < 20 ? 1 : 20 / STATEMENTS;

// The part of its memory that an array of a tile uses in three dimensions if it is 0 outside absorbing layers. Most
// planes cross a layer. How wide the layers are is not known yet.
constexpr double IN_LAYERS = 1.0 / 3;

// The fields that hold values outside absorbing layers. Costs are those outside layers, where most cells of a large
// grid are.
static long fields_outside_layers() {
    long sum = 0;
    for (int f = 0; f < FIELDS; f++) sum += !layers_of[f];
    return sum;
}

// The number of tiles along the first axis that keeps all threads busy, for ``others`` along the other two axes.
static long parts_of_first_axis(const Call& call, long others, long threads) {
    long parts = 1;
    while (parts * others % threads && parts * others < 4 * threads && call.count[0] / (parts + 1) >= 16) parts++;
    return parts;
}

// Whether tiles are long enough if an axis is divided into this many ``parts``. Arrays of a step have no cells beyond
// the ends of a periodic axis.
static bool may_divide(const Call& call, int axis, long parts) {
    if (REPLAYED && call.wraps[axis]) return parts == 1;
    return parts == 1 || call.count[axis] / parts >= (axis == 1 ? 8 : 256);
}

// The bytes of a tile's rings, where axes 1 and 2 are divided into p1 and p2 tiles.
static double bytes_of_rings(const Call& call, const Pipeline& pipe, long p1, long p2) {
    return (double)pipe.cells((call.count[1] + p1 - 1) / p1, (call.count[2] + p2 - 1) / p2,
                              p1 == 1 && needs_no_neighbours(call, 1), p2 == 1 && needs_no_neighbours(call, 2),
                              call.count[1] == 1 ? 0 : IN_LAYERS)
           * sizeof(real);
}

// The cheapest number of steps per sweep and division into tiles, by work per cell and step. With ``one_sweep``, one
// sweep takes all steps, because the received ghost cells are used up after it.
static Blocking cheapest_tiles(const Call& call, long steps, bool one_sweep, long threads) {
    Pipeline& pipe = *new Pipeline();
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    bool flat = call.count[1] == 1;
    long moved = fields_outside_layers();
    // A near third-level cache, as a multiple of the second: at least 6, or three quarters of a core's share.
    double near = max(6, 3 * call.l3_bytes / (4 * call.l2_bytes));
    for_steps(steps, one_sweep, [&](long t) {
        pipe.lay_out(t, has_boundary(call, 0), call.section, {}, 0, all_evaluations(call));
        for (long p2 = 1; may_divide(call, 2, p2); p2 *= 2)
            for (long p1 = 1; may_divide(call, 1, p1); p1++) {
                long tile1 = (call.count[1] + p1 - 1) / p1, tile2 = (call.count[2] + p2 - 1) / p2;
                double bytes = bytes_of_rings(call, pipe, p1, p2);
                long tiles = p1 * p2, p0 = parts_of_first_axis(call, tiles, threads);
                double work = 0, tile0 = (double)call.count[0] / p0;
                for (int q = 1; q < pipe.levels; q++) {
                    const long* reach = pipe.level[q].reach;
                    double e1 = p1 == 1 && needs_no_neighbours(call, 1) ? 0 : 2.0 * reach[1],
                           e2 = p2 == 1 && needs_no_neighbours(call, 2) ? 0 : 2.0 * reach[2];
                    work += (tile0 + 2.0 * reach[0]) * (tile1 + e1) * round_up(tile2 + e2, LANES);
                }
                work /= tile0 * tile1 * tile2 * pipe.steps;
                long rounds = (p0 * tiles + threads - 1) / threads;
                double idle = (double)rounds * threads / (p0 * tiles);
                double full = bytes / call.l2_bytes;  // of the second-level cache
                double spill = full < 0.9                             ? 0
                               : flat                                 ? (call.l3_is_far ? 1 : 0.35) * (full - 0.9)
                               : full < (call.l3_is_far ? 1.5 : near) ? 0.2
                                                                      : full * (call.l3_is_far ? 0.8 : 0.2) - 1;
                spill = 1 + MOVES * (flat ? MOVES : 1) * spill;  // rows stream through caches, which long passes hide
                if (!flat && spill > 4) spill = 4;
                double begins = flat ? 6.0 * LANES / tile2 : 0;  // a single row bears the overhead of a plane
                double cost = work * spill * (1 + begins) * idle + (flat ? 2.0 : 3.0) * MOVES * moved / pipe.steps;
                if (cost < best.work) best = {(int)t, {p0, p1, p2}, 0, cost};
            }
    });
    delete &pipe;
    return best;
}

static inline double excess(double full, double most) { return full < most ? 0 : full - most; }

// The slowdown of a sweep whose active planes fill the fraction ``full`` of the second-level cache; each level reads
// ``deep`` rows beyond its own. Fitted to passes of heat, wave and Gray-Scott equations on a processor whose
// third-level cache is near and on one where it is far (docs/design/native.md).
static double spill_factor(double full, bool flat, long deep, bool far) {
    if (flat) return 1 + (far ? 0.8 * excess(full, 0.75) : 0.033 * excess(full, 1.6));
    return 1 + (1 + deep) * (far ? 0.25 * excess(full, 0.4) + 0.25 * excess(full, 0.8) : 0.013 * excess(full, 2))
           + (far ? 0.2 * excess(full, 2) : 0.05 * excess(full, 8));
}

// The time to load and store a cell of a field, relative to the time of a pass for one cell. Planes that are single
// rows are limited by memory sooner.
static double memory_cost(bool flat) { return flat ? 1.4 : STATEMENTS < 20 ? 0.75 : 15 / STATEMENTS; }

// Whether the parts of threads meet at seams when they step in place.
static bool has_seams(const Call& call, long threads) { return !LAYERS && (threads > 1 || call.wraps[0]); }

// Whether a sweep can take t steps in place. Lays out the pipeline and the drift for the sweeps that do most of the
// work.
static bool is_possible_in_place(const Call& call, long t, long threads, Pipeline& pipe, FieldDrift& field_drift) {
    const Level& first = pipe.level[0];
    double tile0 = (double)call.count[0] / threads;
    // Sweeps that record fields; that of a call with one sweep; those of a call with many, which do most of the work.
    for (int joins = JOINS_STEPS ? 0 : 2; joins < 3; joins++) {
        const bool joined = JOINS_STEPS && joins == 2;
        pipe.lay_out(t, has_boundary(call, 0), nullptr, {joined, joined}, joins ? 0 : ALL_APART,
                     JOINS_STEPS && joins ? Evaluations{} : all_evaluations(call));
        if (tile0 < 2.0 * first.reach[0] || call.count[1] < 2 * first.reach[1]
            || !field_drift.lay_out(pipe, call.count[1] == 1))
            return false;
        // On a periodic axis no part comes last, so each has to hand over the planes of all levels before it takes any.
        const long round = BY_PLANES ? MOST_GROUPS * AT_ONCE : AT_ONCE;
        if (has_seams(call, threads) && call.wraps[0] && tile0 < 3.0 * first.reach[0] + first.ahead + 2.0 * round)
            return false;
    }
    return true;
}

constexpr long LEAST_ROWS = 8, MOST_ROWS = 96;  // of a tile in place, where planes are not single rows

// The cheapest number of steps per sweep and of rows per tile, for steps in place. ``rows`` is 0 where these are
// impossible.
static Blocking cheapest_in_place(const Call& call, long steps, bool given, long threads) {
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    if (call.section || call.width[2] || ((call.width[0] || call.width[1]) && !call.edges)) return best;
    Pipeline& pipe = *new Pipeline();
    FieldDrift& field_drift = *new FieldDrift();
    bool flat = call.count[1] == 1;
    long moved = fields_outside_layers();
    const bool seams = has_seams(call, threads);
    for_steps(steps, given, [&](long t) {
        if (!is_possible_in_place(call, t, threads, pipe, field_drift)) return;
        const Level& first = pipe.level[0];
        double tile0 = (double)call.count[0] / threads;
        // Ends of a part, along the first axis and in all along the second, where cells of others are computed.
        bool outside0 = !needs_no_neighbours(call, 0) || (call.wraps[0] && !seams);
        long neighbours0 = threads == 1 ? 2 * outside0 : LAYERS ? 2 : outside0,
             neighbours1 = 2 * !(call.boundary[1][0] && call.boundary[1][1]);
        double work = 0, planes = 0;
        long deep = 0;  // rows that a level reads beyond its own
        for (int q = 1; q < pipe.levels; q++) {
            const long* reach = pipe.level[q].reach;
            work += (tile0 + neighbours0 * reach[0]) * (call.count[1] + neighbours1 * reach[1]);
            deep = max(deep, pipe.level[q - 1].reach[1] - reach[1]);
        }
        work /= tile0 * call.count[1] * pipe.steps;
        double fetched =
            (neighbours0 + 2 * seams) * first.reach[0] / tile0 + neighbours1 * (double)first.reach[1] / call.count[1];
        for (int f = 0; f < FIELDS; f++)
            if (!layers_of[f]) planes += first.ahead + field_drift.after[pipe.levels - 1][f].planes + 2 * AT_ONCE;
        for (long rows = flat ? 1 : LEAST_ROWS; rows <= (flat ? 1 : MOST_ROWS); rows += max(1, rows / 3)) {
            double bytes = planes * (rows + 2.0 * deep) * round_up(call.count[2], LANES) * sizeof(real);
            double cost =
                work * spill_factor(bytes / call.l2_bytes, flat, deep, call.l3_is_far) * (1 + 0.85 * deep / rows)
                + memory_cost(flat) * (1 + 1.5 * fetched) * moved / pipe.steps;
            if (cost < best.work) best = {(int)t, {threads, 1, 1}, rows, cost};
        }
    });
    delete &pipe;
    delete &field_drift;
    return best;
}

constexpr double TILING_OVERHEAD = 1.15;  // cost of copies into tiles and out of them

// Whether all blocks that exchange edges can step in place. If so, they all do. Their sweeps begin steps for each other
// then, and exchange fields in the middle of a step. All blocks must come to the same answer. So it depends on the
// narrowest block, beside walls and away from them, and on the most threads of any process.
static bool all_blocks_step_in_place(const Call& call) {
    Call block = call;
    Pipeline& pipe = *new Pipeline();
    FieldDrift& field_drift = *new FieldDrift();
    bool possible = !call.section && !call.width[2];
    for (int a = 0; a < AXES; a++) block.count[a] = call.edges->narrowest[a];
    for (int walls = 0; walls < 2; walls++) {
        for (int a = 0; a < AXES; a++) block.boundary[a][0] = block.boundary[a][1] = walls && !call.wraps[a];
        possible = possible && is_possible_in_place(block, call.every, call.edges->most_threads, pipe, field_drift);
    }
    delete &pipe;
    delete &field_drift;
    return possible;
}

// The cheaper of steps in tiles and steps in place. The choice is made for the longest sweep, so that calls with few
// and with many steps agree, because each way keeps its own memory.
static Blocking cheapest_blocking(const Call& call, long steps, bool one_sweep, long threads) {
    long longest_sweep = call.edges ? call.every : one_sweep ? steps : MAX_STEPS;
    Blocking in_place = cheapest_in_place(call, longest_sweep, one_sweep, threads),
             tiles = cheapest_tiles(call, longest_sweep, one_sweep, threads);
    const bool agreed = call.edges && in_place.rows && all_blocks_step_in_place(call);
    in_place.joins = JOINS_STEPS && (agreed || !call.edges);
    if (agreed || (in_place.rows && in_place.work < TILING_OVERHEAD * tiles.work)) return in_place;
    return steps == longest_sweep ? tiles : cheapest_tiles(call, steps, one_sweep, threads);
}

constexpr long SHORT_CALL = 2;  // most steps of a short call, as in problem/problem.py

// Whether a call takes at most two steps and stores the fields in other memory. Such a call steps in tiles, which read
// and write each array once. In place, it would first copy the fields into memory of its own, and back at the end. All
// blocks that exchange edges come to the same answer.
static bool is_short(const Call& call) {
    const int f = first_moving(call);
    return call.clock[3] <= SHORT_CALL && call.fields[f] != call.results[f] && !call.section;
}

static Call block(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t l2_bytes,
                  int64_t l3_is_far, int64_t l3_bytes) {
    Call call = {};
    for (int a = 0; a < AXES; a++) {
        call.count[a] = count[a], call.wraps[a] = (int32_t)wraps[a];
        for (int side = 0; side < 2; side++) call.boundary[a][side] = (int32_t)boundary[a];
    }
    call.l2_bytes = l2_bytes, call.l3_is_far = l3_is_far, call.l3_bytes = l3_bytes;
    return call;
}

// Returns the work per cell and step of one thread, with ``steps`` between two exchanges. The unit is one pass over one
// cell.
ENTRY double work_per_step(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t l2_bytes,
                           int64_t l3_is_far, int64_t l3_bytes, int64_t steps) {
    return cheapest_blocking(block(count, wraps, boundary, l2_bytes, l3_is_far, l3_bytes), steps, true, 1).work;
}

// Stores how many cells beyond a block some steps load, per axis, whether calls join steps or not.
ENTRY void reach_of_steps(int64_t steps, int64_t* reach) {
    Pipeline& pipe = *new Pipeline();
    for (int a = 0; a < AXES; a++) reach[a] = 0;
    for (uint32_t apart : {0u, ALL_APART}) {
        pipe.lay_out(steps, false, nullptr, {}, apart);
        for (int a = 0; a < AXES; a++) reach[a] = max(reach[a], pipe.level[0].reach[a]);
    }
    delete &pipe;
}

// Returns the cells of memory that are needed besides the fields themselves. ``every`` is the number of steps between
// two exchanges, or 0 if there are none.
ENTRY int64_t cells_beside_fields(const int64_t* count, const int64_t* wraps, const int64_t* boundary,
                                  int64_t l2_bytes, int64_t l3_is_far, int64_t l3_bytes, int64_t every,
                                  int64_t threads) {
    Call call = block(count, wraps, boundary, l2_bytes, l3_is_far, l3_bytes);
    Blocking blocking = cheapest_blocking(call, every ? every : MAX_STEPS, every > 0, threads);
    if (!blocking.rows) return FIELDS * count[0] * count[1] * count[2];
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.divide(threads);
    long cells = 0;
    for (long n = 0; n < threads; n++) cells += wavefront.lay_out_part(n, wavefront.part[n]);
    delete &wavefront;
    return cells;
}
