// Functions of coordinates that do not change: tables for functions of one coordinate, fixed arrays for several.
#pragma once
#include "layers.hpp"
#include "call_memory.hpp"

// Arrays of functions of several coordinates, on the cells of the block and some beyond it. They are filled once.
struct FixedArrays {
    List<real*> origin{FIXED};
    long pitch = 0, plane = 0;

    // What a pass that computes plane i reads.
    Rows at(const Plane& read, long i) const { return {origin[-1 - read.input] + (i + read.offset) * plane, pitch}; }
};

// The index of the coordinate of cell x: wrapped on a periodic axis; clamped beyond the coordinates that were passed,
// where nothing reads the result.
static inline long coordinate(const Call& call, int a, long x) {
    if (!call.margin[a]) return 0;
    long known = call.margin[a] - MAX_OFFSET[a];  // cells beyond the block
    return call.wraps[a] ? modulo(x, call.count[a]) : max(-known, min(x, call.count[a] + known - 1));
}

// Cells up to ``reach`` beyond the block are computed. Also finds the layers, except for a section of a step, whose
// results must hold zeros outside them.
static void fill_tables(const Call& call, const long reach[AXES], CallMemory* memory, List<const real*>& tables,
                        Layers& layers) {
    long beyond = 2 * LANES;
    for (int a = 0; a < AXES; a++) beyond = max(beyond, reach[a] + 64 + 2 * LANES);
    long total = 0;
    List<long> start{TABLES};
    for (int n = 0; n < TABLES; n++) start[n] = total, total += round_up(call.count[table_axis[n]] + 2 * beyond, LANES);
    real* data = (real*)memory->tables.reserve((total + LANES) * sizeof(real));
    for (int n = 0; n < TABLES; n++) {
        int a = table_axis[n];
        tables[n] = data + start[n] + beyond;
        for (long x = -beyond; x < call.count[a] + beyond; x++) {
            long index[AXES] = {0, 0, 0};
            index[a] = coordinate(call, a, x);
            data[start[n] + beyond + x] = tabulate(n, call.parameters, call.constants, call.coordinates, index);
        }
    }
    if (LAYERS && !call.section) layers.find(call, tables.data(), beyond);
}

// Fills the fixed arrays, which depend on coordinates, parameters and constants, unless these are the same as in the
// last call. They can differ, because several problems may share a program.
static void fill_fixed_arrays(const Call& call, const long reach[AXES], CallMemory* memory,
                              FixedArrays& fixed_arrays) {
    if (!FIXED) return;
    long beyond[AXES], size[AXES], numbers = PARAMETERS + CONSTANTS + 2 * AXES;
    for (int a = 0; a < AXES; a++) {
        beyond[a] = !call.margin[a] ? 0 : 16 + (call.section ? call.margin[a] : reach[a]);  // the same for all sections
        if (a == 2) beyond[a] = round_up(beyond[a] + LANES, LANES);
        size[a] = a == 2 ? round_up(call.count[a] + 2 * beyond[a], LANES) : call.count[a] + 2 * beyond[a];
        numbers += call.count[a] + 2 * beyond[a];
    }
    double* made_of = (double*)malloc(numbers * sizeof(double));
    long n = 0;
    for (int p = 0; p < PARAMETERS; p++) made_of[n++] = call.parameters[p];
    for (int c = 0; c < CONSTANTS; c++) made_of[n++] = call.constants[c];
    for (int a = 0; a < AXES; a++) {
        made_of[n++] = call.count[a], made_of[n++] = beyond[a];
        for (long x = -beyond[a]; x < call.count[a] + beyond[a]; x++)
            made_of[n++] = call.coordinates[a][coordinate(call, a, x)];
    }
    fixed_arrays.pitch = size[2], fixed_arrays.plane = size[1] * size[2];
    real* data = (real*)memory->fixed_arrays.reserve(FIXED * size[0] * fixed_arrays.plane * sizeof(real));
    for (int f = 0; f < FIXED; f++)
        fixed_arrays.origin[f] =
            data + f * size[0] * fixed_arrays.plane + (beyond[0] * size[1] + beyond[1]) * size[2] + beyond[2];
    size_t bytes = n * sizeof(double);
    if (memory->made_of_size != bytes || memcmp(memory->made_of.data, made_of, bytes)) {
        long index[AXES];
        for (int f = 0; f < FIXED; f++)
            for (long i = -beyond[0]; i < call.count[0] + beyond[0]; i++)
                for (long j = -beyond[1]; j < call.count[1] + beyond[1]; j++)
                    for (long x = -beyond[2]; x < call.count[2] + beyond[2]; x++) {
                        index[0] = coordinate(call, 0, i), index[1] = coordinate(call, 1, j),
                        index[2] = coordinate(call, 2, x);
                        fixed_arrays.origin[f][i * fixed_arrays.plane + j * fixed_arrays.pitch + x] =
                            fix(f, call.parameters, call.constants, call.coordinates, index);
                    }
        memcpy(memory->made_of.reserve(bytes), made_of, bytes), memory->made_of_size = bytes;
    }
    free(made_of);
}
