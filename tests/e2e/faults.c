/* Preloaded into a run: calls on files of a given name fail, and the wall clock jumps, as soon as flag files exist.
 *
 * FAULT_FLAG   the file that turns failures on        FAULT_NAME   part of the path whose calls fail
 * FAULT_CALLS  which calls, "write fsync truncate"    FAULT_ERROR  the error number
 * FAULT_SPARE  so many of these calls go well first   FAULT_RANK   only in this rank, if given
 * FAULT_TIMES  so many calls fail, then all is well again
 * CLOCK_JUMP   a file that holds seconds to be added to the wall clock
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int calls;

static int fails(int file, const char *call) {
    const char *flag = getenv("FAULT_FLAG"), *name = getenv("FAULT_NAME"), *which = getenv("FAULT_CALLS");
    const char *rank = getenv("FAULT_RANK"), *mine = getenv("OMPI_COMM_WORLD_RANK"), *spare = getenv("FAULT_SPARE");
    const char *times = getenv("FAULT_TIMES");
    char link[64], path[4096];
    if (!flag || !name || !which || !strstr(which, call) || (rank && mine && strcmp(rank, mine))) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    int there = length > 0 && access(flag, F_OK) == 0;
    errno = before;
    if (!there) return 0;
    path[length] = 0;
    int first = spare ? atoi(spare) : 0;
    if (!strstr(path, name) || calls++ < first || (times && calls > first + atoi(times))) return 0;
    errno = atoi(getenv("FAULT_ERROR"));
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    return fails(file, "write") ? -1 : REAL(write)(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return fails(file, "write") ? -1 : REAL(pwrite)(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return fails(file, "write") ? -1 : REAL(pwrite64)(file, data, size, at);
}
ssize_t writev(int file, const struct iovec *data, int count) {
    return fails(file, "write") ? -1 : REAL(writev)(file, data, count);
}
ssize_t pwritev(int file, const struct iovec *data, int count, off_t at) {
    return fails(file, "write") ? -1 : REAL(pwritev)(file, data, count, at);
}
ssize_t pwritev64(int file, const struct iovec *data, int count, off64_t at) {
    return fails(file, "write") ? -1 : REAL(pwritev64)(file, data, count, at);
}
int fsync(int file) { return fails(file, "fsync") ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(file, "fsync") ? -1 : REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { return fails(file, "truncate") ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return fails(file, "truncate") ? -1 : REAL(ftruncate64)(file, size); }

static long jump(void) {
    const char *name = getenv("CLOCK_JUMP");
    char text[32] = "0";
    int before = errno, file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        close(file);
    }
    errno = before;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return status;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec fine;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec, now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (now) *now = fine.tv_sec;
    return fine.tv_sec;
}
