// What steps cost in tiles and in place, and the choice between them.
#pragma once
#include "call_memory.hpp"
#include "wavefront.hpp"

// Calls with(t) for the numbers of steps that a pass may take; ``given``: it takes all of them.
template <class With> static void for_steps(long steps, bool given, With with) {
    long top = least(steps, MOST_STEPS);
    for (long t = given ? top : 1; t <= top; t++)
        if (given || t <= 4 || t % 2 == 0) with(t);
}

// How many steps a pass takes and how tiles are cut: the least work for a cell and step, of what fits the cache. ``one_pass``
// takes all steps, since ghost cells that were received last no longer.
static Blocking weigh_tiles(const Call& call, long steps, bool one_pass, long threads) {
    Pipeline& pipe = *new Pipeline();
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    bool flat = call.count[1] == 1;
    for_steps(steps, one_pass, [&](long t) {
        pipe.lay_out(t, has_boundary(call, 0), call.section);
        for (long p2 = 1; p2 == 1 || call.count[2] / p2 >= 256; p2 *= 2)
            for (long p1 = 1; p1 == 1 || call.count[1] / p1 >= 8; p1++) {
                long tile1 = (call.count[1] + p1 - 1) / p1, tile2 = (call.count[2] + p2 - 1) / p2;
                double bytes = pipe.cells(tile1, tile2, p1 == 1 && ends_here(call, 1), p2 == 1 && ends_here(call, 2)) * (double)sizeof(real);
                long p0 = 1, tiles = p1 * p2;
                while (p0 * tiles % threads && p0 * tiles < 4 * threads && call.count[0] / (p0 + 1) >= 16) p0++;
                double work = 0, tile0 = (double)call.count[0] / p0;
                for (int q = 1; q < pipe.levels; q++) {
                    const long* reach = pipe.level[q].reach;
                    double e1 = p1 == 1 && ends_here(call, 1) ? 0 : 2.0 * reach[1], e2 = p2 == 1 && ends_here(call, 2) ? 0 : 2.0 * reach[2];
                    work += (tile0 + 2.0 * reach[0]) * (tile1 + e1) * up(tile2 + e2, LANES);
                }
                work /= tile0 * tile1 * tile2 * pipe.steps;
                long rounds = (p0 * tiles + threads - 1) / threads;
                double idle = (double)rounds * threads / (p0 * tiles);
                double full = bytes / call.cache;  // of the second-level cache; the third is taken to have some six times as much
                double spill = full < 0.9 ? 1 : flat ? 1 + (call.far ? 1 : 0.35) * (full - 0.9) : full < (call.far ? 1.5 : 6) ? 1.2 : least(4, full * (call.far ? 0.8 : 0.2));
                double begins = flat ? 6.0 * LANES / tile2 : 0;  // a plane has but one row to share what is done for it
                double cost = work * spill * (1 + begins) * idle + (flat ? 2.0 : 3.0) * FIELDS / pipe.steps;
                if (cost < best.work) best = {(int)t, {p0, p1, p2}, 0, cost};
            }
    });
    delete &pipe;
    return best;
}

static inline double over(double full, double most) { return full < most ? 0 : full - most; }

// How much longer a pass takes whose planes fill so much of the second-level cache, or more than all of it; each level looks ``deep``
// rows across. Fitted to passes of heat, wave and Gray-Scott equations on a processor whose third-level cache is near and on one
// where it is far (docs/design/native.md).
static double spilled(double full, bool flat, long deep, bool far) {
    if (flat) return 1 + (far ? 0.8 * over(full, 0.75) : 0.033 * over(full, 1.6));
    return 1 + (1 + deep) * (far ? 0.25 * over(full, 0.4) + 0.25 * over(full, 0.8) : 0.013 * over(full, 2)) + (far ? 0.2 * over(full, 2) : 0.05 * over(full, 8));
}

// Time of a cell of a field from and to memory, in cells of a pass. Rows that are planes wait for memory sooner.
constexpr double memory(bool flat) { return flat ? 1.4 : STATEMENTS < 20 ? 0.75 : 15 / STATEMENTS; }

// The same for steps in place.
static Blocking weigh_in_place(const Call& call, long steps, bool given, long threads) {
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    if (call.section || call.width[2] || ((call.width[0] || call.width[1]) && !call.area)) return best;
    Pipeline& pipe = *new Pipeline();
    Course& course = *new Course();
    bool flat = call.count[1] == 1;
    for_steps(steps, given, [&](long t) {
        pipe.lay_out(t, has_boundary(call, 0));
        const Level& first = pipe.level[0];
        double tile0 = (double)call.count[0] / threads;
        if (tile0 < 2.0 * first.reach[0] || call.count[1] < 2 * first.reach[1] || !course.lay_out(pipe, flat)) return;
        bool neighbours0 = threads > 1 || !(call.boundary[0][0] && call.boundary[0][1]), neighbours1 = !(call.boundary[1][0] && call.boundary[1][1]);
        double work = 0, planes = 0;
        long deep = 0;  // cells that a level looks at across
        for (int q = 1; q < pipe.levels; q++) {
            const long* reach = pipe.level[q].reach;
            work += (tile0 + 2.0 * neighbours0 * reach[0]) * (call.count[1] + 2.0 * neighbours1 * reach[1]);
            deep = most(deep, pipe.level[q - 1].reach[1] - reach[1]);
        }
        work /= tile0 * call.count[1] * pipe.steps;
        double fetched = 2.0 * neighbours0 * first.reach[0] / tile0 + 2.0 * neighbours1 * first.reach[1] / call.count[1];
        for (int f = 0; f < FIELDS; f++) planes += first.ahead + course.after[pipe.levels - 1][f].planes + 2 * AT_ONCE;
        for (long rows = flat ? 1 : 8; rows <= (flat ? 1 : 96); rows += most(1, rows / 3)) {
            double bytes = planes * (rows + 2.0 * deep) * up(call.count[2], LANES) * sizeof(real);
            double cost = work * spilled(bytes / call.cache, flat, deep, call.far) * (1 + 0.85 * deep / rows) + memory(flat) * (1 + 1.5 * fetched) * FIELDS / pipe.steps;
            if (cost < best.work) best = {(int)t, {threads, 1, 1}, rows, cost};
        }
    });
    delete &pipe;
    delete &course;
    return best;
}

constexpr double TILED = 1.15;  // time of tiles, whose cells are copied in and out, for their work, against that in place

// In tiles or in place, whichever takes less. That is decided for passes of as many steps as a pass can take, since each of the two
// keeps memory of its own.
static Blocking weigh(const Call& call, long steps, bool one_pass, long threads) {
    long usual = call.area ? call.every : one_pass ? steps : MOST_STEPS;
    Blocking place = weigh_in_place(call, usual, one_pass, threads), tiles = weigh_tiles(call, usual, one_pass, threads);
    if (place.rows && place.work < TILED * tiles.work) return place;
    return steps == usual ? tiles : weigh_tiles(call, steps, one_pass, threads);
}

static Call block(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t far) {
    Call call = {};
    for (int a = 0; a < AXES; a++) {
        call.count[a] = count[a], call.wraps[a] = (int32_t)wraps[a];
        for (int side = 0; side < 2; side++) call.boundary[a][side] = (int32_t)boundary[a];
    }
    call.cache = cache, call.far = far;
    return call;
}

// The work for a cell and step of one thread where so many steps are taken between two exchanges; 1 is a cell of a pass.
extern "C" double work(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t far, int64_t steps) {
    return weigh(block(count, wraps, boundary, cache, far), steps, true, 1).work;
}

// The cells that are kept beside the fields themselves; ``every``: steps between two exchanges, 0 where there are none.
extern "C" int64_t room(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t far, int64_t every, int64_t threads) {
    Call call = block(count, wraps, boundary, cache, far);
    Blocking blocking = weigh(call, every ? every : MOST_STEPS, every > 0, threads);
    if (!blocking.rows) return FIELDS * count[0] * count[1] * count[2];
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.barrier.threads = threads;
    long cells = 0;
    for (long n = 0; n < threads; n++) cells += FIELDS * wavefront.cut(n, wavefront.part[n]);
    delete &wavefront;
    return cells;
}

// As `weigh`; what was asked lately is remembered.
static Blocking choose(const Call& call, long steps, long threads) {
    struct Asked { long key[15]; Blocking answer; };
    static Asked asked[32];
    static long next = 0;
    bool one_pass = call.area || is_part(call);
    if (call.area) steps = (steps + passes_between(call, steps) - 1) / passes_between(call, steps);
    long key[15] = {least(steps, MOST_STEPS), call.area ? 1 + call.every : -one_pass, threads, call.count[0], call.count[1], call.count[2]};
    for (int a = 0; a < AXES; a++) key[6 + a] = call.wraps[a], key[9 + a] = 2 * call.boundary[a][0] + call.boundary[a][1];
    key[12] = call.cache, key[13] = call.far, key[14] = call.section ? call.section[1] : 0;
    pthread_mutex_lock(&kept_lock);
    for (const Asked& known : asked)
        if (!memcmp(known.key, key, sizeof key)) {
            Blocking answer = known.answer;
            pthread_mutex_unlock(&kept_lock);
            return answer;
        }
    Blocking answer = weigh(call, steps, one_pass, threads);
    memcpy(asked[next % 32].key, key, sizeof key), asked[next % 32].answer = answer, next++;
    pthread_mutex_unlock(&kept_lock);
    return answer;
}
