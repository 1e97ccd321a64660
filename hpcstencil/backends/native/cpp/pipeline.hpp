// What a program is given, what its tables say, and the geometry of a pass: which arrays there are, how far ahead of the store
// each level is, how far it reaches.
#pragma once
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

// What the caller hands over; see xla_bridge.cpp, which fills it.
struct Call {
    const void* const* fields;  // FIELDS arrays of ``capacity`` cells, of which the first GIVEN are read
    const void* const* ghosts;  // per axis lower and upper strips of all fields; null where nothing was received
    void* const* results;
    const double* parameters;
    const double* constants;
    const double* const* coordinates;  // per axis, ``margin`` more on both sides
    const double* clock;               // time at step 0, first step, step size, number of steps
    int64_t capacity[AXES], count[AXES], margin[AXES], width[AXES];
    int32_t wraps[AXES], boundary[AXES][2];
    int64_t threads, cache, far;  // cache: bytes of the second level; far: whether the third one is
    struct Area* area;  // null, or where neighbours find the edges of this block, and it those of theirs
    int64_t every;      // steps that these are good for
    // Null, or a section of one step: its first pass and that behind its last one, how many arrays are given and how many made, and
    // their numbers. ``fields`` and ``results`` are then these arrays.
    const int64_t* section;
};

struct Input { int array, reach[AXES]; bool straight; };  // reach: cells that a pass looks at beyond its own; straight: along one axis at a time
struct Plane { int input, offset; };               // a plane of an input that a pass reads; -1 - n is fixed array n
struct Rows { real* p; long pitch; };              // (0, 0) of a plane, and the distance of its rows
struct Place {                                     // what generated code knows of where it is
    const real* s;                                 // its scalars of this step; those of the next one follow after all of them
    const real* const* table;                      // functions of one coordinate, by index
    long i;
};
typedef void Compute(const Place&, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1);
// Ghost cells of rows j0 .. j1 - 1 (of one cell per row, across the last axis); k is the distance from the boundary in cells,
// ``next`` are the cells next to it.
typedef void Fill(const Place&, real* ghost, const real* mirror, long pitch, const Rows* next, long k, long j0, long j1, long x0, long x1);

struct Pass {
    Compute* compute;
    int scalars, inputs, planes, outputs, at_once;
    const Input* input;
    const Plane* plane;
    const int* output;  // an array of this step, or, beyond all arrays, of the next one
};
struct Face { Fill* fill; int scalars; bool wall; int nexts; const int* next; };  // next: arrays; fill == null: nothing is needed there
struct Array {
    bool deep;  // worked out beyond the boundary too, rather than continued there by a condition
    Face face[AXES][2];
};

extern const Pass passes[PASSES + TURNS];  // the last of those that turn is the last one of a step and the first of the next one
extern const Array arrays[ARRAYS];
extern const int ends[FIELDS];  // the array that holds each field after the step
extern const int field_of[ARRAYS];  // the field that an array is a value of; -1 where it is of none
extern const int table_axis[TABLES + 1];
static void prepare(const double* p, const double* c, double time, double dt, real* s);
static real fix(int number, const double* p, const double* c, const double* const* coordinates, const long* index);
static real tabulate(int table, const double* p, const double* c, const double* const* coordinates, const long* index);

// ---- the geometry of a pass -----------------------------------------------------------------------------------------

constexpr int MOST_STEPS = GIVEN < FIELDS ? 1 : 16;  // in one pass
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
struct Level {
    int step, pass;
    long ahead, reach[AXES], deep[AXES];
};

// The pipeline of so many steps, or of a section of one: which rings there are, how far ahead of the store each level is, how far it
// reaches. Arrays are loaded to some rings, and results stored from some.
struct Pipeline {
    int steps, rings, levels, loaded, stored;
    int ring_of[MOST_STEPS + 1][ARRAYS], load[ARRAYS], store[ARRAYS];
    Ring ring[RINGS];
    Level level[LEVELS];

    void lay_out(int steps_, bool boundary0, const int64_t* section = nullptr) {
        steps = steps_, levels = 1, rings = 0;
        memset(level, 0, sizeof level);
        for (int t = 0; t <= steps; t++)
            for (int n = 0; n < ARRAYS; n++) ring_of[t][n] = -1;
        loaded = section ? section[2] : GIVEN, stored = section ? section[3] : FIELDS;
        for (int n = 0; n < loaded; n++) {
            int array = section ? section[4 + n] : n;
            load[n] = ring_of[0][array] = add(array, 0, 0);
        }
        for (int t = 0; t < steps; t++) {
            for (int p = section ? section[0] : TURNS && t; p < (section ? section[1] : PASSES); p++, levels++) {
                Level& mine = level[levels];
                mine.step = t, mine.pass = TURNS && p == PASSES - 1 && t < steps - 1 ? PASSES : p;
                const Pass& pass = passes[mine.pass];
                for (int o = 0; o < pass.outputs; o++) {
                    int later = pass.output[o] >= ARRAYS, array = pass.output[o] - later * ARRAYS;
                    ring_of[t + later][array] = add(array, t + later, levels);
                }
            }
            for (int f = 0; f < FIELDS && !section; f++) {
                int r = ring_of[t + 1][f] = ring_of[t][ends[f]];
                if (r >= 0 && ends[f] >= FIELDS) ring[r].array = f, ring[r].step = t + 1;
            }
        }
        for (int n = 0; n < stored; n++) store[n] = section ? ring_of[0][section[4 + loaded + n]] : ring_of[steps][n];
        const int none[AXES] = {0, 0, 0};
        for (int n = 0; n < stored; n++) use(store[n], 0, none, none, false);
        for (int q = levels - 1; q > 0; q--) {
            const Level& mine = level[q];
            const Pass& pass = passes[mine.pass];
            int reach[AXES], deep[AXES];
            for (int a = 0; a < AXES; a++) reach[a] = mine.reach[a], deep[a] = mine.deep[a];
            for (int o = 0; o < pass.outputs; o++) besides(output(q, o), mine.ahead, reach);
            for (int n = 0; n < pass.inputs; n++) use(ring_of[mine.step][pass.input[n].array], mine.ahead, reach, deep, boundary0, pass.input[n].reach);
        }
        for (int n = 0; n < loaded; n++) besides(load[n], level[0].ahead, nullptr);
        for (int r = 0; r < rings; r++) {
            ring[r].ahead = level[ring[r].level].ahead;
            ring[r].planes = ring[r].ahead - ring[r].tail + 1;
            if (boundary0) ring[r].planes = most(ring[r].planes + ring[r].width[0], 2 * ring[r].width[0] + 3);
            ring[r].planes += AT_ONCE - 1;
        }
    }

    // The ring of the n-th result of a level.
    int output(int q, int n) const {
        int array = passes[level[q].pass].output[n];
        return array < ARRAYS ? ring_of[level[q].step][array] : ring_of[level[q].step + 1][array - ARRAYS];
    }

    int add(int array, int step, int level_) {
        ring[rings] = Ring{array, step, level_, 0, FAR, 0, {0, 0, 0}, arrays[array].deep};
        return rings++;
    }

    // A level that is ``ahead`` of the store and reaches so far beyond the tile looks at a ring.
    void use(int r, long ahead, const int* reach, const int* deep, bool boundary0, const int* own = nullptr) {
        Level& from = level[ring[r].level];
        long slack = boundary0 && deep[0] ? 2 * deep[0] + 1 : 0;
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
    long rows(int r, long tile, bool whole) const { return tile + 2 * beyond(r, 1, whole); }
    long beyond(int r, int a, bool whole) const {
        const Level& l = level[ring[r].level];
        return (whole ? 0 : l.reach[a]) + l.deep[a] + ring[r].width[a];
    }
    long cells(long tile1, long tile2, bool whole1, bool whole2) const {
        long sum = 0;
        for (int r = 0; r < rings; r++) sum += up(ring[r].planes * rows(r, tile1, whole1) * pitch(r, tile2, whole2), LANES);
        return sum + 2 * LANES;  // vectors may begin before the first row and end after the last one
    }
};

static inline bool has_boundary(const Call& call, int a) { return call.boundary[a][0] || call.boundary[a][1]; }
// Cells of an array of the caller's.
static inline size_t cells_of(const Call& call) { return call.capacity[0] * call.capacity[1] * call.capacity[2]; }
// Whether a block is a part of a grid, whose other parts hand over their edges.
static inline bool is_part(const Call& call) {
    bool part = false;
    for (int a = 0; a < AXES; a++) part = part || call.width[a] || call.capacity[a] != call.count[a];
    return part;
}
// Neighbours that hand over edges take as many passes, whatever their blocks are like: an even number, if there are as many steps.
static inline long passes_between(const Call& call, long steps) { return least(steps, up((steps + call.every - 1) / call.every, 2)); }
// Whether a block needs no cells of others along an axis.
static inline bool ends_here(const Call& call, int a) { return call.wraps[a] || (call.boundary[a][0] && call.boundary[a][1]); }
