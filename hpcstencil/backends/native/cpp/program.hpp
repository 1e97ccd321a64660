// A program, which the text of a step defines and the driver runs: functions that compute rows of cells, and tables
// that describe them. Text and driver are compiled apart, and the driver is the same for all programs with cells of one
// type. Both define this type, ``real``, before they include this header.
#pragma once
#include "call.hpp"

// The bytes of a vector: those of a register. GCC splits longer vectors, and keeps many of the pieces in memory.
#ifdef __AVX512F__
constexpr int VECTOR = 64;
#else
constexpr int VECTOR = 32;
#endif
constexpr int LANES = VECTOR / sizeof(real);
typedef real vec __attribute__((vector_size(VECTOR), may_alias));
typedef real unaligned_vec __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias));

// An array that a pass reads. ``reach`` is the largest distance of a read along each axis. With ``straight``, all reads
// are along one axis, none across a corner.
struct Input {
    int array, reach[AXES];
    bool straight;
};
// A plane that a pass reads: the index of its input, -1 - n for fixed array n, or OF_STEP - n for array n of the step
// (step_arrays.hpp); and its offset along the first axis.
struct Plane {
    int input, offset;
};
constexpr int OF_STEP = -1000;
// The address of cell (0, 0) of a plane, and the distance in cells between two rows of a call, negative if they go
// down.
struct Rows {
    real* p;
    long pitch;
};
struct Place {                 // where a pass is
    const real* s;             // the pass's scalars of this step; SCALARS + 1 further on, of the next step
    const real* const* table;  // functions of one coordinate, by index
    long i, planes = 0, rows = 1;  // row j of a call is row j * rows of plane i + j * planes; rows is 1, -1 or 0
};
typedef void Compute(const Place&, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1);
// Fills the ghost cells of rows j0 .. j1 - 1 (one cell per row beyond an end of the last axis). ``k`` is their distance
// from the boundary in cells. ``next`` are the cells next to the boundary of the fields that the condition reads.
typedef void Fill(const Place&, real* ghost, const real* mirror, long pitch, const Rows* next, long k, long j0, long j1,
                  long x0, long x1);

// A function that computes a pass in cells that lie in the layers of some axes, and outside the others. ``output`` are
// the indices of those outputs of the pass that it stores; the others are 0 there.
struct Variant {
    Compute* compute;
    int scalars, planes, outputs, at_once;
    const Plane* plane;
    const int* output;
};
struct Pass {
    int inputs, outputs, at_once;  // at_once: planes that the driver computes together, a multiple of each variant's
    const Input* input;
    const int* output;                  // an array of this step; ARRAYS + n is array n of the next step
    const Variant* variant[1 << AXES];  // by the axes in whose layers the cells lie, a set of bits
    const Variant& whole() const { return *variant[(1 << AXES) - 1]; }
};
// A side of an array. ``fill`` computes its ghost cells and is null if there are none. ``wall`` says that the boundary
// lies on a cell. ``next`` are the arrays that the condition reads.
struct Face {
    Fill* fill;
    int scalars;
    bool wall;
    int nexts;
    const int* next;
};
struct Array {
    bool deep;  // computed beyond the boundary too, instead of being continued there by a condition
    Face face[AXES][2];
};

// Nothing outside a library reads or replaces its own.
#pragma GCC visibility push(hidden)
extern const int PARAMETERS, CONSTANTS;
extern const int FIELDS, GIVEN;  // a step starts from the first GIVEN fields; the others are error estimates
extern const int ARRAYS, PASSES;
extern const bool FLAT;          // whether the grid has no second axis, so that planes are single rows
extern const bool JOINS_STEPS;   // whether one more pass joins the last pass of a step to the first of the next
extern const int AT_ONCE;        // the most planes that a pass computes together, at most MOST_AT_ONCE
extern const int PLANES;         // the most planes that a pass reads or writes
extern const int TABLES, FIXED;  // functions of one coordinate, and of several
extern const int REPLAYED;       // arrays that each step has of its own
extern const int SCALARS;
extern const long MAX_OFFSET[AXES];     // cells beyond its own at which a function reads coordinates
extern const double STATEMENTS;         // of a pass for a cell, on average
extern const int LAYERS, LAYER_TABLES;  // LAYERS: axes with absorbing layers, a set of bits
extern const long LAYER_REACH[AXES];    // how far right-hand sides read
extern const Pass passes[];
extern const Array arrays[];
extern const int ends[];      // the array that holds each field after the step
extern const int INJECTIONS;  // arrays of a step that `Injection` adds to
extern const int injected[];  // the number of an array among these, or -1
extern const int field_of[];  // the field of which an array is a value; -1 without
extern const int table_axis[];
extern const unsigned char layers_of[];  // the axes, a set of bits, outside whose layers an array is 0; 0 without
extern const int layer_table[];          // tables that are 0 outside the layers of their axis
// Computes the scalars of a step that begins at the time start + step * dt.
void prepare(const double* p, const double* c, double start, double step, double dt, real* s);
real fix(int number, const double* p, const double* c, const double* const* coordinates, const long* index);
real tabulate(int table, const double* p, const double* c, const double* const* coordinates, const long* index);
#pragma GCC visibility pop
constexpr int MOST_AT_ONCE = 4;
