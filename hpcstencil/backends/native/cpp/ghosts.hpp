// Ghost cells beyond the ends of a plane, for both drivers. The plane has ``n`` cells along the axis and ``w`` ghost
// cells at each end. ``beside(m)`` returns the rows, in the same plane, of the m-th field that the condition reads.
#pragma once
#include "blocking_plan.hpp"

// The index of a ghost cell, of the cell that it mirrors, and its distance k from the boundary in cells.
struct Mirrored {
    long ghost, mirror, k;
};

static inline Mirrored mirrored(const Face& face, int side, long n, long k) {
    if (side) return {n + k - 1, n - k + face.wall, face.wall ? k - 1 : k};
    return {-k, k - 1 + face.wall, k};
}

// Fills cells x0 .. x1 - 1 of the rows beyond an end of the second axis.
template <class Beside>
void fill_rows(const Face& face, int side, long n, long w, const Place& place, real* p, long pitch, long x0, long x1,
               const Beside& beside) {
    Rows next[FIELDS + 1];
    for (int m = 0; m < face.nexts; m++) next[m] = {beside(m).p + (side ? n - 1 : 0) * beside(m).pitch, 0};
    for (long k = 1; k <= w; k++) {
        Mirrored at = mirrored(face, side, n, k);
        face.fill(place, p, p + (at.mirror - at.ghost) * pitch, pitch, next, at.k, at.ghost, at.ghost + 1, x0, x1);
    }
}

// Fills the cells of rows j0 .. j1 - 1 beyond an end of the third axis.
template <class Beside>
void fill_cells(const Face& face, int side, long n, long w, const Place& place, real* p, long pitch, long j0, long j1,
                const Beside& beside) {
    Rows next[FIELDS + 1];
    for (int m = 0; m < face.nexts; m++) next[m] = {beside(m).p + (side ? n - 1 : 0), beside(m).pitch};
    for (long k = 1; k <= w; k++) {
        Mirrored at = mirrored(face, side, n, k);
        face.fill(place, p + at.ghost, p + at.mirror, pitch, next, at.k, j0, j1, 0, 1);
    }
}

// Fills the ghost cells of a periodic third axis, which may be shorter than the number of its ghost cells.
static inline INLINED void wrap_cells(long n, long w, real* p, long pitch, long j0, long j1) {
    for (long j = j0; j < j1; j++) {
        real* row = p + j * pitch;
        for (long k = 1; k <= w && w <= n; k++) row[-k] = row[n - k], row[n + k - 1] = row[k - 1];
        if (w <= n) continue;
        long near = n - 1, far = 0;
        for (long k = 1; k <= w; k++) {
            row[-k] = row[near], row[n + k - 1] = row[far];
            near = near ? near - 1 : n - 1, far = far + 1 < n ? far + 1 : 0;
        }
    }
}
