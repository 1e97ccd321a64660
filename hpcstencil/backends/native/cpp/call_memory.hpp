// What calls leave to later ones.
#pragma once
#include "threads.hpp"

// Memory of each thread of a call, of tables, and of fields.
struct Kept {
    Memory thread[MOST_THREADS], tables, fields, fixtures, known;  // known: what the fixtures were made of
    size_t known_size = 0;
    Kept* next;
};
static Kept* kept = nullptr;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static Kept* borrow() {
    pthread_mutex_lock(&kept_lock);
    Kept* memory = kept;
    if (memory) kept = memory->next;
    pthread_mutex_unlock(&kept_lock);
    return memory ? memory : new Kept();
}

static void give_back(Kept* memory) {
    pthread_mutex_lock(&kept_lock);
    memory->next = kept, kept = memory;
    pthread_mutex_unlock(&kept_lock);
}
