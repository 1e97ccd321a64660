// Many steps in place: each thread keeps its part of the block in one array per field and sweeps over it.
//
// The levels of a pass follow each other through the planes of the first axis as in `Pipeline`, over some rows of the second
// axis at a time; each level's rows begin ``reach`` lower than those of the level before, so that the rows before have all
// that it needs and nothing is computed twice but at the edges of parts. A level writes its results as many planes and rows
// away as makes them fall on what nobody looks at any more (the compressed grid of G. Wellein et al., "Efficient temporal
// blocking for stencil computations by multicore-aware wavefront parallelization", COMPSAC 2009, here with both axes moved). The
// next pass goes the other way, and back.
#pragma once
#include "field_drift.hpp"
#include "ghosts.hpp"
#include "snapshot_copies.hpp"

constexpr long NEAR = 512 * LANES;  // cells of 32 KB, which a first-level cache holds

// The part of a block that a thread works on.
struct Part {
    long from[AXES], to[AXES], pitch, plane, first;  // first: where in its memory cell (0, 0, 0) is
    real* origin[FIELDS];  // cell (0, 0, 0) of a field that has not moved

    real* row(int f, const Drift& moved, long i, long j) const { return origin[f] + (i - moved.planes) * plane + (j - moved.rows) * pitch; }
};

struct Wavefront : Plan {
    long rows;  // of a tile
    Pipeline usual;  // the pass that there is memory for, whatever this call's are
    Course course[2], usual_course;
    Part part[MOST_THREADS];
    Twice* also = nullptr;

    Wavefront(const Call& call, const Blocking& blocking) : Plan(call), rows(blocking.rows) {
        usual.lay_out(blocking.steps, has_boundary(call, 0));
        usual_course.lay_out(usual, call.count[1] == 1);
    }

    void lay_out(long steps_, long passes_) {
        Plan::lay_out(steps_, passes_);
        for (int n = which(0); n < 2; n++) course[n].lay_out(pipeline[n], call.count[1] == 1);
    }
    // Whether a part ends at the boundary of the grid.
    bool ends(const Part& p, int a, int side) const { return call.boundary[a][side] && (side ? p.to[a] == call.count[a] : p.from[a] == 0); }

    // Where a field is before pass k; passes go down and up in turn.
    Drift start(long k, int f) const {
        Drift moved = {0, 0};
        for (long n = 0; n < k; n++) {
            const Drift& d = course[which(n)].after[pipeline[which(n)].levels - 1][f];
            moved.planes += n % 2 ? -d.planes : d.planes, moved.rows += n % 2 ? -d.rows : d.rows;
        }
        return moved;
    }

    // So many cells or some more: a distance between rows, or planes, that does not lead to the same place of the cache.
    static long apart(long cells) {
        while (modulo(cells * sizeof(real) + 512, 4096) < 1024) cells += LANES;
        return cells;
    }

    // The part of a thread, but for its memory, of which each field needs as many cells as are returned.
    long cut(long n, Part& p) const {
        long width[AXES] = {}, room[2] = {}, beyond[2][2];  // ghost cells that are looked at; how far fields move; cells beyond each end
        for (int r = 0; r < usual.rings; r++)
            for (int a = 0; a < AXES; a++) width[a] = most(width[a], usual.ring[r].width[a]);
        for (int f = 0; f < FIELDS; f++) {
            const Drift& moved = usual_course.after[usual.levels - 1][f];
            room[0] = most(room[0], moved.planes), room[1] = most(room[1], moved.rows);
        }
        for (int a = 0; a < AXES; a++) p.from[a] = 0, p.to[a] = call.count[a];
        p.from[0] = call.count[0] * n / barrier.threads, p.to[0] = call.count[0] * (n + 1) / barrier.threads;
        for (int a = 0; a < 2; a++)
            for (int side = 0; side < 2; side++) beyond[a][side] = ends(p, a, side) ? width[a] : most(width[a], usual.level[0].reach[a]);
        for (int side = 0; side < 2; side++) beyond[0][side] += AT_ONCE;  // those that are computed beside others, too
        p.pitch = apart(up(call.count[2], LANES) + up(2 * width[2], LANES));
        p.plane = apart((call.count[1] + beyond[1][0] + beyond[1][1] + room[1]) * p.pitch);
        p.first = p.pitch + (beyond[0][0] + room[0] - p.from[0]) * p.plane + (beyond[1][0] + room[1]) * p.pitch;
        return (p.to[0] - p.from[0] + beyond[0][0] + beyond[0][1] + room[0]) * p.plane + 2 * p.pitch;
    }

    // Gives a thread its part of the block and the memory for it.
    void divide(long n, Memory& memory) {
        long cells = cut(n, part[n]);
        real* data = (real*)memory.take_clear(FIELDS * cells * sizeof(real));
        for (int f = 0; f < FIELDS; f++) part[n].origin[f] = data + f * cells + part[n].first;
    }

    // Row (i, j) of a field, of this block or of a neighbour, before pass k.
    const real* row_of(long k, int f, long i, long j, const Drift& moved) const {
        long at[AXES] = {call.wraps[0] ? modulo(i, call.count[0]) : i, call.wraps[1] ? modulo(j, call.count[1]) : j, 0};
        int d[AXES] = {};
        for (int a = 0; a < 2; a++) d[a] = at[a] < 0 ? -1 : at[a] >= call.count[a];
        if (d[0] || d[1]) return call.area->cell(call.width, d, f, at);
        if (!k) return (const real*)call.fields[f] + (at[0] * call.capacity[1] + at[1]) * call.capacity[2];
        return part[((at[0] + 1) * barrier.threads - 1) / call.count[0]].row(f, moved, at[0], at[1]);
    }

    void work(long n, Memory& memory);
};

// How rows are cut in chunks, see `Sweep::chunks`.
struct Chunks { long lower, end, count, length; };

// A thread's way through its part in one pass.
struct Sweep {
    Wavefront& all;
    const Call& call;
    const Part& part;
    long k;
    const Pipeline& pipe;
    const Course& course;
    bool upward, last;
    Drift start[FIELDS];
    real scalars[MOST_STEPS + 1][SCALARS + 1];
    long in[LEVELS][PLANES], out[LEVELS][PLANES];  // offsets from a field's cell (i, 0, 0) that has not moved
    int field_in[LEVELS][PLANES];
    long tiles, row0, row1, width;  // width: of a row, in whole vectors
    Chunks chunk[LEVELS];  // of a level's rows in this tile
    Prefetch ahead, edge;

    Sweep(Wavefront& all, const Part& part, long k)
        : all(all), call(all.call), part(part), k(k), pipe(all.pipeline[all.which(k)]), course(all.course[all.which(k)]), upward(k % 2 == 0), last(k + 1 == all.passes), width(up(all.call.count[2], LANES)) {
        for (int t = 0; t <= pipe.steps; t++) prepare(call.parameters, call.constants, call.clock[0] + (all.first_step(k) + t) * call.clock[2], call.clock[2], scalars[t]);
        for (int f = 0; f < FIELDS; f++) start[f] = all.start(k, f);
        for (int q = 1; q < pipe.levels; q++) {
            const Pass& pass = passes[pipe.level[q].pass];
            for (int n = 0; n < pass.planes; n++) {
                if (pass.plane[n].input < 0) continue;
                int f = field_in[q][n] = field_of[pass.input[pass.plane[n].input].array];
                in[q][n] = part.row(f, moved(q - 1, f), pass.plane[n].offset, 0) - part.origin[f];
            }
            for (int n = 0; n < pass.outputs; n++) {
                int f = field_made(pass, n);
                out[q][n] = part.row(f, moved(q, f), 0, 0) - part.origin[f];
            }
        }
        // Tiles at a boundary have at every level the rows that ghost cells mirror, and those where a pass begins are wider at
        // lower levels, where neighbours follow.
        long reach = pipe.level[0].reach[1];
        row0 = part.from[1] + (all.ends(part, 1, 0) ? reach : upward ? -reach : 0);
        row1 = part.to[1] - (all.ends(part, 1, 1) ? reach : upward ? 0 : -reach);
        tiles = most(1, (row1 - row0) / all.rows);
    }

    Drift moved(int q, int f) const {
        const Drift& d = course.after[q][f];
        return upward ? Drift{start[f].planes + d.planes, start[f].rows + d.rows} : Drift{start[f].planes - d.planes, start[f].rows - d.rows};
    }

    long lowest(int q, int a) const { return all.ends(part, a, 0) ? 0 : part.from[a] - pipe.level[q].reach[a]; }
    long highest(int q, int a) const { return all.ends(part, a, 1) ? part.to[a] : part.to[a] + pipe.level[q].reach[a]; }

    // Where the rows of tile m begin at a level.
    long begin(int q, long m) const {
        long lo = lowest(q, 1), hi = highest(q, 1);
        if (m == 0) return lo;
        if (m == tiles) return hi;
        long row = row0 + (row1 - row0) * m / tiles, reach = pipe.level[q].reach[1];
        return most(lo, least(hi, upward ? row + reach : row - reach));
    }

    // Rows beyond this part, before others change them. What is within is loaded on the way in the first pass: the results, which may be
    // where the fields are, are stored behind that.
    void fetch() {
        long i0 = lowest(0, 0), i1 = highest(0, 0), j0 = lowest(0, 1), j1 = highest(0, 1);
        auto get = [&](long i, long from, long to) {
            for (long j = from; j < to; j++)
                for (int f = 0; f < FIELDS; f++) copy(part.row(f, start[f], i, j), all.row_of(k, f, i, j, start[f]), call.count[2]);
        };
        for (long i = i0; i < i1; i++)
            if (i < part.from[0] || i >= part.to[0]) get(i, j0, j1);
            else get(i, j0, part.from[1]), get(i, part.to[1], j1);
    }

    void run() {
        for (long n = 0; n < tiles; n++) {
            // calls: of a pass by each level, and by all of them in_round
            long m = upward ? n : tiles - 1 - n, first = FAR, end = -FAR, rows[LEVELS][2], lo[LEVELS], hi[LEVELS], calls[LEVELS] = {}, in_round = 0, next_round = upward ? AT_ONCE : -AT_ONCE;
            for (int q = 0; q < pipe.levels; q++) {
                rows[q][0] = begin(q, m), rows[q][1] = begin(q, m + 1), lo[q] = lowest(q, 0), hi[q] = highest(q, 0);
                first = least(first, lo[q] - pipe.level[q].ahead), end = most(end, hi[q] + pipe.level[q].ahead);
                if (!q || rows[q][0] >= rows[q][1]) continue;
                const Pass& pass = passes[pipe.level[q].pass];
                chunk[q] = chunks(pass, rows[q][1] - rows[q][0]);
                in_round += calls[q] = (rows[q][1] - rows[q][0]) * (AT_ONCE / pass.at_once) * chunk[q].count;
            }
            auto round = [&](long s) {
                auto plane = [&](int q) { return upward ? s + pipe.level[q].ahead : s - pipe.level[q].ahead; };
                prefetch(plane(0) + next_round, lo[0], hi[0], rows[0]), ahead.divide(in_round);
                for (int q = 0; q < pipe.levels; q++) {
                    long i = plane(q);
                    if (i + AT_ONCE <= lo[q] || i >= hi[q] || rows[q][0] >= rows[q][1]) continue;
                    edge.clear();
                    int next = q % (pipe.levels - 1) + 1;  // the first level, in the next round, after the last one
                    if (n && q) prefetch_edge(next, plane(next) + (next == 1 ? next_round : 0), rows[next]), edge.divide(calls[q]);
                    level(q, i, most(i, lo[q]), least(i + AT_ONCE, hi[q]), rows[q][0], rows[q][1]);
                }
            };
            if (upward) for (long s = first; s < part.to[0]; s += AT_ONCE) round(s);
            else for (long s = end - 1; s > part.from[0] - AT_ONCE; s -= AT_ONCE) round(s);
        }
    }

    // Rows in chunks of a ``length`` that lets all that a pass looks at beside them stay in the first-level cache; rows that are planes in
    // shorter ones, between which they are prefetched. The chunk of each row ends so much ``lower`` than that of the row before, since
    // what a row writes falls on rows before it, whose next cells still look at those beside them. ``end``: of the last row's chunks.
    Chunks chunks(const Pass& pass, long rows) const {
        long looked_at = pass.outputs * pass.at_once, reach = 0;
        for (int n = 0; n < pass.inputs; n++) {
            const int* r = pass.input[n].reach;
            looked_at += pass.at_once * (1 + 2 * r[1]) + 2 * r[0], reach = most(reach, r[2]);
        }
        long fits = NEAR / looked_at, longest = call.count[1] == 1 ? fits / 2 : width > fits ? fits * 3 / 4 : width;
        long lower = width > longest ? up(reach, LANES) : 0, end = width + lower * (rows - 1), count = (end - 1) / longest + 1;
        return {lower, end, count, up((end - 1) / count + 1, LANES)};
    }

    // During this round the tile's rows of those planes i .. i + AT_ONCE - 1 that lie in lo .. hi - 1 are prefetched.
    void prefetch(long i, long lo, long hi, const long rows[2]) {
        ahead.clear();
        for (long n = most(i, lo); n < least(i + AT_ONCE, hi); n++)
            for (int f = 0; f < FIELDS; f++) ahead.add(part.row(f, start[f], n, rows[0]), (rows[1] - rows[0]) * part.pitch);
    }

    // What the tile before left for a level at planes i .. i + AT_ONCE - 1 is far away by now: some rows of the planes that the level looks
    // at first, and those beside its own. They are prefetched while the level before it is computed.
    void prefetch_edge(int q, long i, const long rows[2]) {
        const Level& mine = pipe.level[q];
        const Pass& pass = passes[mine.pass];
        for (int n = 0; n < pass.inputs; n++) {
            const int *reach = pass.input[n].reach, array = pass.input[n].array, f = field_of[array];
            long left = pipe.level[pipe.ring[pipe.ring_of[mine.step][array]].level].reach[1] - mine.reach[1];
            Drift d = moved(q - 1, f);
            for (long k = i; k < i + AT_ONCE; k++) {
                edge.add(part.row(f, d, upward ? k + reach[0] : k - reach[0], upward ? rows[0] : rows[1] - left), left * part.pitch);
                edge.add(part.row(f, d, k, upward ? rows[0] - reach[1] : rows[1]), reach[1] * part.pitch);
            }
        }
    }

    // Planes i .. i + AT_ONCE - 1 of a level, of which i0 .. i1 - 1 are wanted.
    void level(int q, long i, long i0, long i1, long j0, long j1) {
        if (!q) {
            for (long n = i0; n < i1; n++) {
                for (int f = 0; f < FIELDS; f++) {
                    if (k || n < part.from[0] || n >= part.to[0]) continue;
                    for (long j = most(j0, part.from[1]); j < least(j1, part.to[1]); j++) copy(part.row(f, start[f], n, j), all.row_of(0, f, n, j, start[f]), call.count[2]);
                }
                for (int f = 0; f < FIELDS; f++) finish(q, f, pipe.ring_of[0][f], n, j0, j1);
            }
            return;
        }
        const Level& mine = pipe.level[q];
        const Pass& pass = passes[mine.pass];
        Rows from[PLANES], to[PLANES];
        const Chunks& cut = chunk[q];
        for (long n = 0; n < AT_ONCE; n += pass.at_once) {
            if (i + n + pass.at_once <= i0 || i + n >= i1) continue;
            for (int p = 0; p < pass.planes; p++) {
                if (pass.plane[p].input < 0) from[p] = {all.fixtures.origin[-1 - pass.plane[p].input] + (i + n + pass.plane[p].offset) * all.fixtures.plane, all.fixtures.pitch};
                else from[p] = {part.origin[field_in[q][p]] + (i + n) * part.plane + in[q][p], part.pitch};
            }
            for (int p = 0; p < pass.outputs * pass.at_once; p++) {
                int o = p % pass.outputs;
                to[p] = {part.origin[field_made(pass, o)] + (i + n + p / pass.outputs) * part.plane + out[q][o], part.pitch};
            }
            Place place = {scalars[mine.step] + pass.scalars, all.tables, i + n};
            for (long c = 0; c < cut.end; c += cut.length)
                for (long m = 0; m < j1 - j0; m++) {
                    long j = upward ? j0 + m : j1 - 1 - m, x0 = most(0, c - cut.lower * m), x1 = least(width, c + cut.length - cut.lower * m);
                    if (x0 >= x1) continue;
                    pass.compute(place, from, to, j, j + 1, x0, x1);
                    ahead.some(), edge.some();
                }
        }
        for (long n = i0; n < i1; n++)
            for (int o = 0; o < pass.outputs; o++) finish(q, field_made(pass, o), pipe.output(q, o), n, j0, j1);
        if (q < pipe.levels - 1) return;
        for (long n = i0; n < i1; n++)
            for (int f = 0; f < FIELDS; f++) {
                Drift d = moved(q, f);
                for (long j = j0; j < j1; j++) {
                    if (last) store_result((real*)call.results[f] + (n * call.capacity[1] + j) * call.capacity[2], part.row(f, d, n, j), call.count[2], all.past);
                    if (all.also) all.also->put(f, n, j, part.row(f, d, n, j), call.count[2]);
                    if (!last && call.area) call.area->put(call.width, (call.area->epoch + 1) % 2, f, n, j, part.row(f, d, n, j), 0, call.count[2], all.past);
                }
            }
    }

    // The ghost cells that follow from plane i.
    void finish(int q, int f, int r, long i, long j0, long j1) {
        const Ring& ring = pipe.ring[r];
        if (!ring.width[0] && !ring.width[1] && !ring.width[2]) return;
        fill_plane(q, f, ring, i, j0, j1);
        long n = call.count[0], w = ring.width[0];
        if (!w) return;
        const Face* face = arrays[ring.array].face[0];
        if (all.ends(part, 0, 0) && i == (upward ? w - 1 : 0))
            for (long m = 1; m <= w; m++) across(q, f, ring, face[0], -m, m - 1, m, 0, j0, j1);
        if (all.ends(part, 0, 1) && i == (upward ? n - 1 : n - w))
            for (long m = 1; m <= w; m++) across(q, f, ring, face[1], n + m - 1, n - m, m, n - 1, j0, j1);
    }

    real* plane(int q, int f, long i) const { return part.row(f, moved(q, f), i, 0); }

    void across(int q, int f, const Ring& ring, const Face& face, long ghost, long mirror, long m, long beside, long j0, long j1) {
        Place place = {scalars[ring.step] + face.scalars, all.tables, ghost};
        Rows next[FIELDS + 1];
        for (int n = 0; n < face.nexts; n++) next[n] = {plane(q, field_of[face.next[n]], beside), part.pitch};
        face.fill(place, plane(q, f, ghost), plane(q, f, mirror), part.pitch, next, m, j0, j1, 0, width);
        fill_plane(q, f, ring, ghost, j0, j1);
    }

    // The ghost cells of a plane beyond the ends of the second and the third axis.
    void fill_plane(int q, int f, const Ring& ring, long i, long j0, long j1) {
        real* p = plane(q, f, i);
        long w = ring.width[1], n = call.count[1], pitch = part.pitch;
        for (int e = 0; w && e < 2; e++) {
            const Face& face = arrays[ring.array].face[1][e];
            if (!all.ends(part, 1, e) || (e ? j1 < n : j0 > 0)) continue;
            Place place = {scalars[ring.step] + face.scalars, all.tables, i};
            fill_rows(face, e, n, w, place, p, pitch, 0, width, [&](int m) { return Rows{plane(q, field_of[face.next[m]], i), pitch}; });
            if (e) j1 = n + w; else j0 = -w;
        }
        w = ring.width[2], n = call.count[2];
        if (call.wraps[2]) wrap_cells(n, w, p, pitch, j0, j1);
        for (int e = 0; w && !call.wraps[2] && e < 2; e++) {
            const Face& face = arrays[ring.array].face[2][e];
            Place place = {scalars[ring.step] + face.scalars, all.tables, i};
            fill_cells(face, e, n, w, place, p, pitch, j0, j1, [&](int m) { return Rows{plane(q, field_of[face.next[m]], i), pitch}; });
        }
    }
};

inline void Wavefront::work(long n, Memory& memory) {
    const Part& mine = part[n];
    divide(n, memory);
    for (long k = 0; k < passes; k++) {
        Sweep* sweep = new Sweep(*this, mine, k);  // too large for a stack
        sweep->fetch();
        barrier.wait([&] { also = k + 1 == passes ? besides() : nullptr; });
        sweep->run();
        __sync_synchronize();  // what went past the caches too
        barrier.wait([&] {
            if (call.area && k + 1 < passes) call.area->hand_over(call);
        });
        delete sweep;
    }
}
