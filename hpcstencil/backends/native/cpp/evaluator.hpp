// A program that computes the values of expressions (native/stencil_values.py), as other programs use it.
#pragma once
#include "coordinate_tables.hpp"

// The functions of coordinates that an evaluator's pass reads, for one call of another program.
struct EvaluatorFunctions {
    void* opened = nullptr;  // memory of the evaluator
    void (*close)(EvaluatorFunctions&) = nullptr;
    const real* const* tables = nullptr;
    const FixedArrays* fixed_arrays = nullptr;
};

struct Evaluator {
    const Pass* pass;
    void (*prepare)(const double*, const double*, double, double, double, real*);
    // Computes the functions of coordinates for a call whose cells lie up to ``reach`` beyond the block, per axis.
    void (*open)(const Call&, const double* constants, const long* reach, EvaluatorFunctions*);
    const int* field_of;
    int64_t scalars;
};

struct OpenedFunctions {
    CallMemory* memory;
    List<const real*> tables{TABLES};
    FixedArrays fixed_arrays;
};
static void close_functions(EvaluatorFunctions& functions) {
    OpenedFunctions* opened = (OpenedFunctions*)functions.opened;
    give_back(opened->memory);
    delete opened;
    functions = {};
}
static void open_functions(const Call& call, const double* constants, const long* reach, EvaluatorFunctions* found) {
    if (!TABLES && !FIXED) return;
    Call own = call;
    own.constants = constants, own.section = nullptr;
    OpenedFunctions& opened = *new OpenedFunctions{borrow()};
    Layers unused;
    fill_tables(own, reach, opened.memory, opened.tables, unused);
    fill_fixed_arrays(own, reach, opened.memory, opened.fixed_arrays);
    *found = {&opened, close_functions, opened.tables.data(), &opened.fixed_arrays};
}

// The only pass of this program as an evaluator.
ENTRY void find_evaluator(Evaluator* found) {
    *found = {passes, prepare, open_functions, field_of, SCALARS};
}
