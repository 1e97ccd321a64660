// The rows that each level computes in a sweep in place: tiles that are shifted from level to level, and long rows that
// are divided into chunks. This file is only arithmetic; README.md has a picture of the tiles.
#pragma once
#include "pipeline.hpp"

constexpr long L1_CELLS = (32 << 10) / sizeof(real);  // 32 KB, which fit the first-level cache

// The tiles, along the second axis, of one thread's part of a block.
struct SlantedTiles {
    const Pipeline& pipe;
    const long *from, *to;  // the part, by axis
    bool boundary[2][2];    // whether it ends at the boundary of the grid, by axis and side
    bool upward;            // the direction of the sweep
    const long* shift;      // of each level at a seam
    bool seam[2];           // whether it ends at one along the first axis, by side
    long row0, row1, count;

    // Tiles of about ``rows`` rows. A tile at a boundary has the rows that ghost cells mirror at every level. Elsewhere
    // the first tile of the sweep is wider at lower levels.
    void lay_out(long rows) {
        long reach = pipe.level[0].reach[1];
        row0 = from[1] + (boundary[1][0] ? reach : upward ? -reach : 0);
        row1 = to[1] - (boundary[1][1] ? reach : upward ? 0 : -reach);
        count = max(1, (row1 - row0) / rows);
    }

    // The cells lowest .. highest - 1 along axis a that a level computes.
    long lowest(int q, int a) const {
        return boundary[a][0] ? 0 : !a && seam[0] ? from[a] + shifted(q) : from[a] - pipe.level[q].reach[a];
    }
    long highest(int q, int a) const {
        return boundary[a][1] ? to[a] : !a && seam[1] ? to[a] + shifted(q) : to[a] + pipe.level[q].reach[a];
    }
    long shifted(int q) const { return upward ? shift[q] : -shift[q]; }

    // The first row of tile m at a level.
    long begin(int q, long m) const {
        long lo = lowest(q, 1), hi = highest(q, 1);
        if (m == 0) return lo;
        if (m == count) return hi;
        long row = row0 + (row1 - row0) * m / count, reach = pipe.level[q].reach[1];
        return max(lo, min(hi, upward ? row + reach : row - reach));
    }
};

// Chunks of rows, of a ``length`` for which all rows that a pass reads fit the first-level cache. Each row's chunk ends
// ``lower`` cells before that of the previous row. The reason is that a row overwrites an earlier row, whose next chunk
// still reads the cells beside its own. ``end`` is the end of the last row's chunks.
struct Chunks {
    long lower, end, count, length;

    // Divides ``rows`` rows of ``width`` cells. Rows that are whole planes (``flat``) get shorter chunks, because
    // prefetches are issued between chunks.
    void lay_out(const Pass& pass, long rows, long width, bool flat) {
        long rows_read = pass.outputs * pass.at_once, reach = 0;
        for (int n = 0; n < pass.inputs; n++) {
            const int* r = pass.input[n].reach;
            rows_read += pass.at_once * (1 + 2 * r[1]) + 2 * r[0], reach = max(reach, r[2]);
        }
        long fits = L1_CELLS / rows_read, longest = flat ? fits / 2 : width > fits ? fits * 3 / 4 : width;
        lower = width > longest ? round_up(reach, LANES) : 0, end = width + lower * (rows - 1);
        count = (end - 1) / longest + 1, length = round_up((end - 1) / count + 1, LANES);
    }
};
