// Sums over time of fields and expressions, Σ weight·value after each step of a call, for time averages.
#pragma once
#include "recorded_steps.hpp"

// A field, or a value of an evaluator, and its sums in ``count`` cells of the block per axis, from cell ``from`` on,
// ``stride`` apart. Those of the members of an ensemble follow each other.
struct TimeSum {
    int64_t field, from[AXES], count[AXES], stride[AXES];
    double* sums;

    bool has(int a, long i) const {
        return i >= from[a] && (i - from[a]) % stride[a] == 0 && (i - from[a]) / stride[a] < count[a];
    }
    bool has(long plane, long j) const { return has(0, plane) && has(1, j); }
    // Adds those of cells x0 .. x1 - 1 of a row.
    void add(const Call& call, double weight, long plane, long j, const real* cells, long x0, long x1) const {
        const long n = (plane - from[0]) / stride[0], row = (j - from[1]) / stride[1];
        double* to = sums + ((call.member * count[0] + n) * count[1] + row) * count[2];
        const long step = stride[2], first = max(0, (x0 - from[2] + step - 1) / step),
                   end = min(count[2], (x1 - from[2] + step - 1) / step);
        const real* chosen = cells + from[2];
        if (step == 1)
            for (long x = first; x < end; x++) to[x] += weight * double(chosen[x]);
        else
            for (long x = first; x < end; x++) to[x] += weight * double(chosen[x * step]);
    }
};
// To each of ``count`` sums record n is added with the weight weights[n]. They are of fields if ``evaluator`` is -1,
// else of the values of the evaluator with this number.
struct TimeSums : RecordedSteps {
    int64_t evaluator, count;
    const TimeSum* sum;
    const double* weights;
};

static std::vector<TimeSums*> time_sums;  // of several averages
static bool time_sums_need_whole_steps = false;

static void note_lost_fields() {
    time_sums_need_whole_steps = is_lost_between_steps([](int f) {
        for (const TimeSums* each : time_sums)
            for (int64_t n = 0; n < each->count && each->evaluator < 0; n++)
                if (each->sum[n].field == f) return true;
        return false;
    });
}
// Later calls do not add there any more.
extern "C" void drop_time_sums(TimeSums* sums) {
    for (size_t n = time_sums.size(); n-- > 0;)
        if (time_sums[n] == sums) time_sums.erase(time_sums.begin() + n);
    note_lost_fields();
}
// Later calls also add there.
extern "C" void add_time_sums(TimeSums* sums) {
    drop_time_sums(sums);
    time_sums.push_back(sums);
    note_lost_fields();
}
static bool adds_over_time(long step) {
    for (const TimeSums* each : time_sums)
        if (each->evaluator < 0 && each->number(step) >= 0) return true;
    return false;
}

// The sums to which a level adds the fields that it makes.
struct LevelTimeSums {
    struct Entry {
        int output;
        const TimeSum* to;
        double weight;
    };
    std::vector<Entry> entries;

    void find(long step, const Pass& pass) {
        for (const TimeSums* each : time_sums)
            each_field_made(pass, [&](int o, int f, int later) {
                const long record = each->number(step + later + 1);
                for (int64_t n = 0; n < each->count && each->evaluator < 0 && record >= 0; n++)
                    if (each->sum[n].field == f) entries.push_back({o, each->sum + n, each->weights[record]});
            });
    }

    // Adds what the pass has just computed, see `LevelRecords`.
    void add(const Call& call, const Pass& pass, long i, const Rows* out, const long from[AXES],
             const long end[AXES]) const {
        for (const Entry& each : entries) {
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long n, const Rows& made) {
                const long plane = home(call, n);
                for (long j = from[1]; j < end[1]; j++)
                    if (each.to->has(plane, j))
                        each.to->add(call, each.weight, plane, j, made.p + j * made.pitch, from[2], end[2]);
            });
        }
    }
};
