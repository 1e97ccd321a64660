// What the passes of a call have in common, however a block is cut.
#pragma once
#include "threads.hpp"

// Ranges of cells that come from memory while others are computed, so many cache lines in a portion: a processor that is asked for
// more at once than it can wait for stands still.
struct Prefetch {
    struct { const real* from; long lines; } range[2 * ARRAYS * AT_ONCE];
    long ranges = 0, lines = 0, portion = 1, at = 0;

    // What was to come until now is asked for, and forgotten.
    void clear() {
        while (at < ranges) some();
        ranges = lines = at = 0;
    }
    void add(const real* from, long cells) {
        long more = up(cells, LANES) / LANES;
        if (more) range[ranges++] = {from, more}, lines += more;
    }
    void divide(long portions) { portion = lines / most(1, portions) + 1; }
    void some() {
        for (long left = portion; left && at < ranges;) {
            const real* from = range[at].from;
            long n = least(left, range[at].lines);
            for (long m = 0; m < n; m++) __builtin_prefetch(from + m * LANES, 0, 2);
            left -= n, range[at].from += n * LANES, range[at].lines -= n;
            if (!range[at].lines) at++;
        }
    }
};

// Arrays of functions of several coordinates, filled once: the cells of the block and some beyond.
struct Fixtures {
    real* origin[FIXED + 1];
    long pitch, plane;
};

// Steps per pass, and how a block is cut: to tiles per axis; or, in place, to tiles of so many ``rows``. What that costs for a
// cell and step.
struct Blocking { int steps; long parts[AXES], rows; double work; };

// The passes over a block: so many steps in so many passes, the longer ones first.
struct Plan {
    const Call& call;
    long steps, passes;
    Pipeline pipeline[2];  // of the longer passes and of the shorter ones
    const real* tables[TABLES + 1];
    Fixtures fixtures;
    Barrier barrier;
    bool past;  // results go past the caches, which they would fill

    explicit Plan(const Call& call) : call(call) {}

    void lay_out(long steps_, long passes_) {
        steps = steps_, passes = passes_;
        if (steps % passes) pipeline[0].lay_out(steps / passes + 1, has_boundary(call, 0));
        pipeline[1].lay_out(steps / passes, has_boundary(call, 0), call.section);
    }
    int which(long k) const { return k < steps % passes ? 0 : 1; }
    const Pipeline& longest() const { return pipeline[which(0)]; }
    template <class Body> void on_threads(long threads, Body body) {
        start_threads(threads, [&](long count) { barrier.threads = count; }, body);
    }
    long first_step(long k) const { return (long)call.clock[1] + k * (steps / passes) + least(k, steps % passes); }
};
