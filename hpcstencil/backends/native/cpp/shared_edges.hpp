// Edges of blocks in memory that the processes of a host share, in place of messages.
#pragma once
#include <time.h>

#include "copy.hpp"

constexpr long PAGE = 4096;

// Each process has a page with its epoch, followed by its edges: along each axis that is cut, the lower and the upper
// ``width`` cells of all fields. There are two buffers of them, since neighbours may still read the edges of the
// previous sweep.
struct SharedEdges {
    char* base;
    int64_t bytes;                                      // of each process
    int64_t epoch;                                      // how often this process has published its edges
    int64_t blocks[AXES], place[AXES], cells[AXES][3];  // cells of the blocks below, here and above
    double waited;                                      // seconds, for neighbours

    int64_t* epoch_of(const int* d) const { return (int64_t*)(base + rank(d) * bytes); }

    // The rank of the block at the offset d, in blocks.
    long rank(const int* d) const {
        long number = 0;
        for (int a = 0; a < AXES; a++) number = number * blocks[a] + modulo(place[a] + d[a], blocks[a]);
        return number;
    }

    // A cell of an edge; ``index`` counts from the edge's first cell.
    real* edge(const int64_t* width, const int* d, long edge_buffer, int a, int side, int f, const long* index) const {
        long start = 0, whole = 0, size[AXES];
        for (int b = 0; b < AXES; b++) {
            long strip = FIELDS * width[b];
            for (int c = 0; c < AXES; c++) strip *= c == b ? 1 : cells[c][1 + d[c]];
            whole += 2 * strip;
            if (b < a) start += 2 * strip;
            if (b == a) start += side * strip + f * (strip / FIELDS);
            size[b] = b == a ? width[b] : cells[b][1 + d[b]];
        }
        return (real*)(base + rank(d) * bytes + PAGE) + edge_buffer * whole + start
               + (index[0] * size[1] + index[1]) * size[2] + index[2];
    }

    // Copies cells x0 .. x1 - 1 of a row of this block to the edges that contain them. Long ones bypass the caches,
    // since the neighbour's cache would first have to give up the lines that it has read there.
    void put(const int64_t* width, long edge_buffer, int f, long i, long j, const real* row, long x0, long x1,
             bool non_temporal) const {
        const int here[AXES] = {0, 0, 0};
        const long at[AXES] = {i, j, 0};
        for (int a = 0; a < AXES; a++)
            for (int side = 0; width[a] && side < 2; side++) {
                long first = side ? cells[a][1] - width[a] : 0, from = x0, to = x1;
                if (a == 2) from = max(from, first), to = min(to, first + width[a]);
                else if (at[a] < first || at[a] >= first + width[a]) continue;
                long index[AXES] = {i, j, from};
                index[a] -= first;
                if (from < to)
                    copy_out(edge(width, here, edge_buffer, a, side, f, index), row + from, to - from, non_temporal);
            }
    }

    // The cell (f, at), which lies in the block at offset d: -1, 0 or 1 per axis.
    const real* cell(const int64_t* width, const int* d, int f, const long* at) const {
        long index[AXES];
        int a = 0;
        while (!d[a]) a++;
        for (int b = 0; b < AXES; b++) index[b] = at[b] + (d[b] < 0 ? cells[b][0] : d[b] > 0 ? -cells[b][1] : 0);
        if (d[a] < 0) index[a] -= cells[a][0] - width[a];
        return edge(width, d, epoch % 2, a, d[a] < 0, f, index);
    }

    // Publishes the edges that were put, and waits until all neighbours have published theirs.
    void publish_edges(const Call& call) {
        const int here[AXES] = {0, 0, 0};
        timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        __atomic_store_n(epoch_of(here), ++epoch, __ATOMIC_RELEASE);
        for (int n = 0; n < 27; n++) {
            const int d[AXES] = {n / 9 - 1, n / 3 % 3 - 1, n % 3 - 1};
            bool neighbour = n != 13;
            for (int a = 0; a < AXES; a++)
                neighbour = neighbour && (!d[a] || (call.width[a] && !call.boundary[a][d[a] > 0]));
            for (long spins = 0; neighbour && __atomic_load_n(epoch_of(d), __ATOMIC_ACQUIRE) < epoch; spins++)
                if (spins > 2000) sched_yield();
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        waited += double(end.tv_sec - start.tv_sec) + 1e-9 * double(end.tv_nsec - start.tv_nsec);
    }
};
