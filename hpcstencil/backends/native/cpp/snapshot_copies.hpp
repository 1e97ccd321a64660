// Results that are stored twice: where they belong, and in memory that a thread writes to a file.
#pragma once
#include "copy.hpp"

// A piece of that memory: where cell (0, 0, 0) of the block would be if it were there, and bytes from plane to plane and row to row.
struct Piece { char* cell; int64_t plane, row; };

struct Twice {
    int64_t lent, stored;  // whether the thread still reads those before, and whether they are there
    int64_t first[AXES], chunk[AXES], count[AXES];  // cells before the block in its first chunk, cells of a chunk, chunks
    const Piece* const* pieces;  // of each field; null for one that is not written

    void put(int f, long i, long j, const real* from, long n) const {
        if (!pieces[f]) return;
        const Piece* piece = pieces[f] + ((first[0] + i) / chunk[0] * count[1] + (first[1] + j) / chunk[1]) * count[2];
        for (long k = 0, end; k < n; k = end, piece++) {
            end = least(n, k + chunk[2] - (first[2] + k) % chunk[2]);
            copy_out((real*)(piece->cell + i * piece->plane + j * piece->row) + k, from + k, end - k, true);
        }
    }
};

static Twice* twice = nullptr;

// Calls from now on are to store their results there, too.
extern "C" void store_twice(Twice* results) { twice = results; }

// Where a call that is about to store its results stores them besides, if it does.
static Twice* besides() { return twice && !__atomic_load_n(&twice->lent, __ATOMIC_ACQUIRE) ? twice : nullptr; }
