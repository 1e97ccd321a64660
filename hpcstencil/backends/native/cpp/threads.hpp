// The threads of a call: their start, their barrier, and memory that grows as needed.
#pragma once
#include <sys/mman.h>

#include "edge_exchange.hpp"

// A buffer that grows and is never freed, so that later calls can reuse it.
struct Buffer {
    char* data = nullptr;
    size_t size = 0;
    void* reserve(size_t wanted) {
        if (wanted > size) {
            free(data);
            bool huge = wanted > (size_t(2) << 20);  // in pages of 2 MB: fewer page faults
            size = round_up(wanted, huge ? 1 << 21 : 1 << 16);
            data = (char*)aligned_alloc(huge ? 1 << 21 : 4096, size);
            if (!data) end_without_memory(size);
#if defined(MADV_HUGEPAGE)
            if (huge) madvise(data, size, MADV_HUGEPAGE);
#endif
        }
        return data;
    }
    void* reserve_zeroed(size_t wanted) {  // padding is computed with, so it must be finite
        size_t before = size;
        reserve(wanted);
        if (size != before) memset(data, 0, size);
        return data;
    }
};

// Waits until ``ready()``; other threads run meanwhile if that takes long.
template <class Ready>
static void wait_until(Ready ready) {
    for (long spins = 0; !ready(); spins++)
        if (spins > 2000) sched_yield();
}

// A barrier: threads wait for each other.
struct Barrier {
    long threads = 1, waiting = 0, generation = 0;

    // The last thread to arrive calls ``last`` before all threads continue.
    template <class Last>
    void wait(Last last) {
        long mine = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&waiting, 1, __ATOMIC_ACQ_REL) == threads) {
            waiting = 0;
            last();
            __atomic_store_n(&generation, mine + 1, __ATOMIC_RELEASE);
        } else
            wait_until([&] { return __atomic_load_n(&generation, __ATOMIC_ACQUIRE) != mine; });
    }
};

constexpr long MAX_THREADS = 256;

// Calls body(n) on up to ``wanted`` threads. Before that, calls ready(count) with the number of threads that could be
// started.
template <class Ready, class Body>
void start_threads(long wanted, Ready ready, Body body) {
    struct Helper {
        Body* body;
        long number;
        const long* begun;
        pthread_t thread;
    };
    Helper* helpers = new Helper[wanted];
    long count = 1, begun = 0;
    auto help = [](void* given) -> void* {
        Helper& helper = *(Helper*)given;
        while (!__atomic_load_n(helper.begun, __ATOMIC_ACQUIRE)) sched_yield();
        (*helper.body)(helper.number);
        return nullptr;
    };
    for (; count < wanted; count++) {
        helpers[count].body = &body, helpers[count].number = count, helpers[count].begun = &begun;
        if (pthread_create(&helpers[count].thread, nullptr, help, &helpers[count])) break;
    }
    ready(count);
    __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
    body(0);
    for (long n = 1; n < count; n++) pthread_join(helpers[n].thread, nullptr);
    delete[] helpers;
}
