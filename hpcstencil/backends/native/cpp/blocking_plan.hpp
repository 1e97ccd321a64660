// The plan of a call: its sweeps, pipelines and tables, for steps in tiles and steps in place.
#pragma once
#include <algorithm>
#include <array>
#include <map>

#include "level_records.hpp"
#include "threads.hpp"

// Blocks of cells to prefetch while others are computed. They are prefetched a few cache lines at a time, because a
// processor stalls if more loads are outstanding than it can track.
struct Prefetch {
    struct Block {
        const real* from;
        long lines, rows, pitch;
    };
    std::vector<Block> block;
    size_t at = 0;
    long done = 0, lines = 0, portion = 1;  // done: lines of the row that comes next

    // Prefetches the remaining cells, then removes all blocks.
    void clear() {
        while (at < block.size()) next_portion();
        block.clear(), at = 0, lines = 0;
    }
    void add(const real* from, long cells, long rows = 1, long pitch = 0) {
        if (cells <= 0 || rows <= 0) return;
        if (pitch - cells < LANES) cells += (rows - 1) * pitch, rows = 1;  // nothing worth leaving out is between rows
        long more = round_up(cells, LANES) / LANES;
        block.push_back({from, more, rows, pitch}), lines += more * rows;
    }
    void divide(long portions) { portion = lines / max(1, portions) + 1; }
    void next_portion() {
        for (long left = portion; left && at < block.size();) {
            Block& next = block[at];
            long n = min(left, next.lines - done);
            for (long m = done; m < done + n; m++) __builtin_prefetch(next.from + m * LANES, 0, 2);
            left -= n, done += n;
            if (done < next.lines) continue;
            done = 0, next.from += next.pitch;
            if (!--next.rows) at++;
        }
    }
};

constexpr long ROWS = 4;  // of a plane that a call of a pass computes between two portions of prefetched cells

// The number of steps per sweep, and the division of a block: into ``parts`` tiles per axis, or for steps in place
// into tiles of ``rows`` rows (0 for steps in tiles). ``work`` is the estimated cost per cell and step. If ``joins``,
// sweeps in place begin steps for each other, as in `Joints`.
struct Blocking {
    int steps;
    long parts[AXES], rows;
    double work;
    bool joins = JOINS_STEPS;
};

// The division of ``steps`` into ``sweeps`` over the block; the longer sweeps come first.
struct Plan {
    const Call& call;
    long steps, sweeps;
    bool joins_sweeps = false;        // see `Blocking`
    std::vector<Pipeline> pipelines;  // of the different kinds of sweeps
    std::vector<int> kind;            // of each sweep
    std::map<int, Pipeline> all_recorded;  // by the number of steps, see `widest`
    List<const real*> tables{TABLES};
    Layers layers;
    FixedArrays fixed_arrays;
    EvaluatorFunctions evaluator_functions[EVALUATORS];
    Barrier barrier;
    bool non_temporal;  // results bypass the caches, which they would fill
    FieldSums* sums = nullptr;

    explicit Plan(const Call& call) : call(call) {}
    ~Plan() {
        for (EvaluatorFunctions& each : evaluator_functions)
            if (each.opened) each.close(each);
    }

    void lay_out(long steps_, long sweeps_) {
        steps = steps_, sweeps = sweeps_;
        std::vector<std::array<long, 4 + EVALUATORS>> kinds;
        for (long k = 0; k < sweeps; k++) {
            const long count = steps / sweeps + (k < steps % sweeps), first = first_step(k);
            const Evaluations evaluations = evaluations_of(call, first, count);
            long apart = 0;
            for (long t = 0; t < count; t++) apart |= long(is_whole(call, first + t + 1)) << t;
            const bool begun = joins_sweeps && k && !is_whole(call, first),
                       next = joins_sweeps && k + 1 < sweeps && !is_whole(call, first + count);
            std::array<long, 4 + EVALUATORS> mine = {count, begun, next, apart};
            for (int e = 0; e < EVALUATORS; e++) mine[4 + e] = evaluations.of[e].steps;
            kind.push_back(std::find(kinds.begin(), kinds.end(), mine) - kinds.begin());
            if (kind[k] < (long)kinds.size()) continue;
            kinds.push_back(mine), pipelines.emplace_back();
            pipelines.back().lay_out(count, has_boundary(call, 0), call.section, {begun, next}, apart,
                                     evaluations);
            if (evaluates(call)) pipelines.back().widen(widest(count));
        }
    }
    // The pipeline of ``count`` steps that are all recorded. If a call records some, each of its sweeps loads as much
    // as this one, and shifts fields as far: then the next sweep, which goes the other way, shifts them back.
    const Pipeline& widest(int count) {
        Pipeline& found = all_recorded[count];
        if (!found.steps)
            found.lay_out(count, has_boundary(call, 0), call.section, {}, ALL_APART, all_evaluations(call));
        return found;
    }
    // Computes the functions of coordinates, after `lay_out`.
    void fill_functions(CallMemory* memory) {
        long reach[AXES];
        for (int a = 0; a < AXES; a++) reach[a] = longest().level[0].reach[a] + longest().level[0].deep[a];
        fill_tables(call, reach, memory, tables, layers);
        fill_fixed_arrays(call, reach, memory, fixed_arrays);
        for (int e = 0; e < EVALUATORS && call.records; e++)
            if (const StencilRecords* each = stencil_records[e])
                each->evaluator->open(call, each->constants, reach, &evaluator_functions[e]);
    }

    const Pipeline& pipeline_of(long k) const { return pipelines[kind[k]]; }
    const Pipeline& longest() const { return pipeline_of(0); }
    long first_step(long k) const { return (long)call.clock[1] + k * (steps / sweeps) + min(k, steps % sweeps); }
};
