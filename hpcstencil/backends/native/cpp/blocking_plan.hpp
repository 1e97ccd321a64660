// The plan of a call: its sweeps, pipelines and tables, for steps in tiles and steps in place. plan_layout.hpp has the
// functions that make it.
#pragma once
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
    List<Pipeline*> all_recorded{MAX_STEPS + 1};  // by the number of steps, see `widest`; null before
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
        for (Pipeline* each : all_recorded) delete each;
    }

    OWN void lay_out(long steps, long sweeps);
    // The pipeline of ``count`` steps that are all recorded. If a call records some, each of its sweeps loads as much
    // as this one, and shifts fields as far: then the next sweep, which goes the other way, shifts them back.
    OWN const Pipeline& widest(int count);
    // Computes the functions of coordinates, after `lay_out`.
    OWN void fill_functions(CallMemory* memory);

    const Pipeline& pipeline_of(long k) const { return pipelines[kind[k]]; }
    const Pipeline& longest() const { return pipeline_of(0); }
    long first_step(long k) const { return (long)call.clock[1] + k * (steps / sweeps) + min(k, steps % sweeps); }
};
