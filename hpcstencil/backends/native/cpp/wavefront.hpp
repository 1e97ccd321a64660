// Many steps in place: each thread keeps its part of the block in one array per field and sweeps over it.
//
// The levels of a sweep follow each other through the planes of the first axis as in `Pipeline`, a tile of rows of
// the second axis at a time. Each level's rows begin ``reach`` rows lower than those of the level before. The
// previous tile has therefore computed all that a level reads. The levels of neighbouring parts are slanted too, see
// seams.hpp. Only the edges of blocks are computed twice, and those of parts if there are absorbing layers.
//
// A level stores its results shifted by some planes and rows, so that they overwrite only values that are not needed
// any more. The next sweep goes the other way and shifts them back. This is the compressed grid of G. Wellein et al.,
// "Efficient temporal blocking for stencil computations by multicore-aware wavefront parallelization", COMPSAC 2009,
// shifted along two axes.
#pragma once
#include "field_drift.hpp"
#include "ghosts.hpp"
#include "injection.hpp"
#include "seams.hpp"
#include "slanted_tiles.hpp"
#include "snapshot_copies.hpp"

// The part of a block that a thread works on: its cells at the beginning of a call, and its memory.
struct Part {
    long from[AXES], to[AXES], pitch, plane;
    long cells, first;          // of the memory of a field; the offset of cell (0, 0, 0) in it
    std::vector<real*> origin;  // cell (0, 0, 0) of a field without drift

    real* row(int f, const Drift& moved, long i, long j) const {
        return origin[f] + (i - moved.planes) * plane + (j - moved.rows) * pitch;
    }
};

// Whether a call of a pass computes several groups of planes, which are single rows, as its rows.
static const bool BY_PLANES = FLAT && !LAYERS;
constexpr long MOST_GROUPS = 4;

struct Wavefront : Plan {
    long rows;          // of a tile
    long in_round;      // planes that a level computes before the next level does
    Pipeline reserved;  // of the longest sweep, for which memory is reserved; joined sweeps need no more
    std::vector<FieldDrift> field_drift;  // by kind of sweep
    std::vector<HandOver> hand_over;      // by kind of sweep
    FieldDrift reserved_drift;
    HandOver reserved_hand_over;
    Part part[MAX_THREADS];
    std::vector<Seam> seam;         // above each part, see `divide`
    std::vector<long> seam_offset;  // before each sweep: the planes by which seams lie above equal parts
    SnapshotCopies* snapshot = nullptr;

    Wavefront(const Call& call, const Blocking& blocking) : Plan(call), rows(blocking.rows) {
        joins_sweeps = blocking.joins;
        reserved.lay_out(blocking.steps, has_boundary(call, 0), nullptr, {}, needs_whole_steps(call) ? ALL_APART : 0,
                         all_evaluations(call));
        reserved_drift.lay_out(reserved, call.count[1] == 1);
        in_round = planes_in_round();
        // Between two ends, parts begin lower, because levels lie half as far above their first place on average.
        seam_offset.push_back(call.wraps[0] ? 0 : -(reserved.level[0].reach[0] / 2));
    }

    // Planes that are single rows are computed several groups of AT_ONCE at a time, because they have few cells for the
    // work around a pass. If the third-level cache is far, the planes of all levels have to stay in the second one.
    long planes_in_round() const {
        if (!BY_PLANES) return AT_ONCE;
        long planes = 0, groups = MOST_GROUPS;
        for (int f = 0; f < FIELDS; f++)
            planes += reserved.level[0].ahead + reserved_drift.after[reserved.levels - 1][f].planes;
        auto bytes = [&] { return (planes + 2.0 * groups * AT_ONCE * FIELDS) * call.count[2] * sizeof(real); };
        while (groups > 1 && call.l3_is_far && bytes() > 0.75 * call.l2_bytes) groups--;
        return groups * AT_ONCE;
    }

    void lay_out(long steps_, long sweeps_) {
        Plan::lay_out(steps_, sweeps_);
        field_drift.resize(pipelines.size()), hand_over.resize(pipelines.size());
        const bool flat = call.count[1] == 1;
        for (size_t n = 0; n < pipelines.size(); n++) {
            field_drift[n].lay_out(pipelines[n], flat);
            if (!evaluates(call)) continue;
            FieldDrift most;
            const Pipeline& other = widest(pipelines[n].steps);
            most.lay_out(other, flat), field_drift[n].widen(pipelines[n], most.after[other.levels - 1]);
        }
        for (long k = 0; k < sweeps; k++) {
            long reach = pipeline_of(k).level[0].reach[0];
            seam_offset.push_back(seam_offset[k] + (k % 2 ? -reach : reach));
        }
    }
    // Divides the block among threads, after `lay_out` if steps are to be taken. There are seams between parts, on a
    // periodic axis also between the last and the first one, but none with absorbing layers.
    void divide(long threads) {
        barrier.threads = threads;
        seam.resize(LAYERS ? 0 : threads - !call.wraps[0]);
        if (seam.empty()) return;
        reserved_hand_over.lay_out(reserved);
        for (size_t n = 0; n < pipelines.size(); n++) hand_over[n].lay_out(pipelines[n]);
    }
    template <class Body>
    void on_threads(long threads, Body body) {
        start_threads(threads, [&](long count) { divide(count); }, body);
    }
    long parts() const { return barrier.threads; }
    // Whether a part ends at a seam.
    bool at_seam(long n, int side) const {
        return !seam.empty() && (call.wraps[0] || (side ? n + 1 < parts() : n > 0 && n < parts()));
    }
    Seam& seam_at(long n, int side) { return seam[side ? n : n ? n - 1 : parts() - 1]; }
    // The first plane of a part before sweep k; with n = parts(), the end of the last one. The seams move up in upward
    // sweeps, and back in downward ones.
    long first_plane(long n, long k) const {
        return call.count[0] * n / parts() + (at_seam(n, 0) ? seam_offset[k] : 0);
    }
    // The part that has plane i of the block before sweep k, and the number of the plane there.
    long part_with(long& i, long k) const {
        if (i < first_plane(0, k)) i += call.count[0];
        const long above = i - (seam.empty() ? 0 : seam_offset[k]);
        return max(0, min(((above + 1) * parts() - 1) / call.count[0], parts() - 1));
    }
    // Whether a part ends at the boundary of the grid.
    bool at_boundary(const Part& p, int a, int side) const {
        return call.boundary[a][side] && (side ? p.to[a] == call.count[a] : p.from[a] == 0);
    }

    // The drift of a field before sweep k. Sweeps alternate between up and down.
    Drift drift_before(long k, int f) const {
        Drift moved = {0, 0};
        for (long n = 0; n < k; n++) {
            const Drift& d = field_drift[kind[n]].after[pipeline_of(n).levels - 1][f];
            moved.planes += n % 2 ? -d.planes : d.planes, moved.rows += n % 2 ? -d.rows : d.rows;
        }
        return moved;
    }

    // A distance between rows or planes of at least ``cells``, padded so that neighbouring rows or planes do not map to
    // the same cache set.
    static long padded(long cells) {
        while (modulo(cells * sizeof(real) + 512, 4096) < 1024) cells += LANES;
        return cells;
    }

    // Computes the layout of a thread's part, and returns the number of cells in its memory.
    long lay_out_part(long n, Part& p) const {
        long width[AXES] = {}, room[2] = {},
             beyond[2][2];  // ghost cells that are read; largest drift; cells beyond each end
        for (int r = 0; r < reserved.rings; r++)
            for (int a = 0; a < AXES; a++) width[a] = max(width[a], reserved.ring[r].width[a]);
        for (int f = 0; f < FIELDS; f++) {
            const Drift& moved = reserved_drift.after[reserved.levels - 1][f];
            room[0] = max(room[0], moved.planes), room[1] = max(room[1], moved.rows);
        }
        for (int a = 0; a < AXES; a++) p.from[a] = 0, p.to[a] = call.count[a];
        p.from[0] = first_plane(n, 0), p.to[0] = first_plane(n + 1, 0);
        for (int a = 0; a < 2; a++)
            for (int side = 0; side < 2; side++)
                beyond[a][side] = at_boundary(p, a, side) ? width[a] : max(width[a], reserved.level[0].reach[a]);
        for (int side = 0; side < 2; side++) {
            if (at_seam(n, side)) beyond[0][side] = width[0] + side * reserved.level[0].reach[0];
            beyond[0][side] += AT_ONCE;  // planes that a pass computes beside those wanted
        }
        p.pitch = padded(round_up(call.count[2], LANES) + round_up(2 * width[2], LANES));
        p.plane = padded((call.count[1] + beyond[1][0] + beyond[1][1] + room[1]) * p.pitch);
        p.first = p.pitch + (beyond[0][0] + room[0] - p.from[0]) * p.plane + (beyond[1][0] + room[1]) * p.pitch;
        p.cells = (p.to[0] - p.from[0] + beyond[0][0] + beyond[0][1] + room[0]) * p.plane + 2 * p.pitch;
        return FIELDS * p.cells + at_seam(n, 1) * planes_handed_over() * rows_of_seam() * p.pitch;
    }
    long rows_of_seam() const { return call.count[1] + 2 * reserved.level[0].reach[1]; }
    long planes_handed_over() const {
        long most = reserved_hand_over.total;
        for (const HandOver& each : hand_over) most = max(most, each.total);
        return most;
    }

    // Lays out the part of a thread and allocates its memory.
    void allocate_part(long n, Buffer& memory) {
        real* data = (real*)memory.reserve_zeroed(lay_out_part(n, part[n]) * sizeof(real));
        part[n].origin.resize(FIELDS);
        for (int f = 0; f < FIELDS; f++) part[n].origin[f] = data + f * part[n].cells + part[n].first;
        if (!at_seam(n, 1)) return;
        seam[n].data = data + FIELDS * part[n].cells, seam[n].rows_before = reserved.level[0].reach[1];
        seam[n].pitch = part[n].pitch, seam[n].plane = rows_of_seam() * part[n].pitch;
    }

    // Row (i, j) of a field before sweep k, in this block or in a neighbour's.
    const real* row_of(long k, int f, long i, long j, const Drift& moved) const {
        long at[AXES] = {call.wraps[0] ? modulo(i, call.count[0]) : i, call.wraps[1] ? modulo(j, call.count[1]) : j, 0};
        int d[AXES] = {};
        for (int a = 0; a < 2; a++) d[a] = at[a] < 0 ? -1 : at[a] >= call.count[a];
        if (d[0] || d[1]) return call.edges->cell(call, d, f, at);
        if (!k) return (const real*)call.fields[f] + (at[0] * call.capacity[1] + at[1]) * call.capacity[2];
        const Part& owner = part[part_with(at[0], k)];
        return owner.row(f, moved, at[0], at[1]);
    }

    // Whether row (i, j) lies in another block.
    bool of_neighbour(long i, long j) const {
        return (!call.wraps[0] && (i < 0 || i >= call.count[0])) || (!call.wraps[1] && (j < 0 || j >= call.count[1]));
    }

    OWN void work(long n, Buffer& memory);  // in sweep.hpp
};
