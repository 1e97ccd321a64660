// One sweep of a thread in place: see wavefront.hpp.
#pragma once
#include "injection.hpp"
#include "wavefront.hpp"

struct Sweep {
    Wavefront& wavefront;
    const Call& call;
    const Part& part;
    long k;
    const Pipeline& pipe;
    const FieldDrift& field_drift;
    const HandOver& hand_over;
    Seam *gives = nullptr, *takes = nullptr;  // the seams at which this thread hands over, and takes
    bool upward, last;
    long from[AXES], to[AXES];  // the cells of the part before the sweep
    SlantedTiles tiles;
    List<Drift> start_drift{FIELDS};
    Matrix<real> scalars{MAX_STEPS + 1, SCALARS + 1};
    // Row 0 of what a level reads, by its variants, and writes if it computes plane 0.
    Matrix<real*> in{LEVELS, VARIANTS * PLANES}, out{LEVELS, PLANES};
    Matrix<real*> drifted{LEVELS, FIELDS};  // row 0 of plane 0 of a field after a level
    List<char> fills{RINGS};                // whether a ring has ghost cells
    long width;                             // cells of a row, in whole vectors
    List<Chunks> chunk{LEVELS};             // of a level's rows in this tile
    List<LevelRecords> records{LEVELS};
    List<Unstored> unstored{LEVELS};
    List<LevelStencils> stencils{LEVELS};
    List<Injected> injected{LEVELS};
    List<StepInputs> inputs{LEVELS};
    List<Rows> written{PLANES};  // by a pass
    VariantPlanes read;
    long wrapped = 0;  // see `turn_to`
    Prefetch upcoming, for_next_level;
    ResultSums results;
    double polled = 0;

    Sweep(Wavefront& wavefront, long number, long k)
        : wavefront(wavefront),
          call(wavefront.call),
          part(wavefront.part[number]),
          k(k),
          pipe(wavefront.pipeline_of(k)),
          field_drift(wavefront.field_drift[wavefront.kind[k]]),
          hand_over(wavefront.hand_over[wavefront.kind[k]]),
          upward(k % 2 == 0),
          last(k + 1 == wavefront.sweeps),
          tiles{pipe, from, to, {}, upward, hand_over.shift.data(), {}},
          width(round_up(wavefront.call.count[2], LANES)) {
        for (int t = 0; t <= pipe.steps; t++)
            prepare(call.parameters, call.constants, call.clock[0], wavefront.first_step(k) + t, call.clock[2],
                    scalars[t]);
        for (int f = 0; f < FIELDS; f++) start_drift[f] = wavefront.drift_before(k, f);
        for (int q = 1; q < pipe.levels; q++) {
            const Pass& pass = passes[pipe.level[q].pass];
            records[q].find(call, wavefront.first_step(k) + pipe.level[q].step, pass);
            unstored[q].find(pipe.level[q].pass, records[q].cells);
            stencils[q].find(call, wavefront.first_step(k) + pipe.level[q].step, pipe.level[q].pass,
                             wavefront.evaluator_functions);
            injected[q].find(call, wavefront.first_step(k) + pipe.level[q].step, pass);
            inputs[q].find(call, wavefront.fixed_arrays, wavefront.first_step(k) + pipe.level[q].step);
            for (int mask = 0; mask < VARIANTS; mask++)
                for (int n = 0; n < pass.variant[mask]->planes; n++) {
                    const Plane& plane = pass.variant[mask]->plane[n];
                    if (plane.input < 0) continue;
                    int f = field_of[pass.input[plane.input].array];
                    in[q][mask * PLANES + n] = part.row(f, drift(q - 1, f), plane.offset, 0);
                }
            for (int n = 0; n < pass.outputs * pass.at_once; n++) {
                int f = field_written(pass, n % pass.outputs);
                out[q][n] = part.row(f, drift(q, f), n / pass.outputs, 0);
            }
        }
        for (int q = 0; q < pipe.levels; q++)
            for (int f = 0; f < FIELDS; f++) drifted[q][f] = part.row(f, drift(q, f), 0, 0);
        for (int r = 0; r < pipe.rings; r++)
            fills[r] = pipe.ring[r].width[0] || pipe.ring[r].width[1] || pipe.ring[r].width[2];
        for (int a = 0; a < AXES; a++) from[a] = part.from[a], to[a] = part.to[a];
        from[0] = wavefront.first_plane(number, k), to[0] = wavefront.first_plane(number + 1, k);
        for (int side = 0; side < 2; side++) {
            for (int a = 0; a < 2; a++) tiles.boundary[a][side] = wavefront.at_boundary(part, a, side);
            tiles.seam[side] = wavefront.at_seam(number, side);
            if (tiles.seam[side]) (side == upward ? takes : gives) = &wavefront.seam_at(number, side);
        }
        if (tiles.seam[1]) wavefront.seam[number].tiles.fill(0);
        tiles.lay_out(wavefront.rows);
    }

    void end_sums() {
        results.end();
        for (LevelRecords& each : records) each.end();
        for (LevelStencils& each : stencils) each.end();
    }

    Drift drift(int q, int f) const {
        const Drift& d = field_drift.after[q][f];
        return upward ? Drift{start_drift[f].planes + d.planes, start_drift[f].rows + d.rows}
                      : Drift{start_drift[f].planes - d.planes, start_drift[f].rows - d.rows};
    }

    // Copies the rows beyond this part that other threads own, before these threads change them. Level 0 loads the
    // rows of neighbouring blocks later, because they may not have arrived yet. In the first sweep, it also loads the
    // rows of the part itself. Results may overwrite the fields, but are stored only after that.
    void fetch_neighbours() {
        long i0 = tiles.lowest(0, 0), i1 = tiles.highest(0, 0), j0 = tiles.lowest(0, 1), j1 = tiles.highest(0, 1);
        auto copy_rows = [&](long i, long from, long to) {
            for (long j = from; j < to; j++)
                for (int f = 0; f < FIELDS && !wavefront.of_neighbour(i, j); f++) copy_row(f, i, j);
        };
        for (long i = i0; i < i1; i++)
            if (i < from[0] || i >= to[0]) copy_rows(i, j0, j1);
            else copy_rows(i, j0, from[1]), copy_rows(i, to[1], j1);
        for (int f = 0; f < FIELDS; f++)
            for (long i = taken(0, f).begin; i < taken(0, f).end; i++)
                for (long j = j0; j < j1; j++)
                    if (!wavefront.of_neighbour(i, j)) copy_row(f, i, j);
    }

    // The planes of a field that are handed over at a level: those that this thread takes, and those that it gives.
    struct Planes {
        long begin, end;
    };
    Planes taken(int q, int f) const {
        const long count = takes ? hand_over.planes[q][f] : 0, lo = tiles.lowest(q, 0), hi = tiles.highest(q, 0);
        return upward ? Planes{hi, hi + count} : Planes{lo - count, lo};
    }
    Planes given(int q, int f) const {
        const long count = gives ? hand_over.planes[q][f] : 0, lo = tiles.lowest(q, 0), hi = tiles.highest(q, 0);
        return upward ? Planes{lo, lo + count} : Planes{hi - count, hi};
    }

    // Copies the cells of a row that its field must hold.
    void copy_row(int f, long i, long j) {
        real* to = part.row(f, start_drift[f], i, j);
        const real* from = wavefront.row_of(k, f, i, j, start_drift[f]);
        wavefront.layers.each_kept(f, false, i, j, j + 1, 0, call.count[2],
                                   [&](long, long, long x0, long x1) { copy(to + x0, from + x0, x1 - x0); });
    }

    void run() {
        Matrix<long> rows{LEVELS, 2};
        List<long> lo{LEVELS}, hi{LEVELS}, calls{LEVELS};  // calls: of its pass by a level in a round
        for (long n = 0; n < tiles.count; n++) {
            long m = upward ? n : tiles.count - 1 - n, first = UNBOUNDED, end = -UNBOUNDED, all_calls = 0,
                 next_round = upward ? wavefront.in_round : -wavefront.in_round;
            for (int q = 0; q < pipe.levels; q++) {
                rows[q][0] = tiles.begin(q, m), rows[q][1] = tiles.begin(q, m + 1);
                lo[q] = tiles.lowest(q, 0), hi[q] = tiles.highest(q, 0);
                first = min(first, lo[q] - pipe.level[q].ahead), end = max(end, hi[q] + pipe.level[q].ahead);
                calls[q] = 0;
                if (!q || rows[q][0] >= rows[q][1]) continue;
                chunk[q].lay_out(passes[pipe.level[q].pass], rows[q][1] - rows[q][0], width, call.count[1] == 1);
                all_calls += calls[q] = calls_in_round(q, rows[q][1] - rows[q][0]);
            }
            auto round = [&](long s) {
                auto plane = [&](int q) { return upward ? s + pipe.level[q].ahead : s - pipe.level[q].ahead; };
                prefetch(plane(0) + next_round, lo[0], hi[0], rows[0]), upcoming.divide(all_calls);
                for (int q = 0; q < pipe.levels; q++) {
                    long i = plane(q);
                    if (rows[q][0] >= rows[q][1]) continue;
                    if (i + wavefront.in_round > lo[q] && i < hi[q]) {
                        for_next_level.clear();
                        if (q) {  // after the last level comes the first one of the next round
                            const int next = q % (pipe.levels - 1) + 1;
                            const long first = plane(next) + (next == 1 ? next_round : 0);
                            if (n) prefetch_edge(next, first, rows[next]);
                            inputs[next].prefetch(for_next_level, passes[pipe.level[next].pass], first,
                                                  first + wavefront.in_round, rows[next][0], rows[next][1]);
                            for_next_level.divide(calls[q]);
                        }
                        level(q, i, max(i, lo[q]), min(i + wavefront.in_round, hi[q]), rows[q][0], rows[q][1]);
                        if (gives) give(q, i, i + wavefront.in_round, rows[q][0], rows[q][1], n);
                    }
                    if (takes) take(q, i, i + wavefront.in_round, rows[q][0], rows[q][1], n);
                }
                if (call.edges) call.edges->poll(polled);
            };
            if (upward)
                for (long s = first; s < hi[pipe.levels - 1]; s += wavefront.in_round) round(s);
            else
                for (long s = end - 1; s > lo[pipe.levels - 1] - wavefront.in_round; s -= wavefront.in_round) round(s);
        }
    }

    // Hands over rows j0 .. j1 - 1 of the planes in i0 .. i1 - 1 that a level gives, in tile n. Level 0 only tells that
    // it has loaded them, since the taker's results may overwrite the fields.
    void give(int q, long i0, long i1, long j0, long j1, long n) {
        for (int f = 0; f < FIELDS && q; f++) {
            const Planes all = given(q, f);
            for (long i = max(i0, all.begin); i < min(i1, all.end); i++)
                for (long j = j0; j < j1; j++)
                    copy(gives->row(hand_over.first[q][f] + i - all.begin, j), part.row(f, drift(q, f), i, j),
                         call.count[2]);
        }
        const long most = hand_over.most[q];
        if (most && (upward ? i1 >= tiles.lowest(q, 0) + most : i0 <= tiles.highest(q, 0) - most))
            gives->hand_over(q, n + 1);
    }

    // Takes rows j0 .. j1 - 1 of the planes in i0 .. i1 - 1 that are handed over at a level, in tile n. At level 0,
    // `fetch_neighbours` has taken those of this block.
    void take(int q, long i0, long i1, long j0, long j1, long n) {
        for (int f = 0; f < FIELDS; f++) {
            const Planes all = taken(q, f);
            const long begin = max(i0, all.begin), end = min(i1, all.end);
            if (begin >= end) continue;
            takes->await(q, n + 1);
            for (long i = begin; i < end; i++)
                for (long j = j0; j < j1; j++)
                    if (q)
                        copy(part.row(f, drift(q, f), i, j), takes->row(hand_over.first[q][f] + i - all.begin, j),
                             call.count[2]);
                    else if (wavefront.of_neighbour(i, j)) copy_row(f, i, j);
        }
        for (int f = 0; f < FIELDS; f++) {  // when all fields are there: ghost cells of one may depend on another
            const Planes all = taken(q, f);
            if (max(i0, all.begin) < min(i1, all.end))
                fill_ghosts_in_planes(q, f, HandOver::ring(pipe, q, f), max(i0, all.begin), min(i1, all.end), j0, j1);
        }
    }

    // Prefetches, during this round, the tile's rows of those planes of the next one, from i on, in lo .. hi - 1.
    void prefetch(long i, long lo, long hi, const long rows[2]) {
        upcoming.clear();
        for (long n = max(i, lo); n < min(i + wavefront.in_round, hi); n++)
            for (int f = 0; f < FIELDS; f++) {
                if (!wavefront.layers.holds_planes(f, n)) continue;
                const Drift& d = start_drift[f];
                if (k) upcoming.add(part.row(f, d, n, rows[0]), (rows[1] - rows[0]) * part.pitch);
                if (k || n < from[0] || n >= to[0]) continue;
                const long j0 = max(rows[0], from[1]), j1 = min(rows[1], to[1]);  // the rows that level 0 copies
                upcoming.add(wavefront.row_of(0, f, n, j0, d), call.count[2], j1 - j0, call.capacity[2]);
            }
    }

    // Prefetches, during the previous level, the rows that the previous tile left for a level at planes i .. i +
    // AT_ONCE - 1. These rows are no longer in the near caches: rows of the plane that the level reads first, and the
    // rows beside its own.
    void prefetch_edge(int q, long i, const long rows[2]) {
        const Level& mine = pipe.level[q];
        const Pass& pass = passes[mine.pass];
        for (int n = 0; n < pass.inputs; n++) {
            const int *reach = pass.input[n].reach, array = pass.input[n].array, f = field_of[array];
            long left = pipe.level[pipe.ring[pipe.ring_of[mine.step][array]].level].reach[1] - mine.reach[1];
            Drift d = drift(q - 1, f);
            for (long k = i; k < i + AT_ONCE && wavefront.layers.holds_planes(f, k); k++) {
                const long first_read = upward ? k + reach[0] : k - reach[0];
                for_next_level.add(part.row(f, d, first_read, upward ? rows[0] : rows[1] - left), left * part.pitch);
                for_next_level.add(part.row(f, d, k, upward ? rows[0] - reach[1] : rows[1]), reach[1] * part.pitch);
            }
        }
    }

    // Computes the planes of a level in a round, which begin with plane i, and of which i0 .. i1 - 1 are needed.
    void level(int q, long i, long i0, long i1, long j0, long j1) {
        if (!q) return load(i0, i1, j0, j1);
        compute(q, i, i0, i1, j0, j1);
        if (q == pipe.levels - 1) store(q, i0, i1, j0, j1);
    }

    // Level 0: see `fetch_neighbours`.
    void load(long i0, long i1, long j0, long j1) {
        for (long n = i0; n < i1; n++)
            for (int f = 0; f < FIELDS; f++) {
                bool inside = n >= from[0] && n < to[0];
                for (long j = j0; j < j1; j++)
                    if (wavefront.of_neighbour(n, j) || (!k && inside && j >= from[1] && j < to[1]))
                        copy_row(f, n, j);
            }
        // when all planes are there: ghost cells of a wall mirror several
        for (int f = 0; f < FIELDS; f++) fill_ghosts(0, f, pipe.load[f], i0, i1, j0, j1);
    }

    // Computes a pass, then the ghost cells that depend on it. Planes and rows come in the order of the sweep, because
    // they overwrite others.
    void compute(int q, long i, long i0, long i1, long j0, long j1) {
        const Level& mine = pipe.level[q];
        const Pass& pass = passes[mine.pass];
        const long first[AXES] = {tiles.seam[0] ? i0 : max(i0, from[0]), max(j0, from[1]), 0},
                   end[AXES] = {tiles.seam[1] ? i1 : min(i1, to[0]), min(j1, to[1]), call.count[2]};
        auto read_plane = [&](int array, long n) {
            const int f = field_of[array];
            return Rows{part.row(f, drift(q - 1, f), n, 0), part.pitch};
        };
        for (long n = i; n < i + wavefront.in_round; n += AT_ONCE)
            unstored[q].record(call, scalars[mine.step], wavefront.tables.data(), wavefront.layers, n, first, end,
                               [&](const Plane& plane, long n) {
                                   if (plane.input < 0) return inputs[q].at(plane, n);
                                   return read_plane(Unstored::array(plane), n + plane.offset);
                               });
        stencils[q].record(call, i0, i1, first, end, read_plane);
        // the lowest and the highest plane with which a group begins
        const long planes = pass.at_once, low = i + (i0 - i) / planes * planes,
                   high = low + (i1 - 1 - low) / planes * planes;
        const long begin = upward ? low : high, next = upward ? planes : -planes;
        if (BY_PLANES) compute_groups(q, begin, (high - low) / planes + 1);
        else
            for (long n = begin; n >= low && n <= high; n += next)
                whole_rows(q) ? compute_rows(q, n, j0, j1) : compute_chunks(q, n, j0, j1);
        if (!injected[q].entries.empty() || !records[q].empty())
            for (long n = low; n <= high; n += planes) {
                const Rows* made = rows_written(q, n, 0, 1);
                injected[q].add(call, pass, n, planes, made, j0, j1, 0, width);
                records[q].put(call, wavefront.layers, pass, n, made, read_plane, first, end, wavefront.non_temporal);
            }
        for (int o = 0; o < pass.outputs; o++)
            fill_ghosts(q, field_written(pass, o), pipe.output(q, o), i0, i1, j0, j1);
    }

    bool whole_rows(int q) const { return !LAYERS && chunk[q].count == 1; }
    // Calls of its pass by a level in a round, in a tile with some rows.
    long calls_in_round(int q, long rows) const {
        if (BY_PLANES) return 1;
        return (whole_rows(q) ? (rows + ROWS - 1) / ROWS : rows * chunk[q].count)
               * (AT_ONCE / passes[pipe.level[q].pass].at_once);
    }

    // What a level reads, and writes, if it computes plane i. Row m of a call is row m * rows of plane i + m * planes.
    INLINED const Rows* rows_read(int q, int mask, long i, long planes, long rows) {
        const Pass& pass = passes[pipe.level[q].pass];
        const long pitch = planes * part.plane + rows * part.pitch;
        real* const* sources = in[q] + mask * PLANES;
        return read.of(pass, mask, [&](int p, int more) {
            const Plane& plane = pass.variant[mask]->plane[p];
            return plane.input < 0 ? inputs[q].at(plane, i + more, planes, rows, wrapped)
                                   : Rows{sources[p] + (i + more) * part.plane, pitch};
        });
    }
    // Makes the arrays of a step, which end where a periodic axis does, have row j in its place. Returns how many rows
    // from j on do, in the order of the sweep.
    long turn_to(long j) {
        const long count = call.count[1], before = wrapped;
        if (!REPLAYED || !call.wraps[1]) return UNBOUNDED;
        wrapped = j < 0 ? count : j < count ? 0 : -count;
        if (wrapped != before) read.forget();
        if (upward) return wrapped > 0 ? -j : wrapped ? UNBOUNDED : count - j;
        return wrapped > 0 ? UNBOUNDED : wrapped ? j - count + 1 : j + 1;
    }
    const Rows* rows_written(int q, long i, long planes, long rows) {
        const Pass& pass = passes[pipe.level[q].pass];
        for (int p = 0; p < pass.outputs * pass.at_once; p++)
            written[p] = {out[q][p] + i * part.plane, planes * part.plane + rows * part.pitch};
        return written.data();
    }

    // Computes rows m0 .. m1 - 1 of a call, as in `rows_read`.
    void compute_call(int q, long i, long planes, long rows, const Rows* from, const Rows* to, long m0, long m1) {
        const Variant& pass = passes[pipe.level[q].pass].whole();
        const real* numbers = scalars[pipe.level[q].step] + pass.scalars;
        pass.compute({numbers, wavefront.tables.data(), i, planes, rows}, from, to, m0, m1, 0, width);
        upcoming.next_portion(), for_next_level.next_portion();
    }

    // Computes groups of planes that are single rows, from plane i on, in one call.
    void compute_groups(int q, long i, long groups) {
        const long planes = passes[pipe.level[q].pass].at_once, next = upward ? planes : -planes,
                   other = i + (groups - 1) * next, low = min(i, other), high = max(i, other) + planes - 1;
        if (REPLAYED && groups > 1 && home(call, high) - home(call, low) != high - low) {  // across the end of an axis
            compute_groups(q, i, groups / 2);
            return compute_groups(q, i + groups / 2 * next, groups - groups / 2);
        }
        read.forget();
        compute_call(q, i, next, 0, rows_read(q, 0, i, next, 0), rows_written(q, i, next, 0), 0, groups);
    }

    // Computes rows of a group of planes, a few in a call.
    void compute_rows(int q, long i, long j0, long j1) {
        read.forget();
        const long next = upward ? 1 : -1, end = upward ? j1 : 1 - j0;
        const Rows* to = rows_written(q, i, 0, next);
        for (long m = upward ? j0 : 1 - j1; m < end;) {
            const long stop = min(end, m + turn_to(m * next));
            const Rows* from = rows_read(q, 0, i, 0, next);
            for (; m < stop; m += ROWS) compute_call(q, i, 0, next, from, to, m, min(m + ROWS, stop));
            m = stop;
        }
    }

    // Computes rows of a group of planes in chunks, and apart where they are in different absorbing layers.
    void compute_chunks(int q, long i, long j0, long j1) {
        const Pass& pass = passes[pipe.level[q].pass];
        const Chunks& cut = chunk[q];
        // loaded once, not for each row
        const real *const *tables = wavefront.tables.data(), *numbers = scalars[pipe.level[q].step];
        read.forget();
        const Rows* to = rows_written(q, i, 0, 1);
        for (long c = 0; c < cut.end; c += cut.length)
            for (long m = 0; m < j1 - j0; m++) {
                long j = upward ? j0 + m : j1 - 1 - m, x0 = max(0, c - cut.lower * m),
                     x1 = min(width, c + cut.length - cut.lower * m);
                if (x0 >= x1) continue;
                turn_to(j);
                wavefront.layers.each_region(
                    i, pass.at_once, j, j + 1, x0, x1, [&](int mask, long, long, long v0, long v1) INLINED {
                        compute_variant(pass, *pass.variant[mask], numbers, tables, i, rows_read(q, mask, i, 0, 1), to,
                                        j, j + 1, v0, v1, upward);
                        wavefront.layers.clear_margins(pass, to, false, mask, i, j, j + 1, v0, v1);
                    });
                upcoming.next_portion(), for_next_level.next_portion();
            }
    }

    // Stores the last level's cells where they are needed: results after the last sweep, snapshots, and edges for
    // neighbouring blocks.
    void store(int q, long i0, long i1, long j0, long j1) {
        EdgeExchange::Stored done;
        for (long n = i0; n < i1; n++)
            for (int f = 0; f < FIELDS; f++) {
                const long at = home(call, n);
                Drift d = drift(q, f);
                for (long j = j0; j < j1; j++) {
                    if (last)
                        wavefront.layers.each_piece(
                            f, true, n, j, j + 1, 0, call.count[2],
                            [&](long, long, long x0, long x1) { Layers::clear(part.row(f, d, n, j), x0, x1); });
                    if (last)
                        results.store(f, (real*)call.results[f] + (at * call.capacity[1] + j) * call.capacity[2],
                                      part.row(f, d, n, j), call.count[2], wavefront.non_temporal);
                    if (wavefront.snapshot) wavefront.snapshot->put(f, at, j, part.row(f, d, n, j), call.count[2]);
                    if (!last && call.edges)
                        call.edges->put(call, done, f, at, j, part.row(f, d, n, j), 0, call.count[2],
                                        wavefront.non_temporal);
                }
            }
        if (call.edges) call.edges->stored(done);
    }

    // Fills the ghost cells that depend on planes i0 .. i1 - 1.
    void fill_ghosts(int q, int f, int r, long i0, long i1, long j0, long j1) {
        const Ring& ring = pipe.ring[r];
        auto empty = [&](long i) { return wavefront.layers.is_empty(ring.array, i); };
        fill_ghosts_in_planes(q, f, r, i0, i1, j0, j1);
        long n = call.count[0], w = ring.width[0];
        for (int e = 0; e < 2 && w; e++) {
            if (!tiles.boundary[0][e]) continue;
            long i = e ? (upward ? n - 1 : n - w) : (upward ? w - 1 : 0);  // all mirrored planes are there
            for (long m = 1; m <= w && i >= i0 && i < i1 && !empty(i); m++)
                fill_ghost_plane(q, f, ring, arrays[ring.array].face[0][e], e ? n + m - 1 : -m, e ? n - m : m - 1, m,
                                 e ? n - 1 : 0, j0, j1);
        }
    }

    // Fills the ghost cells of planes i0 .. i1 - 1 beyond the ends of the other axes.
    void fill_ghosts_in_planes(int q, int f, int r, long i0, long i1, long j0, long j1) {
        const Ring& ring = pipe.ring[r];
        if (!fills[r]) return;
        if (BY_PLANES) fill_row_ends(q, f, ring, i0, 1, 0, i1 - i0);
        for (long i = i0; i < i1 && !BY_PLANES; i++)
            if (!wavefront.layers.is_empty(ring.array, i)) fill_ghosts_in_plane(q, f, ring, i, j0, j1);
    }

    real* plane(int q, int f, long i) const { return drifted[q][f] + i * part.plane; }

    void fill_ghost_plane(int q, int f, const Ring& ring, const Face& face, long ghost, long mirror, long m,
                          long beside, long j0, long j1) {
        Place place = {scalars[ring.step] + face.scalars, wavefront.tables.data(), ghost};
        Rows next[FIELDS + 1];
        for (int n = 0; n < face.nexts; n++) next[n] = {plane(q, field_of[face.next[n]], beside), part.pitch};
        face.fill(place, plane(q, f, ghost), plane(q, f, mirror), part.pitch, next, m, j0, j1, 0, width);
        fill_ghosts_in_plane(q, f, ring, ghost, j0, j1);
    }

    // Fills the ghost cells of a plane beyond the ends of the second and the third axis.
    void fill_ghosts_in_plane(int q, int f, const Ring& ring, long i, long j0, long j1) {
        real* p = plane(q, f, i);
        const long w = ring.width[1], n = call.count[1], pitch = part.pitch;
        for (int e = 0; w && e < 2; e++) {
            const Face& face = arrays[ring.array].face[1][e];
            if (!wavefront.at_boundary(part, 1, e) || (e ? j1 < n : j0 > 0)) continue;
            Place place = {scalars[ring.step] + face.scalars, wavefront.tables.data(), i};
            fill_rows(face, e, n, w, place, p, pitch, 0, width,
                      [&](int m) { return Rows{plane(q, field_of[face.next[m]], i), pitch}; });
            if (e) j1 = n + w;
            else j0 = -w;
        }
        fill_row_ends(q, f, ring, i, 0, j0, j1);
    }

    // Fills the ghost cells beyond the ends of rows j0 .. j1 - 1 of plane i. With ``planes`` = 1 these are the rows of
    // planes i + j0 .. i + j1 - 1, which have one each.
    void fill_row_ends(int q, int f, const Ring& ring, long i, long planes, long j0, long j1) {
        real* p = plane(q, f, i);
        const long w = ring.width[2], n = call.count[2], pitch = planes ? part.plane : part.pitch;
        if (!w) return;
        if (call.wraps[2]) return wrap_cells(n, w, p, pitch, j0, j1);
        for (int e = 0; e < 2; e++) {
            const Face& face = arrays[ring.array].face[2][e];
            Place place = {scalars[ring.step] + face.scalars, wavefront.tables.data(), i, planes};
            fill_cells(face, e, n, w, place, p, pitch, j0, j1,
                       [&](int m) { return Rows{plane(q, field_of[face.next[m]], i), pitch}; });
        }
    }
};

void Wavefront::work(long n, Buffer& memory) {
    allocate_part(n, memory);
    barrier.wait([] {});  // threads see the memory of others
    for (long k = 0; k < sweeps; k++) {
        Sweep* sweep = new Sweep(*this, n, k);  // too large for a stack
        sweep->fetch_neighbours();
        barrier.wait([&] { snapshot = k + 1 == sweeps ? snapshot_target(call) : nullptr; });
        sweep->results.begin(sweep->last ? sums : nullptr);
        sweep->run();
        sweep->end_sums();
        __sync_synchronize();  // orders non-temporal stores too
        barrier.wait([&] {
            if (call.edges && k + 1 < sweeps) call.edges->turn(call, k + 2 < sweeps);
        });
        delete sweep;
    }
}
