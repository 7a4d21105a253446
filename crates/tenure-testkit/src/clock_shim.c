/* The wall clock of one process, as a test wants it. Loaded with LD_PRELOAD.
 *
 * The file that TENURE_CLOCK names has two signed 64-bit numbers, which a test may change at any time: if the
 * first is not 0, it is the time (ns since 1970), and stands still; else the time is the machine's plus the second
 * (ns). Clocks that are not the wall clock are the machine's.
 *
 * Nothing here allocates or looks up a symbol: allocators ask for the time while they start, and an answer that
 * needs them would wait for itself. So the time comes from the system call, not from the function that this one
 * stands before. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

struct control {
    int64_t frozen_ns;
    int64_t offset_ns;
};

static const volatile struct control *control;

__attribute__((constructor)) static void open_control(void) {
    const char *path = getenv("TENURE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) control = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time) != 0) return -1;
    if (!control || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return 0;
    int64_t now = control->frozen_ns;
    if (now == 0) now = time->tv_sec * SECOND + time->tv_nsec + control->offset_ns;
    time->tv_sec = now / SECOND;
    time->tv_nsec = now % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
