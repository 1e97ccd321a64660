// The extrema and sums of fields, and of expressions of them, after given steps, recorded while many steps are taken at
// once.
#pragma once
#include <algorithm>

#include "recorded_steps.hpp"
#include "value_rows.hpp"

// Record n has GIVEN + ``values`` sums, from ``sums`` + n (GIVEN + values) on: of the fields, then of the values of the
// trees.
struct FieldRecords : RecordedSteps {
    FieldSum* sums;
    int64_t values;
    const ValueTree* trees;
    const double* times;  // of the records

    // The record of the state after a step of the call's clock; null if it is not recorded.
    FieldSum* record(const Call& call, long step) const {
        const long n = number(step);
        return n < 0 ? nullptr : sums + row(call, n) * (GIVEN + values);
    }
};

OWN inline std::vector<FieldRecords*> field_records;  // of several recorders
OWN inline bool records_need_whole_steps = false;

// Whether the state after a step of the call's clock is recorded.
static bool records_fields(long step) {
    for (const FieldRecords* each : field_records)
        if (each->number(step) >= 0) return true;
    return false;
}

// Whether a step leaves a field as it is.
static bool is_kept(int f) { return ends[f] == f; }

// Calls body(later, output_of) if the pass makes fields after this step (0), or after the next one (1); ``output_of``
// holds the number of the output that is each field, or -1.
template <class Body>
static void each_state_made(const Pass& pass, Body body) {
    for (int later = 0; later < 2; later++) {
        List<int> output_of(GIVEN);
        output_of.fill(-1);
        bool any = false;
        each_field_made(pass, [&](int o, int f, int when) {
            if (when == later) output_of[f] = o, any = true;
        });
        if (any) body(later, output_of.data());
    }
}

// Where a level has a field that a tree reads, after the step: among the outputs of its pass, or the arrays that the
// pass reads, or the caller's fields, if the step leaves it as it is.
struct Source {
    enum { NOWHERE, OUTPUT, INPUT, KEPT } kind;
    int number;
};
static Source source_of(const Pass& pass, int f, int later, const int* output_of) {
    if (is_kept(f)) return {Source::KEPT, f};
    if (output_of[f] >= 0) return {Source::OUTPUT, output_of[f]};
    for (int o = 0; o < pass.outputs; o++)
        if (field_of[pass.output[o] % ARRAYS] == f) return {Source::NOWHERE, 0};  // which may overwrite it
    for (int n = 0; n < pass.inputs && !later; n++)
        if (pass.input[n].array == ends[f]) return {Source::INPUT, ends[f]};
    return {Source::NOWHERE, 0};
}

// Whether a level that makes some fields is the one that evaluates a tree: it has all that the tree reads, and makes
// one of these fields. For a tree that reads none that changes, it makes the first that does.
static bool can_evaluate(const ValueTree& tree, const Pass& pass, int later, const int* output_of) {
    bool made = false, constant = true;
    for (int n = 0; n < tree.fields; n++) {
        const Source source = source_of(pass, tree.field[n], later, output_of);
        if (source.kind == Source::NOWHERE) return false;
        made = made || source.kind == Source::OUTPUT;
        constant = constant && source.kind == Source::KEPT;
    }
    int first = 0;
    while (first < GIVEN && is_kept(first)) first++;
    return constant ? first < GIVEN && output_of[first] >= 0 : made;
}
// The same for the state after the step of a pass.
static bool can_evaluate(const ValueTree& tree, const Pass& pass) {
    bool found = false;
    each_state_made(pass, [&](int later, const int* output_of) {
        found = found || (!later && can_evaluate(tree, pass, later, output_of));
    });
    return found;
}

// Whether a recorder needs a field or value that is lost between joined steps.
static bool needs_whole_steps(const FieldRecords& records) {
    for (int v = 0; JOINS_STEPS && v < records.values; v++)
        if (!can_evaluate(records.trees[v], passes[PASSES])) return true;
    return is_lost_between_steps([&](int f) { return records.sums[f].wanted != NOTHING; });
}
// Later calls do not record there any more.
ENTRY void drop_field_records(FieldRecords* records) {
    field_records.erase(std::remove(field_records.begin(), field_records.end(), records), field_records.end());
    records_need_whole_steps = false;
    for (const FieldRecords* each : field_records) records_need_whole_steps |= needs_whole_steps(*each);
}
// Later calls also record there.
ENTRY void add_field_records(FieldRecords* records) {
    drop_field_records(records);
    field_records.push_back(records);
    records_need_whole_steps |= needs_whole_steps(*records);
}

// Whether each of the first GIVEN fields can be recorded: whether passes compute its values after a step,
// ``everywhere`` or only in absorbing layers.
ENTRY void find_recordable(int64_t* recordable, int64_t everywhere) {
    for (int f = 0; f < GIVEN; f++) {
        recordable[f] = false;
        for (int p = 0; p < PASSES && !(everywhere && layers_of[ends[f]]); p++)
            if (stores(passes[p], ends[f])) recordable[f] = true;
    }
}
// Whether the values of a tree can be recorded: whether a level has all fields that it reads, everywhere. The first
// pass does not count if the step before may be joined to it.
ENTRY int64_t can_record_values(const ValueTree* tree) {
    for (int n = 0; n < tree->fields; n++)
        if (layers_of[ends[tree->field[n]]]) return false;
    for (int p = JOINS_STEPS && PASSES > 1; p < PASSES; p++)
        if (can_evaluate(*tree, passes[p])) return true;
    return false;
}

// The sums to which a level adds the fields that it makes, and values of expressions of them.
struct LevelSums {
    struct Entry {
        int output;  // -1 for the values of ``tree``
        const ValueTree* tree;
        FieldSum* to;
        double time;
        Source source[MOST_VALUE_FIELDS];  // of the fields that the tree reads
        CellSums cells;
    };
    std::vector<Entry> entries;

    void find(const Call& call, long step, const Pass& pass) {
        for (const FieldRecords* each : field_records) find(*each, call, step, pass);
    }
    void find(const FieldRecords& records, const Call& call, long step, const Pass& pass) {
        each_state_made(pass, [&](int later, const int* output_of) {
            const long n = step + later + 1;
            FieldSum* record = records.record(call, n);
            if (!record) return;
            for (int f = 0; f < GIVEN; f++)
                if (output_of[f] >= 0 && record[f].wanted) begin({output_of[f], nullptr, record + f, 0});
            for (int v = 0; v < records.values; v++) {
                const ValueTree& tree = records.trees[v];
                if (!can_evaluate(tree, pass, later, output_of)) continue;
                Entry& added = begin({-1, &tree, record + GIVEN + v, records.times[records.number(n)]});
                for (int k = 0; k < tree.fields; k++)
                    added.source[k] = source_of(pass, tree.field[k], later, output_of);
            }
        });
    }
    Entry& begin(const Entry& added) {
        entries.push_back(added);
        entries.back().cells.begin(*added.to);
        return entries.back();
    }

    // Adds what the pass has just computed, see `LevelRecords`.
    void add(const Call& call, const Pass& pass, long i, const Rows* out, Reader<int> read, const long from[AXES],
             const long end[AXES]) {
        const long width = end[2] - from[2];
        for (Entry& each : entries) {
            if (each.tree) {
                add_tree(each, call, pass, i, out, read, from, end);
                continue;
            }
            each_plane_made(pass, each.output, i, out, from[0], end[0], [&](long, const Rows& made) {
                for (long j = from[1]; j < end[1]; j++)
                    each.cells.add_row(made.p + j * made.pitch + from[2], width);
            });
        }
    }

    static void add_tree(Entry& each, const Call& call, const Pass& pass, long i, const Rows* out, Reader<int> read,
                         const long from[AXES], const long end[AXES]) {
        ValueRows values{each.cells, *each.tree, call.parameters, each.time, call.coordinates};
        for (long n = max(i, from[0]); n < min(i + pass.at_once, end[0]); n++) {
            const long plane = home(call, n), pitch = call.capacity[2];
            Rows in[MOST_VALUE_FIELDS];
            for (int k = 0; k < each.tree->fields; k++) {
                const Source& source = each.source[k];
                if (source.kind == Source::OUTPUT) in[k] = out[source.number + (n - i) * pass.outputs];
                else if (source.kind == Source::INPUT) in[k] = read(source.number, n);
                else in[k] = {(real*)call.fields[source.number] + plane * call.capacity[1] * pitch, pitch};
            }
            values.add_plane(plane, from[1], end[1], from[2], end[2], in);
        }
    }

    // Adds the sums of this thread's cells to the records.
    void end() {
        for (Entry& each : entries) each.cells.add_to(*each.to);
        entries.clear();
    }
};
