// The part of the driver that records states and adds values to them. It is compiled apart from those that step, which
// call these functions, and is the same for both.
#pragma once
#include "injection.hpp"
#include "level_records.hpp"

void CellSums::begin(const FieldSum& wanted) {
    exponent = wanted.exponent, sums = wanted.wanted != EXTREMA;
    for (int n = 0; n < HELD_UNITS; n++) {
        shift[n] = shift_of(n);
        least[n] = bits_of_power(max(exponent - (n + 1) * UNITS, 1 - QUICKEST) + MANTISSA);
    }
    limit = bits_of_power(exponent);
    quick = exponent > -QUICKEST && exponent < QUICKEST;
}

void CellSums::add_row(const real* v, long n) {
    if (!sums) return add_extrema(v, n);
    for (long x = 0; x < n; x += 1024) add_some<FEW_UNITS>(v + x, min(1024, n - x));
}

void CellSums::add_to(FieldSum& sum) {
    flush();
    exact.carry();
    for (long l = 0; l < LANES; l++) {
        if (most[l] > high) high = most[l];
        if (-fewest[l] > low) low = -fewest[l];
    }
    pthread_mutex_lock(&field_sums_lock);
    if (high > sum.high) sum.high = high;
    if (low > sum.low) sum.low = low;
    for (int k = 0; k < LIMBS; k++) sum.sum.limb[k] += exact.limb[k];
    sum.broken += broken;
    if (broken) __atomic_store_n(&not_finite, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&field_sums_lock);
}

void Unstored::record_planes(const Call& call, const real* scalars, const real* const* tables, const Layers& layers,
                             long i, const long from[AXES], const long end[AXES], Reader<const Plane&> source) const {
    VariantPlanes in;
    for (long n = i; n < i + AT_ONCE; n += pass().at_once) {
        in.forget();
        auto planes_of = [&](int mask) {
            return in.of(pass(), mask,
                         [&](int p, int more) { return source(pass().variant[mask]->plane[p], n + more); });
        };
        for (int f : fields)
            for (long j = from[1]; j < end[1]; j++) {
                RowRuns runs[MOST_AT_ONCE];
                for (long k = 0; k < pass().at_once; k++)
                    if (n + k >= from[0] && n + k < end[0])
                        runs[k].find(*cell_samples, f, call, n + k, j, from[2], end[2]);
                record_row(f, j, runs, [&](const Rows* out, long x0, long x1) {
                    layers.each_region(n, pass().at_once, j, j + 1, x0, x1,
                                       [&](int mask, long, long, long v0, long v1) {
                                           compute_variant(pass(), *pass().variant[mask], scalars, tables, n,
                                                           planes_of(mask), out, j, j + 1, v0, v1, true);
                                       });
                });
            }
    }
}

void LevelRecords::find(const Call& call, long step, const Pass& pass) {
    if (!call.records) return;
    cells.find(call, step, pass), sums.find(call, step, pass), states.find(step, pass), regions.find(step, pass);
}

void LevelRecords::put_all(const Call& call, const Layers& layers, const Pass& pass, long i, const Rows* out,
                           Reader<int> read, const long from[AXES], const long end[AXES], bool non_temporal) {
    cells.put(call, pass, i, out, from, end);
    sums.add(call, pass, i, out, read, from, end);
    states.put(call, layers, pass, i, out, from, end, non_temporal);
    regions.put(call, pass, i, out, from, end);
}

void LevelRecords::end() { sums.end(); }

void LevelEvaluation::find(const Call& call, long step, int number, const EvaluatorFunctions& of_call) {
    const StencilRecords* found = stencil_records[number];
    const long n = found ? found->number(step) : -1;
    if (n < 0) return;
    records = found, functions = &of_call;
    const Evaluator& evaluator = *records->evaluator;
    scalars.resize(evaluator.scalars + 1);
    evaluator.prepare(call.parameters, records->constants, records->times[n], 0, 1, scalars.data());
    const Variant& whole = evaluator.pass->whole();
    in.resize(whole.planes), out.resize(whole.outputs), value.resize(whole.outputs);
    for (int o = 0; o < whole.outputs; o++)
        value[o] = records->value[evaluator.field_of[evaluator.pass->output[whole.output[o]]]];
    if (records->cells) {
        cells = records->cells->values + records->row(call, n) * records->cells->size, runs.resize(whole.outputs);
        return;
    }
    if (!records->sums) {
        RegionRecord::each_after(step, number, [&](const RegionRecord& each) { regions.push_back(each); });
        return;
    }
    sums = records->sums + records->row(call, n) * records->values, added.resize(whole.outputs);
    for (int o = 0; o < whole.outputs; o++) added[o].begin(sums[value[o]]);
}

void LevelEvaluation::record(const Call& call, long i, long end, const long from[AXES], const long to[AXES],
                         Reader<int> read) {
    const Variant& whole = records->evaluator->pass->whole();
    for (long n = max(i, from[0]); n < min(end, to[0]); n++) {
        if (records->cells && !has_cells(call, n, from[1], to[1])) continue;
        for (int p = 0; p < whole.planes; p++) {
            const Plane& plane = whole.plane[p];
            in[p] = plane.input < 0 ? functions->fixed_arrays->at(plane, n)
                                    : read(records->inputs.input[plane.input].array, n + plane.offset);
        }
        if (records->cells) put_cells(call, whole, n, from, to);
        else if (records->sums) add_plane(whole, n, from, to);
        else put_regions(call, whole, n, from, to);
    }
}

void LevelEvaluation::end() {
    for (size_t o = 0; o < added.size(); o++) added[o].add_to(sums[value[o]]);
    added.clear();
}

void Injected::find(const Call& call, long step, const Pass& pass) {
    for (int o = 0; o < pass.outputs && call.records && injection; o++) {
        int later = pass.output[o] >= ARRAYS, number = injected[pass.output[o] - later * ARRAYS];
        const real* values = number < 0 ? nullptr : injection->row(step + later, number);
        if (values) entries.push_back({o, values});
    }
}
