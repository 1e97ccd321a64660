// Steps that are chosen while a call runs, because their size depends on the solution. Python chooses them
// (native/chosen_steps.py), from what the call has recorded of the state, or from the estimated error of an attempt.
#pragma once
#include <utility>

#include "error_sums.hpp"
#include "field_records.hpp"

// What comes after some steps, a set of bits: whether the call goes on, and whether it does so from the state before
// these steps, because they were rejected.
enum Choice : int64_t { END = 0, GO_ON = 1, BACK = 2 };

// Chooses what comes next, and fills the clock of the next steps, as in `Call`. ``error_sums`` are those of the steps.
typedef int64_t (*ChooseSteps)(double* clock, const int64_t* error_sums);
OWN inline ChooseSteps choose_steps = nullptr;

// Makes later calls go on with chosen steps; null: they take the steps of their clock only.
ENTRY void set_choose_steps(ChooseSteps choose) { choose_steps = choose; }

// Takes the steps of a call, and then those that are chosen. ``take_steps`` takes those of a clock, and returns an
// error code, or 0. Steps read one of two arrays of a field and store in the other, so the call's fields are
// overwritten.
template <class TakeSteps>
static int64_t and_chosen_steps(const Call& call, TakeSteps take_steps) {
    int64_t failed = take_steps(call);
    if (!choose_steps || !call.records || failed) return failed;
    List<void*> from(FIELDS), to(FIELDS);
    for (int f = 0; f < FIELDS; f++) from[f] = const_cast<void*>(call.fields[f]), to[f] = call.results[f];
    double clock[4];
    Call next = call;
    next.clock = clock;
    while (!failed) {
        const int64_t choice = choose_steps(clock, call.error_sums);
        if (!(choice & BACK)) std::swap(from.cells, to.cells);
        if (!(choice & GO_ON)) break;
        if (call.error_sums) memset(call.error_sums, 0, ERRORS * sizeof(ErrorSum));
        next.fields = from.data(), next.results = to.data();
        failed = take_steps(next);
    }
    for (int f = 0; f < FIELDS; f++)
        if (from[f] != call.results[f]) copy((real*)call.results[f], (const real*)from[f], cells_of(call));
    return failed;
}
