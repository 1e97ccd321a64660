// Memory that a call leaves to later calls: a list of free sets, one for each call that ran at the same time.
#pragma once
#include "threads.hpp"

// The memory of one call: of each thread, of tables, and the second array of each field (tiles).
struct CallMemory {
    Buffer thread[MAX_THREADS], tables, fields, fixed_arrays,
        made_of;  // made_of: the numbers from which the fixed arrays were computed
    size_t made_of_size = 0;
    CallMemory* next;
};
static CallMemory* free_list = nullptr;
static pthread_mutex_t free_list_lock = PTHREAD_MUTEX_INITIALIZER;

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
