// Memory that calls reuse. The list of free sets grows when more calls run at the same time than ever before.
#pragma once
#include "threads.hpp"

// The memory of one call: for each thread, for tables and fixed arrays, and for the second array of each field (steps
// in tiles).
struct CallMemory {
    Buffer thread[MAX_THREADS], tables, fields, fixed_arrays,
        made_of;  // made_of: the numbers from which the fixed arrays were computed
    size_t made_of_size = 0;
    CallMemory* next;
};
OWN inline CallMemory* free_list = nullptr;
OWN inline pthread_mutex_t free_list_lock = PTHREAD_MUTEX_INITIALIZER;

static CallMemory* borrow() {
    pthread_mutex_lock(&free_list_lock);
    CallMemory* memory = free_list;
    if (memory) free_list = memory->next;
    pthread_mutex_unlock(&free_list_lock);
    return memory ? memory : new CallMemory();
}

static void give_back(CallMemory* memory) {
    pthread_mutex_lock(&free_list_lock);
    memory->next = free_list, free_list = memory;
    pthread_mutex_unlock(&free_list_lock);
}
