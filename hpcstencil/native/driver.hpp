// Runs a generated step on one block: many steps per pass through memory (3.5-D temporal blocking).
//
// The planes of the first axis stream through a pipeline of levels: a load, the passes of step 1, those of step 2, ..., a
// store. Each level works on the plane that is just ready, so an array between two levels is a ring of a few planes, which
// stays in the cache. The other axes are cut into tiles, which compute what they need of their neighbours again (A. Nguyen
// et al., "3.5-D blocking optimization for stencil computations", SC'10). Grids with fewer axes have length 1 along others.
//
// The generated code defines, before it includes this: real (the cell's type) and the counts PARAMETERS, CONSTANTS, FIELDS, ARRAYS, PASSES,
// TABLES, FIXED, SCALARS and MOST_OFFSET (cells beyond its own that a function of coordinates looks at); and after it what is
// declared here. All indices are those of the block's own cells; ghost cells lie at negative indices and beyond the end. Rows are
// computed in whole vectors, so a few cells beyond a region may hold rubbish, which nothing reads.
#include "tile.hpp"

struct Team {
    const Call& call;
    Blocking blocking;
    long steps, passes;
    Pipeline pipeline[2];  // of the longer passes and of the shorter ones
    const real* tables[TABLES + 1];
    Fixtures fixtures;
    real* scratch[FIELDS];
    bool aliased, own, past;
    long next_tile, threads, waiting, generation;

    explicit Team(const Call& call) : call(call) {}

    Job job_of(long k) const {
        Job job;
        long longer = steps % passes, shorter = steps / passes;
        bool is_long = k < longer;
        job.call = &call;
        job.pipeline = &pipeline[is_long ? 0 : 1];
        job.first = (long)call.clock[1] + k * shorter + least(k, longer);
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

    // After pass k: the last thread to come lets all go on, when the neighbours are as far.
    void wait(long k) {
        long mine = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&waiting, 1, __ATOMIC_ACQ_REL) == threads) {
            waiting = 0, next_tile = 0;
            if (call.area && k + 1 < passes) call.area->hand_over(call);
            __atomic_store_n(&generation, mine + 1, __ATOMIC_RELEASE);
        } else
            for (long spins = 0; __atomic_load_n(&generation, __ATOMIC_ACQUIRE) == mine; spins++)
                if (spins > 2000) sched_yield();
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
            wait(k);
        }
    }
};

struct Helper { Team* team; Memory memory; pthread_t thread; };
static void* help(void* helper) { ((Helper*)helper)->team->work(((Helper*)helper)->memory); return nullptr; }

// Memory that calls leave to later ones: of each thread of a call, of tables, and of fields.
struct Kept {
    Memory thread[256], tables, fields, fixtures, known;  // known: what the fixtures were made of
    size_t known_size = 0;
    Kept* next;
};
static Kept* kept = nullptr;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

// How many steps a pass takes and how tiles are cut: the least work for a cell and step, of what fits the cache. ``one_pass``
// takes all steps, since ghost cells that were received last no longer.
static Blocking weigh(const Call& call, long steps, bool one_pass, long threads) {
    bool boundary0 = call.boundary[0][0] || call.boundary[0][1];
    Pipeline& pipe = *new Pipeline();
    Blocking best = {1, {1, 1, 1}, 1e300};
    for (long t = 1; t <= least(steps, MOST_STEPS); t++) {
        if (one_pass) t = least(steps, MOST_STEPS);
        else if (t > 4 && t % 2) continue;
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
                double cost = work * spill * idle + 3.0 * FIELDS / pipe.steps;
                if (cost < best.work) best = {(int)t, {p0, p1, p2}, cost};
            }
        if (one_pass) break;
    }
    delete &pipe;
    return best;
}

// The work for a cell and step of one thread where so many steps are taken between two exchanges; 1 is a cell of a pass.
extern "C" double work(const int64_t* count, const int64_t* wraps, const int64_t* boundary, int64_t cache, int64_t steps) {
    Call call = {};
    for (int a = 0; a < AXES; a++) {
        call.count[a] = count[a], call.wraps[a] = (int32_t)wraps[a];
        for (int side = 0; side < 2; side++) call.boundary[a][side] = (int32_t)boundary[a];
    }
    call.cache = cache;
    return weigh(call, steps, true, 1).work;
}

// As `weigh`; what was asked lately is remembered.
static Blocking choose(const Call& call, long steps, bool one_pass, long threads) {
    struct Asked { long key[12]; Blocking answer; };
    static Asked asked[32];
    static long next = 0;
    long key[12] = {least(steps, MOST_STEPS), one_pass, threads, call.count[0], call.count[1], call.count[2]};
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

extern "C" void advance(const Call* given) {
    const Call& call = *given;
    long steps = (long)call.clock[3];
    Team& team = *new Team(call);
    team.own = false;
    for (int a = 0; a < AXES; a++) team.own = team.own || call.width[a] || call.capacity[a] != call.count[a];
    size_t whole = sizeof(real);
    for (int a = 0; a < AXES; a++) whole *= call.capacity[a];
    team.aliased = call.fields[0] == call.results[0];
    if (steps <= 0) {
        for (int f = 0; f < FIELDS; f++)
            if (call.fields[f] != call.results[f]) memcpy(call.results[f], call.fields[f], whole);
        delete &team;
        return;
    }
    pthread_mutex_lock(&kept_lock);
    Kept* memory = kept;
    if (memory) kept = memory->next;
    pthread_mutex_unlock(&kept_lock);
    if (!memory) memory = new Kept();

    double cells = (double)call.count[0] * call.count[1] * call.count[2];
    team.threads = cells * steps * PASSES < 1e5 ? 1 : least(call.threads, 256);
    team.past = FIELDS * cells * sizeof(real) > 4.0 * call.cache;
    team.steps = steps;
    if (call.area) {  // neighbours take as many passes, whatever their blocks are like
        team.passes = steps > 1 ? up((steps + call.every - 1) / call.every, 2) : 1;
        team.blocking = choose(call, (steps + team.passes - 1) / team.passes, true, team.threads);
        hand_over_first(call);
    } else {
        team.blocking = choose(call, steps, team.own, team.threads);
        team.passes = team.own ? 1 : (steps + team.blocking.steps - 1) / team.blocking.steps;
        if (team.aliased && team.passes % 2 && team.passes > 1) team.passes++;
        if (team.aliased && team.passes == 1 && steps > 1 && whole > (1 << 16)) team.passes = 2;
    }
    bool boundary0 = call.boundary[0][0] || call.boundary[0][1];
    if (steps % team.passes) team.pipeline[0].lay_out(steps / team.passes + 1, boundary0);
    team.pipeline[1].lay_out(steps / team.passes, boundary0);
    size_t room = team.passes > 1 || team.aliased ? up(whole, 4096) : 0;
    for (int f = 0; f < FIELDS && room; f++) team.scratch[f] = (real*)((char*)memory->fields.take(room * FIELDS) + room * f);
    fill_tables(call, team.pipeline[steps % team.passes ? 0 : 1], memory, team.tables);
    fill_fixtures(call, team.pipeline[steps % team.passes ? 0 : 1], memory, team.fixtures);
    team.next_tile = team.waiting = team.generation = 0;
    Helper* helpers = new Helper[team.threads];
    for (long n = 1; n < team.threads; n++) {
        helpers[n].team = &team, helpers[n].memory = memory->thread[n];
        if (pthread_create(&helpers[n].thread, nullptr, help, &helpers[n])) { team.threads = n; break; }
    }
    team.work(memory->thread[0]);
    for (long n = 1; n < team.threads; n++) pthread_join(helpers[n].thread, nullptr), memory->thread[n] = helpers[n].memory;
    delete[] helpers;
    if (team.aliased && team.passes == 1)
        for (int f = 0; f < FIELDS; f++) memcpy(call.results[f], team.scratch[f], whole);
    pthread_mutex_lock(&kept_lock);
    memory->next = kept, kept = memory;
    pthread_mutex_unlock(&kept_lock);
    delete &team;
}
