// The geometry of a sweep: how far each level is ahead of the store, and how far it reads beyond the tile.
#pragma once
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <type_traits>
#include <vector>

#include "program.hpp"

// For functions that run for every row, where a call would take a noticeable part of the time.
#define INLINED __attribute__((always_inline))
// For variables of the driver, and functions that one part of it calls and another defines. Each library has its own:
// the loader would give all programs of a process one copy of an inline variable that other libraries can see.
#define OWN __attribute__((visibility("hidden")))
// For functions that Python calls, with C linkage. Only the last part of the driver has them: the texts of the others
// make them static (`parts` in program.py).
#ifndef ENTRY
#define ENTRY extern "C"
#endif

// Ends the process: without memory, a call can neither finish its steps nor return to the state before them.
[[noreturn]] __attribute__((noinline)) static void end_without_memory(size_t bytes) {
    fprintf(stderr,
            "hpcstencil: native code needs %zu bytes more, but there is no more memory; use more processes, or a "
            "smaller grid\n",
            bytes);
    abort();
}

// Returns memory that holds zeros, for the elements of a list.
__attribute__((noinline)) static void* zeros(size_t bytes, size_t alignment) {
    void* made = alignment <= alignof(max_align_t) ? malloc(bytes) : aligned_alloc(alignment, bytes);
    if (!made && bytes) end_without_memory(bytes);
    return bytes ? memset(made, 0, bytes) : made;
}

// Arrays whose lengths a program determines; the elements begin as zeros.
template <class T>
struct List {
    T* cells;
    long length;

    explicit List(long length) : cells((T*)zeros(length * sizeof(T), alignof(T))), length(length) {
        if constexpr (!std::is_trivially_default_constructible<T>::value)
            for (long n = 0; n < length; n++) new (cells + n) T();
    }
    List(const List& other) : List(other.length) {
        for (long n = 0; n < length; n++) cells[n] = other.cells[n];
    }
    List(List&& other) noexcept : cells(other.cells), length(other.length) { other.cells = nullptr, other.length = 0; }
    List& operator=(const List& other) = delete;
    ~List() {
        if constexpr (!std::is_trivially_destructible<T>::value)
            for (long n = 0; n < length; n++) cells[n].~T();
        free(cells);
    }
    T& operator[](long n) { return cells[n]; }
    const T& operator[](long n) const { return cells[n]; }
    T* data() { return cells; }
    const T* data() const { return cells; }
    T* begin() { return cells; }
    T* end() { return cells + length; }
    const T* begin() const { return cells; }
    const T* end() const { return cells + length; }
    void fill(const T& value) {
        for (T& each : *this) each = value;
    }
};
template <class T>
struct Matrix {
    List<T> cells;
    long columns;

    Matrix(long rows, long columns) : cells(rows * columns), columns(columns) {}
    T* operator[](long row) { return cells.data() + row * columns; }
    const T* operator[](long row) const { return cells.data() + row * columns; }
};

static const int MAX_STEPS = GIVEN < FIELDS ? 1 : 16;  // of a sweep
static const int RINGS = FIELDS + MAX_STEPS * (ARRAYS - FIELDS);
static const int LEVELS = 1 + MAX_STEPS * PASSES;
static const int VARIANTS = LAYERS ? 1 << AXES : 1;
constexpr long UNBOUNDED = 1L << 40;

static inline long round_down(long n, long unit) { return n - ((n % unit) + unit) % unit; }
static inline long round_up(long n, long unit) { return round_down(n + unit - 1, unit); }
static inline long modulo(long n, long m) { return ((n % m) + m) % m; }
static inline long min(long a, long b) { return a < b ? a : b; }
static inline long max(long a, long b) { return a > b ? a : b; }

struct Ring {
    int array, step, level;                 // the array whose conditions hold at its ends, and their step
    long ahead, tail, planes, width[AXES];  // width: ghost cells that are read
    bool deep;
    int readers, memory;  // memory: the ring whose memory it uses, see `Pipeline::share_memory`
};
constexpr int EVALUATORS = 6;  // of expressions that are recorded: sums over the grid, single cells, and regions
struct Level {
    int step, pass;
    long ahead, reach[AXES], deep[AXES];
    const struct Inputs* evaluated[EVALUATORS];  // null, or what expressions of the state before the step read
};
// What recorded expressions read (stencil_records.hpp).
struct Inputs {
    const Input* input;
    int64_t count;

    const Input* begin() const { return input; }
    const Input* end() const { return input + count; }
    // A number for these inputs; others have another one, with near certainty.
    long hash() const {
        unsigned long hash = 1;
        for (const Input& each : *this)
            for (long part : {each.array, each.reach[0], each.reach[1], each.reach[2], int(each.straight)})
                hash = (hash + part) * 0x9e3779b97f4a7c15ul;
        return hash;
    }
};
// The steps of a sweep, a set of bits, whose first passes evaluate expressions, and what these read.
struct Evaluation {
    uint32_t steps;
    const Inputs* inputs;
};
struct Evaluations {
    Evaluation of[EVALUATORS] = {};
};

// Calls body(input, first) for each array that a level reads; ``first`` says that it reads it before it overwrites any.
template <class Body>
static void each_input(const Level& level, Body body) {
    for (int n = 0; n < passes[level.pass].inputs; n++) body(passes[level.pass].input[n], false);
    for (const Inputs* evaluated : level.evaluated)
        for (int64_t n = 0; evaluated && n < evaluated->count; n++) body(evaluated->input[n], true);
}

// What a sweep shares with the sweeps before and after it, where calls join steps (`JOINS_STEPS`): whether the first
// pass of its first step is ``begun``, computed by the sweep before, and whether it computes that of the ``next`` step.
struct Joints {
    bool begun, next;
};
constexpr uint32_t ALL_APART = ~0u;  // no steps of a sweep are joined

// The pipeline of a sweep over some steps, or over a section of one step. It has the ring buffers of planes, and for
// each level how far it is ahead of the store and how far it reads. Level 0 loads arrays into rings, and results are
// stored from rings.
struct Pipeline {
    int steps = 0, rings, levels, loaded, stored;
    Matrix<int> ring_of{MAX_STEPS + 1, ARRAYS};  // of an array in a step
    List<int> load{ARRAYS}, store{ARRAYS};
    List<bool> unread{ARRAYS};  // of each loaded array, whether the sweep only overwrites it
    List<Ring> ring{RINGS};
    List<Level> level{LEVELS};

    // Step t of the sweep is joined to the next one, unless bit t of ``apart`` is set.
    void lay_out(int steps_, bool boundary0, const int64_t* section = nullptr, Joints joints = {}, uint32_t apart = 0,
                 const Evaluations& evaluations = {}) {
        steps = steps_, levels = 1, rings = 0;
        level.fill({});
        for (int t = 0; t <= steps; t++)
            for (int n = 0; n < ARRAYS; n++) ring_of[t][n] = -1;
        loaded = section ? section[2] : GIVEN, stored = section ? section[3] : FIELDS;
        for (int n = 0; n < loaded; n++) {
            int array = section ? section[4 + n] : joints.begun ? begun_array(n) : n;
            load[n] = ring_of[0][array] = add(array, 0, 0);
        }
        for (int t = 0; t < steps; t++) {
            auto joined = [&](int t) { return JOINS_STEPS && !(apart >> t & 1); };
            bool begun = t ? joined(t - 1) : joints.begun, next = t < steps - 1 ? joined(t) : joints.next;
            for (int p = section ? section[0] : begun; p < (section ? section[1] : PASSES); p++, levels++) {
                Level& mine = level[levels];
                mine.step = t, mine.pass = next && p == PASSES - 1 ? PASSES : p;
                for (int e = 0; e < EVALUATORS && mine.pass == 0; e++)
                    if (evaluations.of[e].steps >> t & 1) mine.evaluated[e] = evaluations.of[e].inputs;
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
        for (int n = 0; n < stored; n++)
            store[n] = section ? ring_of[0][section[4 + loaded + n]] : ring_of[steps][joints.next ? begun_array(n) : n];
        const int none[AXES] = {0, 0, 0};
        for (int n = 0; n < stored; n++) need(store[n], 0, none, none, false);
        for (int q = levels - 1; q > 0; q--) {
            const Level& mine = level[q];
            const Pass& pass = passes[mine.pass];
            int reach[AXES], deep[AXES];
            for (int a = 0; a < AXES; a++) reach[a] = mine.reach[a], deep[a] = mine.deep[a];
            for (int o = 0; o < pass.outputs; o++) need_at_faces(output(q, o), mine.ahead, reach);
            for (int n = 0; n < pass.inputs; n++)
                need(ring_of[mine.step][pass.input[n].array], mine.ahead, reach, deep, boundary0, pass.input[n].reach);
            for (const Inputs* evaluated : mine.evaluated)
                for (int64_t n = 0; evaluated && n < evaluated->count; n++)
                    need(ring_of[mine.step][evaluated->input[n].array], mine.ahead, reach, none, boundary0,
                         evaluated->input[n].reach);
        }
        for (int n = 0; n < loaded; n++) {
            need_at_faces(load[n], level[0].ahead, nullptr);
            unread[n] = !ring[load[n]].readers;
        }
        share_memory();
        for (int r = 0; r < rings; r++) {
            ring[r].ahead = level[ring[r].level].ahead;
            ring[r].tail = min(ring[r].tail, ring[r].ahead);  // also that of a ring which nothing reads
            ring[r].planes = ring[r].ahead - ring[r].tail + 1;
            if (boundary0 && !ring[r].deep)
                ring[r].planes = max(ring[r].planes + ring[r].width[0], 2 * ring[r].width[0] + 3);
            ring[r].planes += AT_ONCE - 1;
            if (ring[r].memory != r) ring[r].planes = ring[ring[r].memory].planes;
        }
    }

    // Makes the sweep load as much beyond its own cells as another one.
    void widen(const Pipeline& other) {
        for (int a = 0; a < AXES; a++) level[0].reach[a] = max(level[0].reach[a], other.level[0].reach[a]);
    }

    // The array that holds a field's values after the first pass of a step.
    static int begun_array(int f) {
        for (int o = 0; o < passes[0].outputs; o++)
            if (field_of[passes[0].output[o]] == f) return passes[0].output[o];
        return f;
    }

    // Lets results overwrite what their pass reads, cell by cell, if nothing else reads it. Sums over steps, for
    // example, then stay in one ring.
    void share_memory() {
        for (int q = 1; q < levels; q++)
            for (int o = 0; o < passes[level[q].pass].outputs; o++) {
                Ring& made = ring[output(q, o)];
                const Pass& pass = passes[level[q].pass];
                for (int n = 0; n < pass.inputs && may_share(made); n++) {
                    Ring& read = ring[ring_of[level[q].step][pass.input[n].array]];
                    if (read.readers != 1 || !may_share(read)) continue;
                    made.memory = read.memory, read.readers = 0;
                    ring[made.memory].tail = min(ring[made.memory].tail, made.tail);
                    break;
                }
            }
    }

    // Whether a ring has neither ghost cells nor regions without values.
    static bool may_share(const Ring& r) {
        return !r.width[0] && !r.width[1] && !r.width[2] && !r.deep && !layers_of[r.array];
    }

    // The ring of the n-th result of a level.
    INLINED int output(int q, int n) const {
        int array = passes[level[q].pass].output[n];
        return array < ARRAYS ? ring_of[level[q].step][array] : ring_of[level[q].step + 1][array - ARRAYS];
    }

    int add(int array, int step, int level_) {
        ring[rings] = Ring{array, step, level_, 0, UNBOUNDED, 0, {0, 0, 0}, arrays[array].deep, 0, rings};
        return rings++;
    }

    // Records that a level reads a ring. The level is ``ahead`` planes before the store and computes ``reach`` cells
    // beyond the tile; it reads up to ``own`` cells from each.
    void need(int r, long ahead, const int* reach, const int* deep, bool boundary0, const int* own = nullptr) {
        Level& from = level[ring[r].level];
        // Ghost planes are there as soon as the planes that they mirror; deep planes are computed in their own turn.
        long slack = boundary0 && deep[0] && !ring[r].deep ? 2 * deep[0] + 1 : 0;
        from.ahead = max(from.ahead, ahead + (own ? own[0] : 0) + slack);
        ring[r].readers++;
        ring[r].tail = min(ring[r].tail, ahead - (own ? own[0] : 0));
        for (int a = 0; a < AXES; a++) {
            long more = own ? own[a] : 0;
            from.reach[a] = max(from.reach[a], reach[a] + more);
            if (ring[r].deep) from.deep[a] = max(from.deep[a], deep[a] + more);
            else more += deep[a];
            ring[r].width[a] = max(ring[r].width[a], more);
        }
    }

    void need_at_faces(int r, long ahead, const int* reach) {
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2; side++) {
                const Face& face = arrays[ring[r].array].face[a][side];
                for (int n = 0; n < face.nexts; n++) need_at_face(ring_of[ring[r].step][face.next[n]], r, ahead, reach);
            }
    }

    // Records that the ghost cells of ring ``of`` depend on the cells of ring ``r`` next to the boundary.
    void need_at_face(int r, int of, long ahead, const int* reach) {
        if (ring[r].level != ring[of].level) {
            Level& from = level[ring[r].level];
            from.ahead = max(from.ahead, ahead);
            for (int a = 0; a < AXES && reach; a++) from.reach[a] = max(from.reach[a], reach[a]);
        }
        ring[r].tail = min(ring[r].tail, ahead - ring[of].width[0] - 1);
        ring[r].readers++;
    }

    // Cells per row, and rows per plane, of a ring for a tile.
    long pitch(int r, long tile, bool whole) const {
        return round_up(tile + 2 * beyond(r, 2, whole), LANES) + 2 * LANES;
    }
    long rows(int r, long tile, bool whole) const { return tile + 2 * beyond(r, 1, whole); }
    long beyond(int r, int a, bool whole) const {
        const Level& l = level[ring[r].level];
        return (whole ? 0 : l.reach[a]) + l.deep[a] + ring[r].width[a];
    }
    // Cells of all rings. Of arrays that are 0 outside absorbing layers, only the part ``in_layers`` counts.
    double cells(long tile1, long tile2, bool whole1, bool whole2, double in_layers = 1) const {
        double sum = 2 * LANES;  // vectors may begin before the first row and end after the last one
        for (int r = 0; r < rings; r++)
            if (ring[r].memory == r)
                sum += (layers_of[ring[r].array] ? in_layers : 1)
                       * round_up(ring[r].planes * rows(r, tile1, whole1) * pitch(r, tile2, whole2), LANES);
        return sum;
    }
};

static inline bool has_boundary(const Call& call, int a) { return call.boundary[a][0] || call.boundary[a][1]; }
// Cells of one array of the caller.
static inline size_t cells_of(const Call& call) { return call.capacity[0] * call.capacity[1] * call.capacity[2]; }
// Whether the block needs ghost cells that other blocks own, received before the call or with edges.
static inline bool needs_ghosts(const Call& call) { return call.width[0] || call.width[1] || call.width[2]; }
// Whether a field is constant and its result belongs into the same array: then it is never stored.
static inline bool stays(const Call& call, int f) {
    return !call.section && f < GIVEN && ends[f] == f && call.fields[f] == call.results[f];
}
// The first field that does not; 0 if there is none.
static inline int first_moving(const Call& call) {
    for (int f = 0; f < FIELDS && !call.section; f++)
        if (!stays(call, f)) return f;
    return 0;
}
// The number of sweeps of a call that exchanges edges. It is the same for all blocks, and even if there are enough
// steps.
static inline long sweeps_between(const Call& call, long steps) {
    return min(steps, round_up((steps + call.every - 1) / call.every, 2));
}
// The plane of a block that has the cells of plane i: on a periodic axis, planes follow beyond the end.
static inline long home(const Call& call, long i) { return call.wraps[0] ? modulo(i, call.count[0]) : i; }
// Whether a block needs no cells of other blocks along an axis.
static inline bool needs_no_neighbours(const Call& call, int a) {
    return call.wraps[a] || (call.boundary[a][0] && call.boundary[a][1]);
}
