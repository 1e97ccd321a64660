// Runs a generated step on one block: many steps per pass through memory (3.5-D temporal blocking).
//
// The planes of the first axis stream through a pipeline of levels: a load, the passes of step 1, those of step 2, ..., a
// store. Each level works on the plane that is just ready, so an array between two levels is a ring of a few planes, which
// stays in the cache. The other axes are cut into tiles, which compute what they need of their neighbours again (A. Nguyen
// et al., "3.5-D blocking optimization for stencil computations", SC'10). Grids with fewer axes have length 1 along others.
//
// The generated code defines, before it includes this: real (the cell's type) and the counts PARAMETERS, FIELDS, ARRAYS, PASSES,
// TABLES, FIXED, SCALARS and MOST_OFFSET (cells beyond its own that a function of coordinates looks at); and after it what is
// declared here. All indices are those of the block's own cells; ghost cells lie at negative indices and beyond the end. Rows are
// computed in whole vectors, so a few cells beyond a region may hold rubbish, which nothing reads.
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AXES 3
constexpr int LANES = 64 / sizeof(real);
typedef real vec __attribute__((vector_size(64), may_alias));
typedef real loose __attribute__((vector_size(64), aligned(sizeof(real)), may_alias));

// What the caller hands over; see call.py, which fills it in the same order.
struct Call {
    const void* const* fields;  // FIELDS arrays of ``capacity`` cells
    const void* const* ghosts;  // per axis lower and upper strips of all fields; null where nothing was received
    void* const* results;
    const double* parameters;
    const double* constants;
    const double* const* coordinates;  // per axis, ``margin`` more on both sides
    const double* clock;               // time at step 0, first step, step size, number of steps
    int64_t capacity[AXES], count[AXES], margin[AXES], width[AXES];
    int32_t wraps[AXES], boundary[AXES][2];
    int64_t threads, cache;
};

struct Input { int array, reach[AXES]; };          // reach: cells that a pass looks at beyond its own
struct Plane { int input, offset; };               // a plane of an input that a pass reads; -1 - n is fixed array n
struct Rows { real* p; long pitch; };              // (0, 0) of a plane, and the distance of its rows
struct Place {                                     // what generated code knows of where it is
    const real* s;                                 // its scalars of this step
    const real* const* table;                      // functions of one coordinate, by index
    long i;
};
constexpr int PLANES = 64;  // that a pass looks at, or writes
typedef void Compute(const Place&, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1);
// Ghost cells of rows j0 .. j1 - 1 (of one cell per row, across the last axis); k is the distance from the boundary in cells,
// ``next`` are the cells next to it.
typedef void Fill(const Place&, real* ghost, const real* mirror, long pitch, const Rows* next, long k, long j0, long j1, long x0, long x1);

struct Pass {
    Compute* compute;
    int scalars, inputs, planes, outputs, jam;
    const Input* input;
    const Plane* plane;
    const int* output;
};
struct Face { Fill* fill; int scalars; bool wall; int nexts; const int* next; };  // fill == null: nothing is needed there
struct Array {
    bool deep;  // worked out beyond the boundary too, rather than continued there by a condition
    Face face[AXES][2];
};

extern const Pass passes[PASSES];
extern const Array arrays[ARRAYS];
extern const int ends[FIELDS];  // the array that holds each field after the step
extern const int table_axis[TABLES + 1];
static void prepare(const double* p, const double* c, double time, double dt, real* s);
static real fix(int number, const double* p, const double* c, const double* const* coordinates, const long* index);
static real tabulate(int table, const double* p, const double* c, const double* const* coordinates, const long* index);

// ---- the geometry of a pass -----------------------------------------------------------------------------------------

constexpr int MOST_STEPS = 16;  // in one pass
constexpr int RINGS = FIELDS + MOST_STEPS * (ARRAYS - FIELDS);
constexpr int LEVELS = 1 + MOST_STEPS * PASSES;
constexpr long FAR = 1L << 40;

static inline long up(long n, long unit) { return (n + unit - 1) / unit * unit; }
static inline long down(long n, long unit) { return n - ((n % unit) + unit) % unit; }
static inline long modulo(long n, long m) { return ((n % m) + m) % m; }
static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }

struct Ring {
    int array, step, level;  // the array whose conditions hold at its ends, and the step they belong to
    long ahead, tail, planes, width[AXES];  // width: ghost cells that are looked at
    bool deep;
};
struct Level { long ahead, reach[AXES], deep[AXES]; };

// The pipeline of so many steps: which rings there are, how far ahead of the store each level is, how far it reaches.
struct Pipeline {
    int steps, rings, levels;
    int ring_of[MOST_STEPS + 1][ARRAYS];
    Ring ring[RINGS];
    Level level[LEVELS];

    void lay_out(int steps_, bool boundary0) {
        steps = steps_, levels = 1 + steps * PASSES, rings = 0;
        for (int f = 0; f < FIELDS; f++) ring_of[0][f] = add(f, 0, 0);
        for (int t = 0; t < steps; t++) {
            for (int p = 0; p < PASSES; p++)
                for (int o = 0; o < passes[p].outputs; o++) ring_of[t][passes[p].output[o]] = add(passes[p].output[o], t, 1 + t * PASSES + p);
            for (int f = 0; f < FIELDS; f++) {
                int r = ring_of[t + 1][f] = ring_of[t][ends[f]];
                if (ends[f] >= FIELDS) ring[r].array = f, ring[r].step = t + 1;
            }
        }
        memset(level, 0, sizeof level);
        const int none[AXES] = {0, 0, 0};
        for (int f = 0; f < FIELDS; f++) use(ring_of[steps][f], 0, none, none, false, false);
        for (int t = steps - 1; t >= 0; t--)
            for (int p = PASSES - 1; p >= 0; p--) {
                const Level& mine = level[1 + t * PASSES + p];
                int reach[AXES], deep[AXES];
                for (int a = 0; a < AXES; a++) reach[a] = mine.reach[a], deep[a] = mine.deep[a];
                for (int o = 0; o < passes[p].outputs; o++) besides(ring_of[t][passes[p].output[o]], mine.ahead, reach);
                for (int n = 0; n < passes[p].inputs; n++) {
                    const Input& input = passes[p].input[n];
                    use(ring_of[t][input.array], mine.ahead, reach, deep, true, boundary0, input.reach);
                }
            }
        for (int f = 0; f < FIELDS; f++) besides(ring_of[0][f], level[0].ahead, nullptr);
        for (int r = 0; r < rings; r++) {
            ring[r].ahead = level[ring[r].level].ahead;
            ring[r].planes = ring[r].ahead - ring[r].tail + 1;
            if (boundary0) ring[r].planes = most(ring[r].planes + ring[r].width[0], 2 * ring[r].width[0] + 3);
        }
    }

    int add(int array, int step, int level_) {
        ring[rings] = Ring{array, step, level_, 0, FAR, 0, {0, 0, 0}, arrays[array].deep};
        return rings++;
    }

    // A level that is ``ahead`` of the store and reaches so far beyond the tile looks at a ring.
    void use(int r, long ahead, const int* reach, const int* deep, bool pass, bool boundary0, const int* own = nullptr) {
        Level& from = level[ring[r].level];
        long slack = boundary0 && pass && deep[0] ? 2 * deep[0] + 1 : 0;
        from.ahead = most(from.ahead, ahead + (own ? own[0] : 0) + slack);
        ring[r].tail = least(ring[r].tail, ahead - (own ? own[0] : 0));
        for (int a = 0; a < AXES; a++) {
            long more = own ? own[a] : 0;
            from.reach[a] = most(from.reach[a], reach[a] + more);
            if (ring[r].deep) from.deep[a] = most(from.deep[a], deep[a] + more);
            else more += deep[a];
            ring[r].width[a] = most(ring[r].width[a], more);
        }
    }

    void besides(int r, long ahead, const int* reach) {
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2; side++) {
                const Face& face = arrays[ring[r].array].face[a][side];
                for (int n = 0; n < face.nexts; n++) beside(ring_of[ring[r].step][face.next[n]], r, ahead, reach);
            }
    }

    // The ghost cells of ring ``of`` need what ring ``r`` holds next to the boundary.
    void beside(int r, int of, long ahead, const int* reach) {
        if (ring[r].level != ring[of].level) {
            Level& from = level[ring[r].level];
            from.ahead = most(from.ahead, ahead);
            for (int a = 0; a < AXES && reach; a++) from.reach[a] = most(from.reach[a], reach[a]);
        }
        ring[r].tail = least(ring[r].tail, ahead - ring[of].width[0] - 1);
    }

    // Cells per row and plane that a ring keeps for a tile.
    long pitch(int r, long tile, bool whole) const { return up(tile + 2 * beyond(r, 2, whole), LANES) + 2 * LANES; }
    long rows(int r, long tile, bool whole) const { return tile + 2 * beyond(r, 1, whole) + 4; }
    long beyond(int r, int a, bool whole) const {
        const Level& l = level[ring[r].level];
        return (whole ? 0 : l.reach[a]) + l.deep[a] + ring[r].width[a];
    }
    long cells(long tile1, long tile2, bool whole1, bool whole2) const {
        long sum = 0;
        for (int r = 0; r < rings; r++) sum += up(ring[r].planes * rows(r, tile1, whole1) * pitch(r, tile2, whole2), LANES);
        return sum + LANES;
    }
};

// Whether a block needs no cells of others along an axis.
static inline bool ends_here(const Call& call, int a) { return call.wraps[a] || (call.boundary[a][0] && call.boundary[a][1]); }

// Steps per pass and tiles per axis.
struct Blocking { int steps; long parts[AXES]; };

// The memory of a thread, kept from call to call.
struct Memory {
    char* data = nullptr;
    size_t size = 0;
    void* take(size_t wanted) {
        if (wanted > size) {
            free(data);
            size = up(wanted, 1 << 16);
            data = (char*)aligned_alloc(4096, size);
        }
        return data;
    }
    void* take_clear(size_t wanted) {  // what is not computed must at least be a number that is quick to compute with
        size_t before = size;
        take(wanted);
        if (size != before) memset(data, 0, size);
        return data;
    }
};

struct Side { bool boundary, wraps; };  // neither: other cells follow, which are loaded

// Arrays of functions of several coordinates, filled once: the cells of the block and some beyond.
struct Fixtures {
    real* origin[FIXED + 1];
    long pitch, plane;
};

struct Job {
    const Call* call;
    const Pipeline* pipeline;
    const real* tables[TABLES + 1];
    const Fixtures* fixtures;
    long parts[AXES];
    const real* source[FIELDS];
    real* target[FIELDS];
    bool past;  // results go past the caches, which they would fill
    bool own;  // the source is the caller's arrays with ghost strips, of ``capacity``; else a whole block
    double time, dt;
    long first;
};

// One tile: everything a thread needs to stream it.
struct Tile {
    const Job& job;
    const Call& call;
    const Pipeline& pipe;
    long from[AXES], to[AXES];
    Side side[AXES][2];
    struct Store { long pitch, plane; } store[RINGS];
    real* origin[RINGS];  // the first cell of a ring's first plane
    real scalars[MOST_STEPS + 1][SCALARS + 1];

    Tile(const Job& job, const long* number, Memory& memory) : job(job), call(*job.call), pipe(*job.pipeline) {
        for (int a = 0; a < AXES; a++) {
            long n = call.count[a], parts = job.parts[a];
            from[a] = n * number[a] / parts, to[a] = n * (number[a] + 1) / parts;
            if (a == 2 && parts > 1) {
                long size = up((n + parts - 1) / parts, LANES);
                from[a] = least(n, size * number[a]), to[a] = least(n, size * (number[a] + 1));
            }
            for (int s = 0; s < 2; s++) side[a][s] = {call.boundary[a][s] != 0, call.wraps[a] && parts == 1 && a > 0};
        }
        real* next = (real*)memory.take_clear(pipe.cells(widest(1), widest(2), whole(1), whole(2)) * sizeof(real) + 4096);
        for (int r = 0; r < pipe.rings; r++) {
            const Ring& ring = pipe.ring[r];
            Store& s = store[r];
            long lo, hi;
            s.pitch = pipe.pitch(r, widest(2), whole(2));
            s.plane = pipe.rows(r, widest(1), whole(1)) * s.pitch;
            region(ring.level, 1, lo, hi);
            origin[r] = next - (lo - ring.width[1]) * s.pitch;
            region(ring.level, 2, lo, hi);
            origin[r] -= down(lo - ring.width[2], LANES);
            next += ring.planes * s.plane;
        }
        for (int t = 0; t <= pipe.steps; t++) prepare(call.parameters, call.constants, job.time + (job.first + t) * job.dt, job.dt, scalars[t]);
    }

    bool whole(int a) const { return job.parts[a] == 1 && ends_here(call, a); }
    long widest(int a) const { return a == 2 && job.parts[2] > 1 ? up((call.count[2] + job.parts[2] - 1) / job.parts[2], LANES) : (call.count[a] + job.parts[a] - 1) / job.parts[a]; }

    // What a level computes along an axis.
    void region(int level, int a, long& lo, long& hi) const {
        const Level& l = pipe.level[level];
        lo = side[a][0].wraps ? 0 : from[a] - l.reach[a];
        hi = side[a][1].wraps ? call.count[a] : to[a] + l.reach[a];
        if (side[a][0].boundary) lo = most(lo, -l.deep[a]);
        if (side[a][1].boundary) hi = least(hi, call.count[a] + l.deep[a]);
    }

    real* plane(int r, long i) const { return origin[r] + modulo(i, pipe.ring[r].planes) * store[r].plane; }

    // What a level works on, found out once: the cells of a plane, and where its planes are.
    struct Source { int ring, back; };  // a plane so many behind the one that its ring holds last, or of a fixed array
    struct Work { long lo, hi, j0, j1, x0, x1; int step, first, planes; const Pass* pass; };
    Work work[LEVELS];
    Source sources[LEVELS * PLANES];
    int slot[RINGS];  // of the plane that was computed last, or is being computed

    void stream() {
        long begin = FAR;
        int next = 0;
        for (int q = 0; q < pipe.levels; q++) {
            Work& w = work[q];
            region(q, 0, w.lo, w.hi), region(q, 1, w.j0, w.j1), region(q, 2, w.x0, w.x1);
            begin = least(begin, w.lo - pipe.level[q].ahead);
            if (!q) continue;
            w.step = (q - 1) / PASSES, w.pass = &passes[(q - 1) % PASSES], w.first = next, w.planes = w.pass->planes;
            w.j1 = w.j0 + up(w.j1 - w.j0, w.pass->jam), w.x0 = down(w.x0, LANES), w.x1 = up(w.x1, LANES);
            for (int n = 0; n < w.planes; n++, next++) {
                if (w.pass->plane[n].input < 0) {
                    sources[next] = {w.pass->plane[n].input, w.pass->plane[n].offset};
                    continue;
                }
                int r = pipe.ring_of[w.step][w.pass->input[w.pass->plane[n].input].array];
                sources[next] = {r, int(pipe.ring[r].ahead - pipe.level[q].ahead) - w.pass->plane[n].offset};
            }
        }
        for (int r = 0; r < pipe.rings; r++) slot[r] = modulo(begin + pipe.ring[r].ahead, pipe.ring[r].planes);
        for (long s = begin; s < to[0]; s++) {
            for (int q = 0; q < pipe.levels; q++) {
                long i = s + pipe.level[q].ahead;
                if (i < work[q].lo || i >= work[q].hi) continue;
                if (q == 0) load(i);
                else run(work[q], i);
            }
            if (s >= from[0]) unload(s);
            for (int r = 0; r < pipe.rings; r++) slot[r] = slot[r] + 1 == pipe.ring[r].planes ? 0 : slot[r] + 1;
        }
    }

    // The plane so many behind the last one of a ring.
    Rows behind(int r, int back) const {
        int n = slot[r] - back;
        return {origin[r] + (n < 0 ? n + pipe.ring[r].planes : n) * store[r].plane, store[r].pitch};
    }

    void run(const Work& w, long i) {
        Rows in[PLANES], out[PLANES];
        for (int n = 0; n < w.planes; n++) {
            const Source& source = sources[w.first + n];
            if (source.ring >= 0) in[n] = behind(source.ring, source.back);
            else in[n] = {job.fixtures->origin[-1 - source.ring] + (i + source.back) * job.fixtures->plane, job.fixtures->pitch};
        }
        for (int n = 0; n < w.pass->outputs; n++) out[n] = behind(pipe.ring_of[w.step][w.pass->output[n]], 0);
        Place place = {scalars[w.step] + w.pass->scalars, job.tables, i};
        w.pass->compute(place, in, out, w.j0, w.j1, w.x0, w.x1);
        for (int n = 0; n < w.pass->outputs; n++) finish(pipe.ring_of[w.step][w.pass->output[n]], i);
    }

    // The ghost cells that follow from plane i of a ring.
    void finish(int r, long i) {
        const Ring& ring = pipe.ring[r];
        if (!ring.width[0] && !ring.width[1] && !ring.width[2]) return;
        fill_plane(r, i);
        if (ring.deep) return;
        long n = call.count[0], w = ring.width[0];
        const Face* face = arrays[ring.array].face[0];
        if (side[0][0].boundary && w) {
            long k = face[0].wall ? i : i + 1;
            if (i >= 0 && k >= 1 && k <= w) across(r, face[0], -k, i, k, 0);
        }
        if (side[0][1].boundary && w && i == n - 1)
            for (long k = 1; k <= w; k++) across(r, face[1], n + k - 1, face[1].wall ? n - k + 1 : n - k, face[1].wall ? k - 1 : k, n - 1);
    }

    // A ghost plane beyond an end of the first axis.
    void across(int r, const Face& face, long ghost, long mirror, long k, long beside) {
        int t = pipe.ring[r].step;
        long j0, j1, x0, x1;
        region(pipe.ring[r].level, 1, j0, j1), region(pipe.ring[r].level, 2, x0, x1);
        Place place = {scalars[t] + face.scalars, job.tables, ghost};
        Rows next[FIELDS + 1];
        for (int n = 0; n < face.nexts; n++) {
            int b = pipe.ring_of[t][face.next[n]];
            next[n] = {plane(b, beside), store[b].pitch};
        }
        face.fill(place, plane(r, ghost), plane(r, mirror), store[r].pitch, next, k, j0, j1, down(x0, LANES), up(x1, LANES));
        fill_plane(r, ghost);
    }

    // The ghost cells of a plane beyond the ends of the second and the third axis.
    void fill_plane(int r, long i) {
        const Ring& ring = pipe.ring[r];
        int t = ring.step;
        const Store& s = store[r];
        real* p = plane(r, i);
        Rows next[FIELDS + 1];
        long w = ring.width[1], n = call.count[1], x0, x1, j0, j1;
        region(ring.level, 1, j0, j1), region(ring.level, 2, x0, x1);
        long v0 = down(x0, LANES), v1 = up(x1, LANES);
        if (w && side[1][0].wraps)
            for (long k = 1; k <= w; k++) {
                memcpy(p - k * s.pitch + v0, p + modulo(-k, n) * s.pitch + v0, (v1 - v0) * sizeof(real));
                memcpy(p + (n + k - 1) * s.pitch + v0, p + modulo(k - 1, n) * s.pitch + v0, (v1 - v0) * sizeof(real));
            }
        for (int e = 0; w && e < 2 && !ring.deep; e++) {
            const Face& face = arrays[ring.array].face[1][e];
            if (!side[1][e].boundary || (e ? j1 < n : j0 > 0)) continue;
            Place place = {scalars[t] + face.scalars, job.tables, i};
            for (long k = 1; k <= w; k++) {
                long ghost = e ? n + k - 1 : -k, mirror = e ? n - k + face.wall : k - 1 + face.wall;
                for (int m = 0; m < face.nexts; m++) {
                    int b = pipe.ring_of[t][face.next[m]];
                    next[m] = {plane(b, i) + (e ? n - 1 : 0) * store[b].pitch, 0};
                }
                face.fill(place, p, p + (mirror - ghost) * s.pitch, s.pitch, next, e && face.wall ? k - 1 : k, ghost, ghost + 1, v0, v1);
            }
            if (e) j1 = n + w; else j0 = -w;
        }
        if (side[1][0].wraps && w) j0 = -w, j1 = n + w;
        w = ring.width[2], n = call.count[2];
        if (!w) return;
        if (side[2][0].wraps) {
            for (long j = j0; j < j1; j++) {
                real* row = p + j * s.pitch;
                long near = n - 1, far = 0;  // it may be shorter than there are ghost cells
                for (long k = 1; k <= w; k++) {
                    row[-k] = row[near], row[n + k - 1] = row[far];
                    near = near ? near - 1 : n - 1, far = far + 1 < n ? far + 1 : 0;
                }
            }
            return;
        }
        for (int e = 0; e < 2 && !ring.deep; e++) {
            const Face& face = arrays[ring.array].face[2][e];
            if (!side[2][e].boundary || (e ? x1 < n : x0 > 0)) continue;
            Place place = {scalars[t] + face.scalars, job.tables, i};
            for (long k = 1; k <= w; k++) {
                long ghost = e ? n + k - 1 : -k, mirror = e ? n - k + face.wall : k - 1 + face.wall;
                for (int m = 0; m < face.nexts; m++) {
                    int b = pipe.ring_of[t][face.next[m]];
                    next[m] = {plane(b, i) + (e ? n - 1 : 0), store[b].pitch};
                }
                face.fill(place, p + ghost, p + mirror, s.pitch, next, e && face.wall ? k - 1 : k, j0, j1, 0, 1);
            }
        }
    }

    // ---- from and to memory ----

    void load(long i) {
        for (int f = 0; f < FIELDS; f++) {
            int r = pipe.ring_of[0][f];
            long j0, j1, x0, x1;
            region(0, 1, j0, j1), region(0, 2, x0, x1);
            real* p = plane(r, i);
            for (long j = j0; j < j1; j++) load_row(f, p + j * store[r].pitch, i, j, x0, x1);
        }
        for (int f = 0; f < FIELDS; f++) finish(pipe.ring_of[0][f], i);
    }

    void load_row(int f, real* to, long i, long j, long x0, long x1) const {
        long index[AXES] = {i, j, 0};
        if (job.own && call.width[2]) {
            if (x0 < 0) index[2] = x0, copy(to + x0, cell(f, index), least(0, x1) - x0), x0 = 0;
            if (x1 > call.count[2]) index[2] = call.count[2], copy(to + call.count[2], cell(f, index), x1 - call.count[2]), x1 = call.count[2];
        }
        for (long x = x0; x < x1;) {
            index[2] = call.wraps[2] ? modulo(x, call.count[2]) : x;
            long piece = least(x1 - x, call.count[2] - index[2]);
            copy(to + x, cell(f, index), piece);
            x += piece;
        }
    }

    static void copy(real* to, const real* from, long n) { memcpy(to, from, n * sizeof(real)); }

    // Where a cell of the source is: in the block itself, or in the strip that came last for it.
    const real* cell(int f, const long* at) const {
        long index[AXES], size[AXES];
        for (int a = 0; a < AXES; a++) {
            index[a] = call.wraps[a] ? modulo(at[a], call.count[a]) : at[a];
            size[a] = job.own ? call.capacity[a] : call.count[a];
        }
        for (int a = AXES - 1; a >= 0 && job.own; a--) {
            if (!call.width[a] || (index[a] >= 0 && index[a] < call.count[a])) continue;
            const real* strip = (const real*)call.ghosts[2 * a + (index[a] >= 0)];
            for (int b = 0; b < a; b++) {
                if (!call.width[b]) continue;
                if (call.ghosts[2 * b]) size[b] += call.width[b], index[b] += call.width[b];
                if (call.ghosts[2 * b + 1]) size[b] += call.width[b];
            }
            index[a] = index[a] < 0 ? index[a] + call.width[a] : index[a] - call.count[a];
            size[a] = call.width[a];
            return strip + ((f * size[0] + index[0]) * size[1] + index[1]) * size[2] + index[2];
        }
        return job.source[f] + (index[0] * size[1] + index[1]) * size[2] + index[2];
    }

    // Past the caches where the processor can: nobody reads the cells before the whole block is written.
    static void copy_out(real* to, const real* from, long n, bool past) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
        typedef float wide __attribute__((vector_size(64), may_alias));
        typedef float unaligned __attribute__((vector_size(64), aligned(4), may_alias));
        if (past && n >= 4 * LANES) {
            long skewed = (-(intptr_t)to & 63) / (long)sizeof(real);
            copy(to, from, skewed);
            for (to += skewed, from += skewed, n -= skewed; n >= LANES; to += LANES, from += LANES, n -= LANES)
                __builtin_ia32_movntps512((float*)to, *(const unaligned*)from);
        }
#endif
        copy(to, from, n);
    }

    void unload(long i) const {
        for (int f = 0; f < FIELDS; f++) {
            int r = pipe.ring_of[pipe.steps][f];
            const real* p = plane(r, i);
            for (long j = from[1]; j < to[1]; j++)
                copy_out(job.target[f] + (i * target_size(1) + j) * target_size(2) + from[2], p + j * store[r].pitch + from[2], to[2] - from[2], job.past);
        }
    }

    bool to_results() const { return job.target[0] == (real*)call.results[0]; }
    long target_size(int a) const { return to_results() ? call.capacity[a] : call.count[a]; }
};

// ---- many passes by several threads ---------------------------------------------------------------------------------

struct Team {
    const Call& call;
    Blocking blocking;
    long steps, passes_left, passes;
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
        job.past = past, job.own = k == 0 && own;
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

    void wait() {
        long mine = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&waiting, 1, __ATOMIC_ACQ_REL) == threads) {
            waiting = 0, next_tile = 0;
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
                Tile(job, number, memory).stream();
            }
            __sync_synchronize();  // what went past the caches too
            wait();
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

// How many steps a pass takes and how tiles are cut: the least work for a cell and step, of what fits the cache.
static Blocking weigh(const Call& call, long steps, bool one_pass, long threads) {
    bool boundary0 = call.boundary[0][0] || call.boundary[0][1];
    Pipeline& pipe = *new Pipeline();
    Blocking best = {1, {1, 1, 1}};
    double least_cost = 1e300;
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
                if (cost < least_cost) least_cost = cost, best = {(int)t, {p0, p1, p2}};
            }
        if (one_pass) break;
    }
    delete &pipe;
    return best;
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

// Coordinates and parameters decide what fixed arrays hold: they are filled again only where those differ.
static void fill_fixtures(const Call& call, const Pipeline& pipe, Kept* memory, Fixtures& fixtures) {
    if (!FIXED) return;
    long beyond[AXES], size[AXES], numbers = PARAMETERS + 2 * AXES;
    for (int a = 0; a < AXES; a++) {
        beyond[a] = call.margin[a] ? pipe.level[0].reach[a] + pipe.level[0].deep[a] + 16 : 0;
        if (a == 2) beyond[a] = up(beyond[a] + LANES, LANES);
        size[a] = a == 2 ? up(call.count[a] + 2 * beyond[a], LANES) : call.count[a] + 2 * beyond[a];
        numbers += call.count[a] + 2 * beyond[a];
    }
    double* made_of = (double*)malloc(numbers * sizeof(double));
    long n = 0;
    for (int p = 0; p < PARAMETERS; p++) made_of[n++] = call.parameters[p];
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

extern "C" void advance(const Call* given) {
    const Call& call = *given;
    long steps = (long)call.clock[3];
    Team& team = *new Team(call);
    team.own = call.width[0] || call.width[1] || call.width[2];
    bool uneven = false;
    for (int a = 0; a < AXES; a++) uneven = uneven || call.capacity[a] != call.count[a];
    team.own = team.own || uneven;
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
    team.blocking = choose(call, steps, team.own, team.threads);
    team.passes = team.own ? 1 : (steps + team.blocking.steps - 1) / team.blocking.steps;
    if (team.aliased && team.passes % 2 && team.passes > 1) team.passes++;
    if (team.aliased && team.passes == 1 && steps > 1 && whole > (1 << 16)) team.passes = 2;
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
