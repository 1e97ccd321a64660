// The halo exchange between a block and its neighbours, inside the passes that compute.
//
// A block stores the edges of its results twice: in the array and in its edge memory, where its neighbours read them. A
// neighbour that cannot access this memory, for example on another host, receives it by messages in a mirror in its own
// process. No block waits for a whole exchange. A strip is published as soon as its last row is stored, and a neighbour
// waits for it only when it first reads one of its rows. Messages travel in between, while both blocks compute
// (README.md, "The exchange of edges").
#pragma once
#include <time.h>

#include "copy.hpp"

constexpr long PAGE = 4096;
constexpr double POLLING_INTERVAL = 5e-5;  // seconds between two checks for messages while a thread computes
constexpr int DIRECTIONS = 27, HERE = 13;  // offsets of -1, 0, 1 blocks per axis; the last axis varies fastest

static inline double seconds_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// The first error code that the MPI library has returned to any block of this process, or 0. After an error, no block
// waits any more.
OWN inline int64_t mpi_failure = 0;
static inline int64_t mpi_has_failed() { return __atomic_load_n(&mpi_failure, __ATOMIC_RELAXED); }

// Non-blocking messages to and from the neighbours whose memory is not accessible. mpi4py has created the persistent
// requests (edge_messages.py), one set per edge buffer; they are started and tested here. The two functions are
// MPI_Startall and MPI_Testall.
struct Messages {
    int (*start_all)(int count, char* requests);
    int (*test_all)(int count, char* requests, int* completed, char* statuses);
    char* statuses;                    // room for those of one call
    int64_t receives[DIRECTIONS];      // from each neighbour; 0 from those without messages
    char* receive[2][DIRECTIONS];      // requests by buffer and neighbour
    int64_t sends[AXES][2];            // by strip, to the neighbours that read it
    char* send[2][AXES][2];            // requests by buffer and strip
    int32_t receiving[2][DIRECTIONS], sending[2][AXES][2], lock;  // what has been started and has not completed

    bool acquire() { return !__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE); }
    void release() { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }
    void check(int code) {
        int64_t none = 0;  // the first code is the one reported
        if (code) __atomic_compare_exchange_n(&mpi_failure, &none, code, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    // Returns whether all requests have completed. The call also lets the library make progress with other requests.
    bool test(int64_t count, char* requests) {
        int completed = 1;
        if (count) check(test_all((int)count, requests, &completed, statuses));
        return completed || mpi_has_failed();
    }
    void start(int64_t count, char* requests) {
        if (count) check(start_all((int)count, requests));
    }
};

// The edges of one block. The edge memory begins with one epoch per strip, which counts how often the strip has been
// published. Two buffers of edges follow. They are used in turn, because neighbours may still read the edges of the
// previous sweep. For each decomposed axis, a buffer holds the strips of the lower and the upper side: the ``width``
// outermost cells of all fields.
struct EdgeExchange {
    char* own;                    // the edge memory of this block
    char* neighbour[DIRECTIONS];  // that of each neighbour, or its mirror; null where there is none
    int64_t cells[AXES][3];       // of the blocks below, here and above
    int64_t narrowest[AXES];      // cells of the narrowest block of the grid; the same for all blocks, as
    int64_t most_threads;         // the most threads of any process
    int64_t epoch;                // of the edges that the current sweep reads
    double waited;                // seconds, for neighbours, of an average thread
    Messages* messages;           // null if the memory of all neighbours is visible
    int64_t threads;              // of the current call
    int64_t missing[AXES][2];     // cells of each strip that the current sweep has still to store
    int32_t writable[AXES][2];    // whether nobody reads the strip's old contents any more

    static int direction(const int* d) { return (d[0] + 1) * 9 + (d[1] + 1) * 3 + d[2] + 1; }
    static void offset(int direction, int* d) {
        d[0] = direction / 9 - 1, d[1] = direction / 3 % 3 - 1, d[2] = direction % 3 - 1;
    }
    // The axis of the strip from which a neighbour's cells are read; strips of later axes contain its corners too.
    static int strip_axis(const int* d) { return d[0] ? 0 : d[1] ? 1 : 2; }
    static int64_t* published(char* memory, int a, int side) { return (int64_t*)memory + 2 * a + side; }

    // Cells of a strip of the block at offset d.
    long strip_cells(const int64_t* width, const int* d, int a) const {
        long strip = GIVEN * width[a];
        for (int b = 0; b < AXES; b++) strip *= b == a ? 1 : cells[b][1 + d[b]];
        return strip;
    }

    // A cell of a strip in the edge ``memory`` of the block at offset d; ``index`` counts from the strip's first cell.
    real* edge(char* memory, const int64_t* width, const int* d, long buffer, int a, int side, int f,
               const long* index) const {
        long start = 0, whole = 0, size[AXES];
        for (int b = 0; b < AXES; b++) {
            long strip = strip_cells(width, d, b);
            whole += 2 * strip;
            if (b < a) start += 2 * strip;
            if (b == a) start += side * strip + f * (strip / GIVEN);
            size[b] = b == a ? width[b] : cells[b][1 + d[b]];
        }
        return (real*)(memory + PAGE) + buffer * whole + start + (index[0] * size[1] + index[1]) * size[2] + index[2];
    }

    // ---- a call ----

    // Called before the first edges of a call are stored.
    void begin(const Call& call, long threads_) {
        threads = threads_;
        expect(call);
        if (messages) receive_next();
    }
    // Called between two sweeps, when all threads have stored their edges: from now on, these edges are read.
    void turn(const Call& call, bool stores_edges) {
        epoch++;
        expect(call);
        if (messages && stores_edges) receive_next();
    }
    // Called after the last sweep. It leaves no message in transit, because the MPI library would make no progress.
    void end(const Call& call) {
        for (int n = 0; n < DIRECTIONS; n++)
            if (neighbour[n]) await(n);
        for (int a = 0; a < AXES && messages; a++)
            for (int side = 0; call.width[a] && side < 2; side++)
                for (int buffer = 0; buffer < 2; buffer++) await_sent(buffer, a, side);
    }
    void expect(const Call& call) {
        const int here[AXES] = {0, 0, 0};
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2; side++)
                missing[a][side] = strip_cells(call.width, here, a), writable[a][side] = 0;
    }
    void receive_next() {
        long buffer = (epoch + 1) % 2;
        while (!messages->acquire()) sched_yield();
        for (int n = 0; n < DIRECTIONS; n++) {
            messages->start(messages->receives[n], messages->receive[buffer][n]);
            messages->receiving[buffer][n] = messages->receives[n] > 0;
        }
        messages->release();
    }

    // ---- storing ----

    // The cells of each strip that a thread has stored, until it reports them (`stored`).
    struct Stored {
        long cells[AXES][2] = {};
    };

    // Stores cells x0 .. x1 - 1 of a row of this block to the strips that contain them. Long rows bypass the caches;
    // otherwise the cache lines would first have to be fetched back from the neighbour's cache.
    void put(const Call& call, Stored& done, int f, long i, long j, const real* row, long x0, long x1,
             bool non_temporal) {
        const int here[AXES] = {0, 0, 0};
        const long at[AXES] = {i, j, 0};
        for (int a = 0; a < AXES; a++)
            for (int side = 0; call.width[a] && side < 2; side++) {
                long first = side ? cells[a][1] - call.width[a] : 0, from = x0, to = x1;
                if (a == 2) from = max(from, first), to = min(to, first + call.width[a]);
                else if (at[a] < first || at[a] >= first + call.width[a]) continue;
                if (from >= to) continue;
                if (!__atomic_load_n(&writable[a][side], __ATOMIC_ACQUIRE)) await_readers(a, side);
                long index[AXES] = {i, j, from};
                index[a] -= first;
                copy_out(edge(own, call.width, here, (epoch + 1) % 2, a, side, f, index), row + from, to - from,
                         non_temporal);
                done.cells[a][side] += to - from;
            }
    }

    // Reports the cells that a thread has stored. The thread that completes a strip publishes it.
    void stored(Stored& done) {
        bool any = false;
        for (int a = 0; a < AXES; a++) any = any || done.cells[a][0] || done.cells[a][1];
        if (!any) return;
        __sync_synchronize();  // orders non-temporal stores too
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2; side++) {
                long more = done.cells[a][side];
                if (more && !__atomic_sub_fetch(&missing[a][side], more, __ATOMIC_ACQ_REL)) publish(a, side);
                done.cells[a][side] = 0;
            }
    }
    void publish(int a, int side) {
        if (mpi_has_failed()) return;  // the edges depend on some that have not arrived
        __atomic_store_n(published(own, a, side), epoch + 1, __ATOMIC_RELEASE);
        if (!messages || !messages->sends[a][side]) return;
        long buffer = (epoch + 1) % 2;
        while (!messages->acquire()) sched_yield();
        messages->start(messages->sends[a][side], messages->send[buffer][a][side]);
        __atomic_store_n(&messages->sending[buffer][a][side], 1, __ATOMIC_RELEASE);
        messages->release();
    }

    // Waits until no neighbour reads the edges that the next ones of a strip will overwrite. A neighbour has read
    // them if it has published its own edges that depend on them: levels read ghost cells before they compute the
    // cells beside them.
    void await_readers(int a, int side) {
        for (int n = 0; n < DIRECTIONS; n++) {
            int d[AXES];
            offset(n, d);
            if (neighbour[n] && n != HERE && strip_axis(d) == a && (d[a] > 0) == side) await(n);
        }
        if (messages) await_sent((epoch + 1) % 2, a, side);
        __atomic_store_n(&writable[a][side], 1, __ATOMIC_RELEASE);
    }

    // ---- reading ----

    // The address of the cell (f, at), which lies in the block at offset d. Waits until the cell is available.
    const real* cell(const Call& call, const int* d, int f, const long* at) {
        long index[AXES];
        int a = strip_axis(d), n = direction(d);
        await(n);
        for (int b = 0; b < AXES; b++) index[b] = at[b] + (d[b] < 0 ? cells[b][0] : d[b] > 0 ? -cells[b][1] : 0);
        if (d[a] < 0) index[a] -= cells[a][0] - call.width[a];
        return edge(neighbour[n], call.width, d, epoch % 2, a, d[a] < 0, f, index);
    }

    // Waits for the edges of a neighbour that the current sweep reads.
    void await(int n) {
        int d[AXES];
        offset(n, d);
        int a = strip_axis(d);
        const int64_t* theirs = published(neighbour[n], a, d[a] < 0);
        if (__atomic_load_n(theirs, __ATOMIC_ACQUIRE) >= epoch) return;
        wait_until([&] { return __atomic_load_n(theirs, __ATOMIC_ACQUIRE) >= epoch; });
    }
    void await_sent(int buffer, int a, int side) {
        const int32_t* sending = &messages->sending[buffer][a][side];
        if (!__atomic_load_n(sending, __ATOMIC_ACQUIRE)) return;
        wait_until([&] { return !__atomic_load_n(sending, __ATOMIC_ACQUIRE); });
    }
    template <class Arrived>
    void wait_until(Arrived arrived) {
        double start = seconds_now();
        for (long spins = 0; !arrived() && !mpi_has_failed(); spins++) {
            progress();
            if (spins > 2000 || messages) sched_yield();
        }
        double mine = (seconds_now() - start) / double(max(1, threads)), before, after;
        __atomic_load(&waited, &before, __ATOMIC_RELAXED);
        do after = before + mine;
        while (!__atomic_compare_exchange(&waited, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }

    // Calls `progress` from time to time. ``polled`` is the time at which this thread called it last.
    void poll(double& polled) {
        if (!messages) return;
        double now = seconds_now();
        if (now - polled < POLLING_INTERVAL) return;
        polled = now;
        progress();
    }
    // Lets messages make progress and records those that have arrived, unless another thread is doing so.
    void progress() {
        if (!messages || !messages->acquire()) return;
        for (int64_t arriving = epoch; arriving <= epoch + 1; arriving++) {  // in this order, see `await`
            int64_t buffer = arriving % 2;
            for (int n = 0; n < DIRECTIONS; n++) {
                bool earlier = arriving > epoch && messages->receiving[epoch % 2][n];
                if (earlier || !messages->receiving[buffer][n]) continue;
                if (!messages->test(messages->receives[n], messages->receive[buffer][n])) continue;
                messages->receiving[buffer][n] = 0;
                int d[AXES];
                offset(n, d);
                int a = strip_axis(d);
                __atomic_store_n(published(neighbour[n], a, d[a] < 0), arriving, __ATOMIC_RELEASE);
            }
            for (int a = 0; a < AXES; a++)
                for (int side = 0; side < 2; side++) {
                    int32_t& sending = messages->sending[buffer][a][side];
                    if (sending && messages->test(messages->sends[a][side], messages->send[buffer][a][side]))
                        __atomic_store_n(&sending, 0, __ATOMIC_RELEASE);
                }
        }
        messages->release();
    }
};
