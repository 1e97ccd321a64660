// Copies of results for the output file, made while the results are still in the cache.
#pragma once
#include "copy.hpp"

// A chunk of a snapshot buffer: the address that cell (0, 0, 0) of the block would have, and the bytes between planes
// and rows.
struct Piece {
    char* cell;
    int64_t plane, row;
};

struct SnapshotCopies {
    int64_t lent,
        stored;  // whether a thread still writes the last copies to the file; whether this call has made copies
    int64_t first[AXES], chunk[AXES],
        count[AXES];             // cells before the block in its first chunk, cells of a chunk, chunks
    const Piece* const* pieces;  // of each field; null for a field that is not written

    void put(int f, long i, long j, const real* from, long n) const {
        if (!pieces[f]) return;
        const Piece* piece = pieces[f] + ((first[0] + i) / chunk[0] * count[1] + (first[1] + j) / chunk[1]) * count[2];
        for (long k = 0, end; k < n; k = end, piece++) {
            end = min(n, k + chunk[2] - (first[2] + k) % chunk[2]);
            copy_out((real*)(piece->cell + i * piece->plane + j * piece->row) + k, from + k, end - k, true);
        }
    }
};

static SnapshotCopies* snapshot_copies = nullptr;

// Later calls copy their results there.
extern "C" void set_snapshot_copies(SnapshotCopies* results) { snapshot_copies = results; }

// The copies that a call makes now, if any.
static SnapshotCopies* snapshot_target() {
    return snapshot_copies && !__atomic_load_n(&snapshot_copies->lent, __ATOMIC_ACQUIRE) ? snapshot_copies : nullptr;
}
