// Copies of results to the snapshot buffers of the output file, made while the results are still in cache.
#pragma once
#include "copy.hpp"

// A chunk of a snapshot buffer: the address that cell (0, 0, 0) of the block would have in it, and its strides in
// bytes.
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

OWN inline SnapshotCopies* snapshot_copies = nullptr;

// Makes later calls copy their results to these buffers; null stops the copies.
ENTRY void set_snapshot_copies(SnapshotCopies* results) { snapshot_copies = results; }

// The buffers to which a call copies its results; null if there are none or a thread still reads them.
static SnapshotCopies* snapshot_target(const Call& call) {
    SnapshotCopies* given = call.records ? snapshot_copies : nullptr;
    return given && !__atomic_load_n(&given->lent, __ATOMIC_ACQUIRE) ? given : nullptr;
}
