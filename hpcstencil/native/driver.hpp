// Runs a generated step on one block: many steps per pass through memory (3.5-D temporal blocking).
//
// The planes of the first axis stream through a pipeline of levels: a load, the passes of step 1, those of step 2, ..., a
// store. Each level works on the plane that is just ready, so an array between two levels is a ring of a few planes, which
// stays in the cache. The other axes are cut into tiles, which compute what they need of their neighbours again (A. Nguyen
// et al., "3.5-D blocking optimization for stencil computations", SC'10). Grids with fewer axes have length 1 along others.
//
// Blocks of three axes are stepped in place instead where that is less work: see wavefront.hpp.
//
// The generated code defines, before it includes this: real (the cell's type) and the counts PARAMETERS, CONSTANTS, FIELDS, ARRAYS, PASSES,
// TABLES, FIXED, SCALARS and MOST_OFFSET (cells beyond its own that a function of coordinates looks at); and after it what is
// declared here. All indices are those of the block's own cells; ghost cells lie at negative indices and beyond the end. Rows are
// computed in whole vectors, so a few cells beyond a region may hold rubbish, which nothing reads.
#include "tile.hpp"
#include "wavefront.hpp"

// A block cut to tiles, which threads take as they come.
struct Tiles : Plan {
    Blocking blocking;
    real* scratch[FIELDS];
    bool aliased, own;
    long next_tile = 0;

    Tiles(const Call& call, const Blocking& blocking) : Plan(call), blocking(blocking) {}

    Job job_of(long k) const {
        Job job;
        job.call = &call;
        job.pipeline = &pipeline[which(k)];
        job.first = first_step(k);
        job.time = call.clock[0], job.dt = call.clock[2];
        for (int a = 0; a < AXES; a++) job.parts[a] = blocking.parts[a];
        for (int n = 0; n < TABLES; n++) job.tables[n] = tables[n];
        job.fixtures = &fixtures;
        job.past = past, job.given = k == 0, job.own = own && (k == 0 || call.area);
        job.turn = call.area && k + 1 < passes ? (call.area->epoch + 1) % 2 : -1;
        for (int f = 0; f < FIELDS; f++) {
            job.source[f] = k == 0 ? (const real*)call.fields[f] : buffer(k - 1, f);
            job.target[f] = buffer(k, f);
        }
        return job;
    }

    // The array that pass k writes: the last one writes the result, except where that is the source of a single pass.
    real* buffer(long k, int f) const {
        bool result = (passes - 1 - k) % 2 == 0;
        if (aliased && passes == 1) result = false;
        return result ? (real*)call.results[f] : scratch[f];
    }

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

// Memory that calls leave to later ones: of each thread of a call, of tables, and of fields.
struct Kept {
    Memory thread[MOST_THREADS], tables, fields, fixtures, known;  // known: what the fixtures were made of
    size_t known_size = 0;
    Kept* next;
};
static Kept* kept = nullptr;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_own(const Call& call) {
    bool own = false;
    for (int a = 0; a < AXES; a++) own = own || call.width[a] || call.capacity[a] != call.count[a];
    return own;
}

// Neighbours that hand over edges take as many passes, whatever their blocks are like.
static long passes_between(const Call& call, long steps) { return steps > 1 ? up((steps + call.every - 1) / call.every, 2) : 1; }

// Calls with(t) for the numbers of steps that a pass may take; ``given``: it takes all of them.
template <class With> static void for_steps(long steps, bool given, With with) {
    long top = least(steps, MOST_STEPS);
    for (long t = given ? top : 1; t <= top; t++)
        if (given || t <= 4 || t % 2 == 0) with(t);
}

// How many steps a pass takes and how tiles are cut: the least work for a cell and step, of what fits the cache. ``one_pass``
// takes all steps, since ghost cells that were received last no longer.
static Blocking weigh_tiles(const Call& call, long steps, bool one_pass, long threads) {
    bool boundary0 = call.boundary[0][0] || call.boundary[0][1];
    Pipeline& pipe = *new Pipeline();
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    for_steps(steps, one_pass, [&](long t) {
        pipe.lay_out(t, boundary0);
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
                double spill = full < 0.9 ? 1 : full < 6 ? 1.2 : least(4, full / 5);
                double cost = work * spill * idle + (call.count[1] == 1 ? 1.4 : 3.0) * FIELDS / pipe.steps;
                if (cost < best.work) best = {(int)t, {p0, p1, p2}, 0, cost};
            }
    });
    delete &pipe;
    return best;
}

static inline double over(double full, double most) { return full < most ? 0 : full - most; }

// The same for steps in place.
static Blocking weigh_in_place(const Call& call, long steps, bool given, long threads) {
    Blocking best = {1, {1, 1, 1}, 0, 1e300};
    if (call.width[2] || ((call.width[0] || call.width[1]) && !call.area)) return best;
    Pipeline& pipe = *new Pipeline();
    Course& course = *new Course();
    bool flat = call.count[1] == 1;
    for_steps(steps, given, [&](long t) {
        pipe.lay_out(t, call.boundary[0][0] || call.boundary[0][1]);
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
            double bytes = planes * (rows + 2.0 * deep) * up(call.count[2], LANES) * sizeof(real), full = bytes / call.cache;
            double spill = 1 + 0.013 * (1 + deep) * over(full, 2) + (flat ? 0.02 : 0.05) * over(full, flat ? 1 : 8);
            double cost = work * spill * (1 + 2.0 * deep / rows) + (1 + 1.5 * fetched) * FIELDS / pipe.steps;
            if (cost < best.work) best = {(int)t, {threads, 1, 1}, rows, cost};
        }
    });
    delete &pipe;
    delete &course;
    return best;
}

// In tiles or in place, whichever is less work. That is decided for passes of as many steps as a pass can take, since each of
// the two keeps memory of its own.
static Blocking weigh(const Call& call, long steps, bool one_pass, long threads) {
    long usual = call.area ? call.every : one_pass ? steps : MOST_STEPS;
    Blocking place = weigh_in_place(call, usual, one_pass, threads);
    if (place.rows && place.work < weigh_tiles(call, usual, one_pass, threads).work) return place;
    return weigh_tiles(call, steps, one_pass, threads);
}

static Call block(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache) {
    Call call = {};
    for (int a = 0; a < AXES; a++) {
        call.count[a] = count[a], call.wraps[a] = (int32_t)wraps[a];
        for (int side = 0; side < 2; side++) call.boundary[a][side] = (int32_t)boundary[a];
    }
    call.cache = cache;
    return call;
}

// The work for a cell and step of one thread where so many steps are taken between two exchanges; 1 is a cell of a pass.
extern "C" double work(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t steps) {
    return weigh(block(count, wraps, boundary, cache), steps, true, 1).work;
}

// The cells that are kept beside the fields themselves; ``every``: steps between two exchanges, 0 where there are none.
extern "C" int64_t room(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t every, int64_t threads) {
    Call call = block(count, wraps, boundary, cache);
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
    struct Asked { long key[12]; Blocking answer; };
    static Asked asked[32];
    static long next = 0;
    bool one_pass = call.area || is_own(call);
    if (call.area) steps = (steps + passes_between(call, steps) - 1) / passes_between(call, steps);
    long key[12] = {least(steps, MOST_STEPS), call.area ? 1 + call.every : -one_pass, threads, call.count[0], call.count[1], call.count[2]};
    for (int a = 0; a < AXES; a++) key[6 + a] = call.wraps[a], key[9 + a] = 2 * call.boundary[a][0] + call.boundary[a][1];
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

// The index of a coordinate that is given: on a periodic axis that of the cell itself; beyond all that is known, where nothing
// reads, any.
static inline long coordinate(const Call& call, int a, long x) {
    if (!call.margin[a]) return 0;
    return call.wraps[a] ? modulo(x, call.count[a]) : most(MOST_OFFSET - call.margin[a], least(x, call.count[a] + call.margin[a] - 1 - MOST_OFFSET));
}

static void fill_tables(const Call& call, const Pipeline& pipe, Kept* memory, const real** tables) {
    long beyond = 2 * LANES;
    for (int a = 0; a < AXES; a++) beyond = most(beyond, pipe.level[0].reach[a] + pipe.level[0].deep[a] + 64 + 2 * LANES);
    long total = 0, start[TABLES + 1];
    for (int n = 0; n < TABLES; n++) start[n] = total, total += up(call.count[table_axis[n]] + 2 * beyond, LANES);
    real* data = (real*)memory->tables.take((total + LANES) * sizeof(real));
    for (int n = 0; n < TABLES; n++) {
        int a = table_axis[n];
        tables[n] = data + start[n] + beyond;
        for (long x = -beyond; x < call.count[a] + beyond; x++) {
            long index[AXES] = {0, 0, 0};
            index[a] = coordinate(call, a, x);
            data[start[n] + beyond + x] = tabulate(n, call.parameters, call.constants, call.coordinates, index);
        }
    }
}

// Coordinates and numbers decide what fixed arrays hold: they are filled again only where those differ. A program may be that of
// several problems, which share the text and differ in constants.
static void fill_fixtures(const Call& call, const Pipeline& pipe, Kept* memory, Fixtures& fixtures) {
    if (!FIXED) return;
    long beyond[AXES], size[AXES], numbers = PARAMETERS + CONSTANTS + 2 * AXES;
    for (int a = 0; a < AXES; a++) {
        beyond[a] = call.margin[a] ? pipe.level[0].reach[a] + pipe.level[0].deep[a] + 16 : 0;
        if (a == 2) beyond[a] = up(beyond[a] + LANES, LANES);
        size[a] = a == 2 ? up(call.count[a] + 2 * beyond[a], LANES) : call.count[a] + 2 * beyond[a];
        numbers += call.count[a] + 2 * beyond[a];
    }
    double* made_of = (double*)malloc(numbers * sizeof(double));
    long n = 0;
    for (int p = 0; p < PARAMETERS; p++) made_of[n++] = call.parameters[p];
    for (int c = 0; c < CONSTANTS; c++) made_of[n++] = call.constants[c];
    for (int a = 0; a < AXES; a++) {
        made_of[n++] = call.count[a], made_of[n++] = beyond[a];
        for (long x = -beyond[a]; x < call.count[a] + beyond[a]; x++) made_of[n++] = call.coordinates[a][coordinate(call, a, x)];
    }
    fixtures.pitch = size[2], fixtures.plane = size[1] * size[2];
    real* data = (real*)memory->fixtures.take(FIXED * size[0] * fixtures.plane * sizeof(real));
    for (int f = 0; f < FIXED; f++) fixtures.origin[f] = data + f * size[0] * fixtures.plane + (beyond[0] * size[1] + beyond[1]) * size[2] + beyond[2];
    size_t bytes = n * sizeof(double);
    if (memory->known_size != bytes || memcmp(memory->known.data, made_of, bytes)) {
        long index[AXES];
        for (int f = 0; f < FIXED; f++)
            for (long i = -beyond[0]; i < call.count[0] + beyond[0]; i++)
                for (long j = -beyond[1]; j < call.count[1] + beyond[1]; j++)
                    for (long x = -beyond[2]; x < call.count[2] + beyond[2]; x++) {
                        index[0] = coordinate(call, 0, i), index[1] = coordinate(call, 1, j), index[2] = coordinate(call, 2, x);
                        fixtures.origin[f][i * fixtures.plane + j * fixtures.pitch + x] = fix(f, call.parameters, call.constants, call.coordinates, index);
                    }
        memcpy(memory->known.take(bytes), made_of, bytes), memory->known_size = bytes;
    }
    free(made_of);
}

static void hand_over_first(const Call& call) {
    for (int f = 0; f < FIELDS; f++)
        for (long i = 0; i < call.count[0]; i++)
            for (long j = 0; j < call.count[1]; j++)
                call.area->put(call.width, (call.area->epoch + 1) % 2, f, i, j, (const real*)call.fields[f] + (i * call.capacity[1] + j) * call.capacity[2], 0, call.count[2]);
    call.area->hand_over(call);
}

static Kept* borrow() {
    pthread_mutex_lock(&kept_lock);
    Kept* memory = kept;
    if (memory) kept = memory->next;
    pthread_mutex_unlock(&kept_lock);
    return memory ? memory : new Kept();
}

static void give_back(Kept* memory) {
    pthread_mutex_lock(&kept_lock);
    memory->next = kept, kept = memory;
    pthread_mutex_unlock(&kept_lock);
}

static void in_tiles(const Call& call, const Blocking& blocking, long steps, long threads, bool past, Kept* memory) {
    Tiles& tiles = *new Tiles(call, blocking);
    tiles.own = is_own(call), tiles.past = past, tiles.aliased = call.fields[0] == call.results[0];
    size_t whole = sizeof(real);
    for (int a = 0; a < AXES; a++) whole *= call.capacity[a];
    long passes = tiles.own ? 1 : (steps + blocking.steps - 1) / blocking.steps;
    if (call.area) passes = passes_between(call, steps);
    else if (tiles.aliased && passes > 1) passes = up(passes, 2);
    else if (tiles.aliased && steps > 1 && whole > (1 << 16) && !tiles.own) passes = 2;
    tiles.lay_out(steps, passes);
    size_t room = passes > 1 || tiles.aliased ? up(whole, 4096) : 0;
    for (int f = 0; f < FIELDS && room; f++) tiles.scratch[f] = (real*)((char*)memory->fields.take(room * FIELDS) + room * f);
    fill_tables(call, tiles.longest(), memory, tiles.tables);
    fill_fixtures(call, tiles.longest(), memory, tiles.fixtures);
    on_threads(threads, [&](long count) { tiles.barrier.threads = count; }, [&](long n) { tiles.work(memory->thread[n]); });
    if (tiles.aliased && passes == 1)
        for (int f = 0; f < FIELDS; f++)
            for (long i = 0; i < call.count[0]; i++)
                for (long j = 0; j < call.count[1]; j++)
                    copy((real*)call.results[f] + (i * call.capacity[1] + j) * call.capacity[2], tiles.scratch[f] + (i * call.count[1] + j) * call.count[2], call.count[2]);
    delete &tiles;
}

static void in_place(const Call& call, const Blocking& blocking, long steps, long threads, bool past, Kept* memory) {
    Wavefront& wavefront = *new Wavefront(call, blocking);
    wavefront.past = past;
    wavefront.lay_out(steps, call.area ? passes_between(call, steps) : (steps + blocking.steps - 1) / blocking.steps);
    fill_tables(call, wavefront.longest(), memory, wavefront.tables);
    fill_fixtures(call, wavefront.longest(), memory, wavefront.fixtures);
    on_threads(threads, [&](long count) { wavefront.barrier.threads = count; }, [&](long n) { wavefront.work(n, memory->thread[n]); });
    delete &wavefront;
}

// No steps: the memory that steps in place take is made ready, so that the first one does not take longer than others.
static void rest(const Call& call, long threads, Kept* memory) {
    size_t whole = sizeof(real);
    for (int a = 0; a < AXES; a++) whole *= call.capacity[a];
    for (int f = 0; f < FIELDS; f++)
        if (call.fields[f] != call.results[f]) memcpy(call.results[f], call.fields[f], whole);
    Blocking blocking = choose(call, call.area ? call.every : MOST_STEPS, threads);
    if (!blocking.rows) return;
    Wavefront& wavefront = *new Wavefront(call, blocking);
    on_threads(threads, [&](long count) { wavefront.barrier.threads = count; }, [&](long n) { wavefront.divide(n, memory->thread[n]); });
    delete &wavefront;
}

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
    if (call.area) hand_over_first(call);
    Blocking blocking = choose(call, steps, threads);
    (blocking.rows ? in_place : in_tiles)(call, blocking, steps, threads, past, memory);
    give_back(memory);
}
