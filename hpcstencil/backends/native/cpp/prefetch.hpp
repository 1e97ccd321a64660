// Blocks of cells to prefetch while others are computed. They are prefetched a few cache lines at a time, because a
// processor stalls if more loads are outstanding than it can track.
#pragma once
#include "pipeline.hpp"

struct Prefetch {
    struct Block {
        const char* from;
        long lines, rows, pitch;  // pitch: bytes
    };
    std::vector<Block> block;
    size_t at = 0;
    long done = 0, lines = 0, portion = 1;  // done: lines of the row that comes next

    // Prefetches the remaining cells, then removes all blocks.
    void clear() {
        while (at < block.size()) next_portion();
        block.clear(), at = 0, lines = 0;
    }
    void add(const real* from, long cells, long rows = 1, long pitch = 0) {
        add_bytes(from, cells * sizeof(real), rows, pitch * sizeof(real));
    }
    void add_bytes(const void* from, long bytes, long rows, long pitch) {
        if (bytes <= 0 || rows <= 0) return;
        if (pitch - bytes < VECTOR) bytes += (rows - 1) * pitch, rows = 1;  // nothing worth leaving out is between rows
        long more = round_up(bytes, VECTOR) / VECTOR;
        block.push_back({(const char*)from, more, rows, pitch}), lines += more * rows;
    }
    void divide(long portions) { portion = lines / max(1, portions) + 1; }
    void next_portion() {
        for (long left = portion; left && at < block.size();) {
            Block& next = block[at];
            long n = min(left, next.lines - done);
            for (long m = done; m < done + n; m++) __builtin_prefetch(next.from + m * VECTOR, 0, 2);
            left -= n, done += n;
            if (done < next.lines) continue;
            done = 0, next.from += next.pitch;
            if (!--next.rows) at++;
        }
    }
};
