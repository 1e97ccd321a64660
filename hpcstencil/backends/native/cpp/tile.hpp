// One tile, streamed through the pipeline: planes are loaded from memory, pass level by level, and are stored again.
// Ghost cells of the planes are filled on the way.
#pragma once
#include "error_sums.hpp"
#include "ghosts.hpp"
#include "injection.hpp"
#include "step_arrays.hpp"

// The kind of a tile's end along an axis. If it is neither a boundary nor periodic, the cells beyond it are loaded.
struct Side {
    bool boundary, wraps;
};

// The data that all tiles of a sweep share.
struct Job {
    const Plan* plan;
    const Pipeline* pipeline;
    long parts[AXES];
    List<const real*> source{ARRAYS};
    List<real*> target{ARRAYS};
    List<char> stays{ARRAYS};  // whether a field is constant and stays where it is (`stays`)
    int moving;                // the first field that does not
    bool given;                // the sources are the caller's arrays, of ``capacity`` cells
    bool last;                 // the targets are the results, or are copied there
    bool has_neighbours;       // that own cells beyond the block
    bool stores_edges;         // whether the edges of the results are exchanged too
    bool keeps_zeros;          // the targets hold zeros outside absorbing layers already
    long first;                // step of the sweep
};

// One tile, with everything that a thread needs to stream it.
struct Tile {
    const Job& job;
    const Plan& plan;
    const Call& call;
    const Pipeline& pipe;
    long from[AXES], to[AXES];
    Side side[AXES][2];
    struct RingLayout {
        long pitch, plane;
    };
    List<RingLayout> layout{RINGS};
    List<real*> origin{RINGS};                           // the first cell of a ring's first plane
    Matrix<long> low{LEVELS, AXES}, high{LEVELS, AXES};  // the cells that a level computes
    List<char> fills{RINGS};                             // whether a ring has ghost cells to fill
    Matrix<real> scalars{MAX_STEPS + 1, SCALARS + 1};

    Tile(const Job& job, const long* number, Buffer& memory)
        : job(job),
          plan(*job.plan),
          call(plan.call),
          pipe(*job.pipeline) {
        for (int a = 0; a < AXES; a++) {
            long n = call.count[a], parts = job.parts[a];
            from[a] = n * number[a] / parts, to[a] = n * (number[a] + 1) / parts;
            if (a == 2 && parts > 1) {
                long size = round_up((n + parts - 1) / parts, LANES);
                from[a] = min(n, size * number[a]), to[a] = min(n, size * (number[a] + 1));
            }
            for (int s = 0; s < 2; s++) side[a][s] = {call.boundary[a][s] != 0, call.wraps[a] && parts == 1 && a > 0};
        }
        for (int q = 0; q < pipe.levels; q++)
            for (int a = 0; a < AXES; a++) lay_out_level(q, a);
        real* next =
            (real*)memory.reserve_zeroed(
                pipe.cells(largest_tile(1), largest_tile(2), spans_axis(1), spans_axis(2)) * sizeof(real) + 4096)
            + LANES;
        for (int r = 0; r < pipe.rings; r++) {
            const Ring& ring = pipe.ring[r];
            RingLayout& s = layout[r];
            fills[r] = false;
            if (ring.memory != r) {
                s = layout[ring.memory], origin[r] = origin[ring.memory];
                continue;
            }
            long lo, hi;
            s.pitch = pipe.pitch(r, largest_tile(2), spans_axis(2));
            s.plane = pipe.rows(r, largest_tile(1), spans_axis(1)) * s.pitch;
            region(ring.level, 1, lo, hi);
            origin[r] = next - (lo - ring.width[1]) * s.pitch;
            region(ring.level, 2, lo, hi);
            origin[r] -= round_down(lo - ring.width[2], LANES);
            next += ring.planes * s.plane;
            for (int a = 0; a < AXES; a++)
                for (int e = 0; e < 2 && ring.width[a]; e++)
                    fills[r] = fills[r] || side[a][e].wraps || (side[a][e].boundary && !ring.deep);
            if (!LAYERS) continue;
            long j0, j1;
            region(ring.level, 1, j0, j1), region(ring.level, 2, lo, hi);
            for (long n = 0; n < ring.planes; n++)
                plan.layers.clear_ring_margin(ring.array, {origin[r] + n * s.plane, s.pitch}, j0, j1,
                                              round_down(lo, LANES), round_up(hi, LANES));
        }
        for (int t = 0; t <= pipe.steps; t++)
            prepare(call.parameters, call.constants, call.clock[0], job.first + t, call.clock[2], scalars[t]);
    }

    bool spans_axis(int a) const { return job.parts[a] == 1 && needs_no_neighbours(call, a); }
    long largest_tile(int a) const {
        return a == 2 && job.parts[2] > 1 ? round_up((call.count[2] + job.parts[2] - 1) / job.parts[2], LANES)
                                          : (call.count[a] + job.parts[a] - 1) / job.parts[a];
    }

    void lay_out_level(int level, int a) {
        const Level& l = pipe.level[level];
        long &lo = low[level][a], &hi = high[level][a];
        lo = side[a][0].wraps ? 0 : from[a] - l.reach[a];
        hi = side[a][1].wraps ? call.count[a] : to[a] + l.reach[a];
        if (side[a][0].boundary) lo = max(lo, -l.deep[a]);
        if (side[a][1].boundary) hi = min(hi, call.count[a] + l.deep[a]);
    }

    // The cells lo .. hi - 1 that a level computes along an axis.
    void region(int level, int a, long& lo, long& hi) const { lo = low[level][a], hi = high[level][a]; }

    real* plane(int r, long i) const { return origin[r] + modulo(i, pipe.ring[r].planes) * layout[r].plane; }

    // Source is a plane that a level reads or writes: ``back`` planes behind the newest one of its ring, or of what
    // `StepInputs` has. Work, computed once per tile, is the range of cells that a level computes and its planes.
    struct Source {
        int ring, back;
    };
    struct Work {
        long lo, hi, j0, j1, x0, x1;
        int level, step, first[1 << AXES], first_target;
        const Pass* pass;
        LevelRecords records;
        Unstored unstored;
        LevelStencils stencils;
        Injected injected;
        StepInputs inputs;
    };
    List<Work> work{LEVELS};
    List<Source> sources{LEVELS * PLANES * VARIANTS}, targets{LEVELS * PLANES};
    List<int> slot{RINGS};       // of the newest plane of each ring
    List<Rows> written{PLANES};  // by a pass
    VariantPlanes read;
    long portions = 0;  // of prefetched cells, in a round
    Prefetch upcoming, for_next_level;
    ErrorSums errors;
    ResultSums results;
    double polled = 0;

    void stream() {
        results.begin(job.last ? plan.sums : nullptr);
        long begin = UNBOUNDED;
        int next = 0, next_target = 0;
        for (int q = 0; q < pipe.levels; q++) {
            Work& w = work[q];
            region(q, 0, w.lo, w.hi), region(q, 1, w.j0, w.j1), region(q, 2, w.x0, w.x1);
            begin = min(begin, w.lo - pipe.level[q].ahead);
            if (!q) continue;
            w.level = q, w.step = pipe.level[q].step, w.pass = &passes[pipe.level[q].pass];
            w.first_target = next_target;
            w.x0 = round_down(w.x0, LANES), w.x1 = round_up(w.x1, LANES);
            portions += calls_in_round(w);
            w.records.find(call, job.first + w.step, *w.pass), w.unstored.find(pipe.level[q].pass, w.records.cells);
            w.stencils.find(call, job.first + w.step, pipe.level[q].pass, plan.evaluator_functions);
            w.injected.find(call, job.first + w.step, *w.pass);
            w.inputs.find(call, plan.fixed_arrays, job.first + w.step);
            for (int mask = 0; mask < VARIANTS; mask++) {
                const Variant& variant = *w.pass->variant[mask];
                w.first[mask] = next;
                for (int n = 0; n < variant.planes; n++, next++) {
                    const Plane& plane = variant.plane[n];
                    if (plane.input < 0) {
                        sources[next] = {plane.input, plane.offset};
                        continue;
                    }
                    int r = pipe.ring_of[w.step][w.pass->input[plane.input].array];
                    sources[next] = {r, int(pipe.ring[r].ahead - pipe.level[q].ahead) - plane.offset};
                }
            }
            for (int k = 0; k < w.pass->at_once; k++)
                for (int o = 0; o < w.pass->outputs; o++) targets[next_target++] = {pipe.output(q, o), -k};
        }
        for (int r = 0; r < pipe.rings; r++) slot[r] = modulo(begin + pipe.ring[r].ahead, pipe.ring[r].planes);
        for (long s = begin; s < to[0]; s += AT_ONCE) {
            prefetch(s + pipe.level[0].ahead + AT_ONCE);
            for (int q = 0; q < pipe.levels; q++) {
                long i = s + pipe.level[q].ahead;
                if (i + AT_ONCE <= work[q].lo || i >= work[q].hi) continue;
                if (q && REPLAYED) prefetch_for_next_level(q, s);
                if (q) run(work[q], i);
                else
                    for (long n = max(i, work[q].lo); n < min(i + AT_ONCE, work[q].hi); n++) load(n);
            }
            for (long i = max(s, from[0]); i < min(s + AT_ONCE, to[0]); i++) write_out(i);
            if (call.edges) call.edges->poll(polled);
            for (int r = 0; r < pipe.rings; r++)
                slot[r] = slot[r] + AT_ONCE < pipe.ring[r].planes ? slot[r] + AT_ONCE
                                                                  : slot[r] + AT_ONCE - pipe.ring[r].planes;
        }
        if (call.error_sums) errors.add_to(call.error_sums);
        results.end();
        for (Work& each : work) each.records.end(), each.stencils.end();
    }

    // Starts to prefetch the cells of planes i .. i + AT_ONCE - 1 that will be loaded from this block, a portion after
    // each call of a pass.
    void prefetch(long i) {
        const Work& w = work[0];
        long j0 = max(0, w.j0), j1 = min(call.count[1], w.j1), x0 = max(0, w.x0), x1 = min(call.count[2], w.x1);
        upcoming.clear();
        for (long n = max(i, max(0, w.lo)); n < min(i + AT_ONCE, min(call.count[0], w.hi)); n++)
            for (int f = 0; f < pipe.loaded; f++) {
                if (pipe.unread[f]) continue;
                plan.layers.each_kept(loaded_array(f), true, n, j0, j1, x0, x1,
                                      [&](long j, long end, long x, long stop) {
                                          long pitch = source_size(f, 2);
                                          upcoming.add(job.source[f] + (n * source_size(f, 1) + j) * pitch + x,
                                                       stop - x, end - j, pitch);
                                      });
            }
        upcoming.divide(portions);
    }

    // Calls of its pass by a level in a round, about: there are more near absorbing layers.
    static long calls_in_round(const Work& w) {
        return (w.j1 - w.j0 + ROWS - 1) / ROWS * (AT_ONCE / w.pass->at_once);
    }
    // Starts to prefetch the arrays of a step that the level after this one reads; after the last level comes the first
    // one of the next round.
    void prefetch_for_next_level(int q, long s) {
        const int next = q % (pipe.levels - 1) + 1;
        const Work& w = work[next];
        const long first = s + pipe.level[next].ahead + (next == 1 ? AT_ONCE : 0);
        for_next_level.clear();
        w.inputs.prefetch(for_next_level, *w.pass, first, first + AT_ONCE, w.j0, w.j1);
        for_next_level.divide(calls_in_round(work[q]));
    }

    // The plane ``back`` behind the first one that a ring receives in this round.
    Rows ring_plane(int r, int back) const {
        long n = slot[r] - back;
        n += n < 0 ? pipe.ring[r].planes : n >= pipe.ring[r].planes ? -pipe.ring[r].planes : 0;
        return {origin[r] + n * layout[r].plane, layout[r].pitch};
    }

    // Computes planes i .. i + AT_ONCE - 1 of a level. A pass that computes several planes together may also compute
    // some outside lo .. hi - 1.
    void run(Work& w, long i) {
        const Pass& pass = *w.pass;
        Rows* out = written.data();
        auto read_plane = [&](int array, long n) {
            const int r = pipe.ring_of[w.step][array];
            return ring_plane(r, int(pipe.ring[r].ahead - pipe.level[w.level].ahead) - int(n - i));
        };
        auto source = [&](const Plane& plane, long n) {
            if (plane.input < 0) return w.inputs.at(plane, n);
            return read_plane(Unstored::array(plane), n + plane.offset);
        };
        w.unstored.record(call, scalars[w.step], plan.tables.data(), plan.layers, i, from, to, source);
        w.stencils.record(call, i, i + AT_ONCE, from, to, read_plane);
        for (long k = 0; k < AT_ONCE; k += pass.at_once) {
            if (i + k + pass.at_once <= w.lo || i + k >= w.hi) continue;
            for (long n = 0; n < pass.outputs * pass.at_once; n++) {
                const Source& target = targets[w.first_target + n];
                out[n] = ring_plane(target.ring, target.back - k);
            }
            read.forget();
            auto compute = [&](int mask, long j0, long j1, long x0, long x1) INLINED {
                const Variant& variant = *pass.variant[mask];
                const Rows* planes = read.of(pass, mask, [&](int n, int more) {
                    const Source& source = sources[w.first[mask] + n];
                    return source.ring < 0 ? w.inputs.at(variant.plane[n], i + k + more)
                                           : ring_plane(source.ring, source.back - k - more);
                });
                compute_variant(pass, variant, scalars[w.step], plan.tables.data(), i + k, planes, out, j0, j1, x0, x1,
                                true);
                plan.layers.clear_margins(pass, out, true, mask, i + k, j0, j1, x0, x1);
            };
            plan.layers.each_region(
                i + k, pass.at_once, w.j0, w.j1, w.x0, w.x1, [&](int mask, long j0, long j1, long x0, long x1) {
                    long rows = ROWS * (w.x1 - w.x0) / (x1 - x0);  // narrow regions have more
                    for (long j = j0; j < j1; j += rows) {
                        compute(mask, j, min(j + rows, j1), x0, x1);
                        upcoming.next_portion(), for_next_level.next_portion();
                    }
                });
            w.injected.add(call, pass, i + k, pass.at_once, out, w.j0, w.j1, w.x0, w.x1);
            w.records.put(call, plan.layers, pass, i + k, out, read_plane, from, to, plan.non_temporal);
        }
        for (long n = max(i, w.lo); n < min(i + AT_ONCE, w.hi); n++)
            for (int o = 0; o < pass.outputs; o++) fill_ghosts(targets[w.first_target + o].ring, n);
    }

    // Fills the ghost cells that depend on plane i of a ring.
    void fill_ghosts(int r, long i) {
        const Ring& ring = pipe.ring[r];
        if (!fills[r] || plan.layers.is_empty(ring.array, i)) return;
        fill_ghosts_in_plane(r, i);
        if (ring.deep) return;
        long n = call.count[0], w = ring.width[0];
        const Face* face = arrays[ring.array].face[0];
        if (side[0][0].boundary && w) {
            long k = face[0].wall ? i : i + 1;
            if (i >= 0 && k >= 1 && k <= w) fill_ghost_plane(r, face[0], mirrored(face[0], 0, n, k), 0);
        }
        if (side[0][1].boundary && w && i == n - 1)
            for (long k = 1; k <= w; k++)
                fill_ghost_plane(r, face[1], mirrored(face[1], 1, n, k), n - 1);
    }

    // Plane i of the n-th array that a boundary condition reads.
    Rows beside_face(const Face& face, int n, int step, long i) const {
        int r = pipe.ring_of[step][face.next[n]];
        return {plane(r, i), layout[r].pitch};
    }

    // Fills a ghost plane beyond an end of the first axis.
    void fill_ghost_plane(int r, const Face& face, const Mirrored& at, long beside) {
        int t = pipe.ring[r].step;
        long j0, j1, x0, x1;
        region(pipe.ring[r].level, 1, j0, j1), region(pipe.ring[r].level, 2, x0, x1);
        Place place = {scalars[t] + face.scalars, plan.tables.data(), at.ghost};
        Rows next[FIELDS + 1];
        for (int n = 0; n < face.nexts; n++) next[n] = beside_face(face, n, t, beside);
        face.fill(place, plane(r, at.ghost), plane(r, at.mirror), layout[r].pitch, next, at.k, j0, j1,
                  round_down(x0, LANES), round_up(x1, LANES));
        fill_ghosts_in_plane(r, at.ghost);
    }

    // Fills the ghost cells of a plane beyond the ends of the second and the third axis.
    void fill_ghosts_in_plane(int r, long i) {
        const Ring& ring = pipe.ring[r];
        int t = ring.step;
        const RingLayout& s = layout[r];
        real* p = plane(r, i);
        long w = ring.width[1], n = call.count[1], x0, x1, j0, j1;
        region(ring.level, 1, j0, j1), region(ring.level, 2, x0, x1);
        long v0 = round_down(x0, LANES), v1 = round_up(x1, LANES);
        if (w && side[1][0].wraps)
            for (long k = 1; k <= w; k++) {
                memcpy(p - k * s.pitch + v0, p + modulo(-k, n) * s.pitch + v0, (v1 - v0) * sizeof(real));
                memcpy(p + (n + k - 1) * s.pitch + v0, p + modulo(k - 1, n) * s.pitch + v0, (v1 - v0) * sizeof(real));
            }
        for (int e = 0; w && e < 2 && !ring.deep; e++) {
            const Face& face = arrays[ring.array].face[1][e];
            if (!side[1][e].boundary || (e ? j1 < n : j0 > 0)) continue;
            Place place = {scalars[t] + face.scalars, plan.tables.data(), i};
            fill_rows(face, e, n, w, place, p, s.pitch, v0, v1, [&](int m) { return beside_face(face, m, t, i); });
            if (e) j1 = n + w;
            else j0 = -w;
        }
        if (side[1][0].wraps && w) j0 = -w, j1 = n + w;
        w = ring.width[2], n = call.count[2];
        if (side[2][0].wraps) wrap_cells(n, w, p, s.pitch, j0, j1);
        for (int e = 0; w && !side[2][0].wraps && e < 2 && !ring.deep; e++) {
            const Face& face = arrays[ring.array].face[2][e];
            if (!side[2][e].boundary || (e ? x1 < n : x0 > 0)) continue;
            Place place = {scalars[t] + face.scalars, plan.tables.data(), i};
            fill_cells(face, e, n, w, place, p, s.pitch, j0, j1, [&](int m) { return beside_face(face, m, t, i); });
        }
    }

    // ---- from and to memory ----

    void load(long i) {
        for (int f = 0; f < pipe.loaded; f++) {
            if (pipe.unread[f]) continue;
            int r = pipe.load[f];
            long j0, j1, x0, x1;
            region(0, 1, j0, j1), region(0, 2, x0, x1);
            real* p = plane(r, i);
            plan.layers.each_kept(loaded_array(f), true, i, j0, j1, x0, x1, [&](long j, long end, long from, long to) {
                for (; j < end; j++) load_row(f, p + j * layout[r].pitch, i, j, from, to);
            });
        }
        for (int f = 0; f < pipe.loaded; f++) fill_ghosts(pipe.load[f], i);
    }

    int loaded_array(int f) const { return pipe.ring[pipe.load[f]].array; }

    void load_row(int f, real* to, long i, long j, long x0, long x1) const {
        bool ours = i >= 0 && i < call.count[0] && j >= 0 && j < call.count[1] && x0 >= 0 && x1 <= call.count[2];
        if (ours)
            return copy(to + x0, job.source[f] + (i * source_size(f, 1) + j) * source_size(f, 2) + x0, x1 - x0);
        long index[AXES] = {i, j, 0};
        if (job.has_neighbours && call.width[2]) {
            if (x0 < 0) index[2] = x0, copy(to + x0, cell(f, index), min(0, x1) - x0), x0 = 0;
            if (x1 > call.count[2])
                index[2] = call.count[2], copy(to + call.count[2], cell(f, index), x1 - call.count[2]),
                x1 = call.count[2];
        }
        for (long x = x0; x < x1;) {
            index[2] = call.wraps[2] ? modulo(x, call.count[2]) : x;
            long piece = min(x1 - x, call.count[2] - index[2]);
            copy(to + x, cell(f, index), piece);
            x += piece;
        }
    }

    // The address of a source cell: in the block itself, in a neighbour's edge memory, or in a received strip. Corners
    // are in the strip of the last axis, because a strip includes the ghost cells of earlier axes.
    const real* cell(int f, const long* at) const {
        long index[AXES], size[AXES];
        for (int a = 0; a < AXES; a++) {
            index[a] = call.wraps[a] ? modulo(at[a], call.count[a]) : at[a];
            size[a] = source_size(f, a);
        }
        if (call.edges) {
            int d[AXES];
            for (int a = 0; a < AXES; a++) d[a] = !call.width[a] ? 0 : index[a] < 0 ? -1 : index[a] >= call.count[a];
            if (d[0] || d[1] || d[2]) return call.edges->cell(call, d, f, index);
            return job.source[f] + (index[0] * size[1] + index[1]) * size[2] + index[2];
        }
        for (int a = AXES - 1; a >= 0 && job.has_neighbours; a--) {
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

    void write_out(long i) {
        EdgeExchange::Stored done;
        for (int f = 0; f < pipe.stored; f++) write_out(f, i, done);
        if (job.stores_edges) call.edges->stored(done);
    }

    void write_out(int f, long i, EdgeExchange::Stored& done) {
        int r = pipe.store[f], array = pipe.ring[r].array;
        long pitch = layout[r].pitch, pitch_out = target_size(2), x0 = from[2], n = to[2] - from[2];
        real *made = plane(r, i), *target = job.target[f] + i * target_size(1) * pitch_out;
        auto each_row = [&](auto body) {
            for (long j = from[1]; j < to[1]; j++) body(j, made + j * pitch);
        };
        if (f >= GIVEN && call.error_sums)
            return each_row([&](long, real* row) { errors.sum[f - GIVEN].add_row(row + x0, n); });
        if (job.stores_edges)
            each_row([&](long j, real* row) {
                call.edges->put(call, done, f, i, j, row, x0, to[2], plan.non_temporal);
            });
        if (job.stays[f]) {
            if (job.last) each_row([&](long, real* row) { results.add(f, row + x0, n); });
            return;
        }
        if (job.last || !job.keeps_zeros)
            plan.layers.each_piece(array, true, i, from[1], to[1], x0, to[2], [&](long j0, long j1, long v0, long v1) {
                for (long j = j0; j < j1; j++) Layers::clear(made + j * pitch, v0, v1);
            });
        auto store = [&](long j0, long j1, long v0, long v1) {
            for (long j = j0; j < j1; j++)
                copy_out(target + j * pitch_out + v0, made + j * pitch + v0, v1 - v0, plan.non_temporal);
        };
        if (job.last)
            each_row([&](long j, real* row) {
                results.store(f, target + j * pitch_out + x0, row + x0, n, plan.non_temporal);
            });
        else if (job.keeps_zeros) plan.layers.each_piece(array, false, i, from[1], to[1], x0, to[2], store);
        else store(from[1], to[1], x0, to[2]);
    }

    // The cells per axis of an array of the caller, or of an array that the driver allocated for the block.
    long source_size(int f, int a) const {
        return job.given || job.stays[f] || is_result(job.source[job.moving]) ? call.capacity[a] : call.count[a];
    }
    long target_size(int a) const { return is_result(job.target[job.moving]) ? call.capacity[a] : call.count[a]; }
    bool is_result(const real* array) const { return array == (const real*)call.results[job.moving]; }
};
