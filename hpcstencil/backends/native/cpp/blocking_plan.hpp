// The plan of a call: its sweeps, pipelines and tables, for steps in tiles and steps in place. plan_layout.hpp has the
// functions that make it.
#pragma once
#include "level_records.hpp"
#include "threads.hpp"

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
