/* A wall clock that a test can set, for one process: preloaded, it adds the seconds that a file holds to whatever the
 * C library says of the time of day. The monotonic clock is left alone, as it is when somebody sets a machine's clock.
 * Waits until a time of day are moved back to the kernel's clock, which knows nothing of this.
 *
 * Built with -DOFFSET_FILE="path": 8 bytes, a native signed integer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* No machine has been up for so long: a later time is one of the day. */
#define LONGEST_UPTIME_SECONDS 1000000000L

static volatile int64_t *offset_of_file;

__attribute__((constructor)) static void map_offset(void) {
    int file = open(OFFSET_FILE, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset_of_file = mapped;
    if (file >= 0) close(file);
}

static int64_t offset(void) { return offset_of_file ? *offset_of_file : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

static struct timespec kernels(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > LONGEST_UPTIME_SECONDS) moved.tv_sec -= offset();
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = kernels(until);
    return real(condition, mutex, &moved);
}

int pthread_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    struct timespec moved = kernels(until);
    return real(condition, mutex, clock, &moved);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = kernels(until);
    return real(semaphore, &moved);
}

long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    struct timespec moved;
    if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME) && d) {
        moved = kernels((const struct timespec *)d);
        d = (long)&moved;
    }
    return real(number, a, b, c, d, e, f);
}
