/* Makes system calls fail: loaded with LD_PRELOAD, controlled by the rules in the file that TPUX_TEST_FAULTS names.
 *
 * preload.py writes the rules into the file, which all processes map; so they are changed at any time, and a rule's
 * count is shared by all processes. The layout of `struct rule` is repeated there. After the rules the file has what the
 * clocks of all processes show in place of the truth.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, RENAME = 16, UNLINK = 32, STAT = 64, MKDIR = 128, LOCK = 256,
       TRUNCATE = 512, FORK = 1024, THREAD = 2048, LIST = 4096, PEEK = 1 << 30 /* do not count it */ };

struct rule {
    int32_t active;    /* 0: the rule is not used */
    int32_t error;     /* the errno; 0: the call succeeds without any effect */
    int32_t calls;     /* a set of the constants above */
    int32_t left;      /* how many more calls fail; below 0: all */
    int32_t hits;      /* how many have failed */
    char process[108]; /* a pattern for the command line, its arguments separated by blanks */
    char path[384];    /* a pattern for the path; not used for FORK and THREAD */
};
enum { RULES = 16 };

struct clocks {
    int64_t forward;   /* seconds by which the wall clock was set forward, below 0: back */
    int64_t suspended; /* seconds that the machine has slept: all clocks but CLOCK_MONOTONIC have gone on */
    int64_t frozen;    /* if not 0: what the wall clock shows, in seconds since the epoch; it stands still */
};

static struct rule *rules;
static struct clocks *clocks;
static char command_line[4096];

__attribute__((constructor)) static void load(void) {
    const char *name = getenv("TPUX_TEST_FAULTS");
    int fd = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0) : -1;
    if (fd < 0)
        return;
    size_t size = RULES * sizeof(struct rule) + sizeof(struct clocks);
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    long length = fd < 0 ? 0 : syscall(SYS_read, fd, command_line, sizeof command_line - 1);
    for (long i = 0; i + 1 < length; i++)
        if (!command_line[i])
            command_line[i] = ' ';
    if (fd >= 0)
        syscall(SYS_close, fd);
    if (map == MAP_FAILED)
        return;
    rules = map;
    clocks = (struct clocks *)(rules + RULES);
}

/* Return 0 if the call is to be made; -1 with errno set if it fails, 1 if it is to succeed without any effect. */
static int fault(int call, int fd, const char *path) {
    char found[PATH_MAX] = "";
    int before = errno, peek = call & PEEK;
    call &= ~PEEK;
    for (int i = 0; rules && i < RULES; i++) {
        struct rule *rule = &rules[i];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !(rule->calls & call))
            continue;
        if (!(call & (FORK | THREAD))) {
            if (!found[0]) { /* relative paths are those of the working directory, whatever directory fd is */
                char link[64];
                snprintf(link, sizeof link, path ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
                long n = path && path[0] == '/' ? 0 : syscall(SYS_readlinkat, AT_FDCWD, link, found, sizeof found - 1);
                size_t used = n > 0 ? (size_t)n : 0;
                found[used] = 0;
                if (path)
                    snprintf(found + used, sizeof found - used, used ? "/%s" : "%s", path);
            }
            if (fnmatch(rule->path, found, 0))
                continue;
        }
        if (fnmatch(rule->process, command_line, 0))
            continue;
        int32_t left = __atomic_load_n(&rule->left, __ATOMIC_RELAXED);
        while (left > 0 && !peek && !__atomic_compare_exchange_n(&rule->left, &left, left - 1, 0, __ATOMIC_SEQ_CST,
                                                        __ATOMIC_SEQ_CST))
            ;
        if (left == 0)
            continue;
        __atomic_add_fetch(&rule->hits, !peek, __ATOMIC_SEQ_CST);
        errno = rule->error ? rule->error : before;
        return rule->error ? -1 : 1;
    }
    errno = before;
    return 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(call, fd, path, value)           \
    do {                                      \
        int result_ = fault(call, fd, path);  \
        if (result_)                          \
            return result_ < 0 ? -1 : (value); \
    } while (0)

#define MODE(flags)                              \
    mode_t mode = 0;                             \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {     \
        va_list args;                            \
        va_start(args, flags);                   \
        mode = va_arg(args, mode_t);             \
        va_end(args);                            \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    FAIL(OPEN, -1, path, -1);
    return NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    FAIL(OPEN, -1, path, -1);
    return NEXT(open64)(path, flags, mode);
}
int openat(int fd, const char *path, int flags, ...) {
    MODE(flags)
    FAIL(OPEN, -1, path, -1);
    return NEXT(openat)(fd, path, flags, mode);
}
int openat64(int fd, const char *path, int flags, ...) {
    MODE(flags)
    FAIL(OPEN, -1, path, -1);
    return NEXT(openat64)(fd, path, flags, mode);
}

ssize_t read(int fd, void *to, size_t n) { FAIL(READ, fd, NULL, 0); return NEXT(read)(fd, to, n); }
ssize_t pread64(int fd, void *to, size_t n, off64_t at) { FAIL(READ, fd, NULL, 0); return NEXT(pread64)(fd, to, n, at); }
ssize_t write(int fd, const void *from, size_t n) { FAIL(WRITE, fd, NULL, (ssize_t)n); return NEXT(write)(fd, from, n); }
ssize_t writev(int fd, const struct iovec *parts, int n) { FAIL(WRITE, fd, NULL, 0); return NEXT(writev)(fd, parts, n); }
int fsync(int fd) { FAIL(SYNC, fd, NULL, 0); return NEXT(fsync)(fd); }
int fdatasync(int fd) { FAIL(SYNC, fd, NULL, 0); return NEXT(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { FAIL(TRUNCATE, fd, NULL, 0); return NEXT(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { FAIL(TRUNCATE, fd, NULL, 0); return NEXT(ftruncate64)(fd, n); }
int flock(int fd, int how) { FAIL(LOCK, fd, NULL, 0); return NEXT(flock)(fd, how); }
int lockf(int fd, int how, off_t n) { FAIL(LOCK, fd, NULL, 0); return NEXT(lockf)(fd, how, n); }

/* A pattern is compared with the new path of a file that is moved. */
int rename(const char *from, const char *to) { FAIL(RENAME, -1, to, 0); return NEXT(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    FAIL(RENAME, -1, to, 0);
    return NEXT(renameat)(a, from, b, to);
}
int link(const char *from, const char *to) { FAIL(RENAME, -1, to, 0); return NEXT(link)(from, to); }
int unlink(const char *path) { FAIL(UNLINK, -1, path, 0); return NEXT(unlink)(path); }
int unlinkat(int fd, const char *path, int flags) { FAIL(UNLINK, -1, path, 0); return NEXT(unlinkat)(fd, path, flags); }
int rmdir(const char *path) { FAIL(UNLINK, -1, path, 0); return NEXT(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { FAIL(MKDIR, -1, path, 0); return NEXT(mkdir)(path, mode); }
int mkdirat(int fd, const char *path, mode_t mode) { FAIL(MKDIR, -1, path, 0); return NEXT(mkdirat)(fd, path, mode); }

int stat(const char *path, struct stat *to) { FAIL(STAT, -1, path, -1); return NEXT(stat)(path, to); }
int stat64(const char *path, struct stat64 *to) { FAIL(STAT, -1, path, -1); return NEXT(stat64)(path, to); }
int lstat64(const char *path, struct stat64 *to) { FAIL(STAT, -1, path, -1); return NEXT(lstat64)(path, to); }
int fstat64(int fd, struct stat64 *to) { FAIL(STAT, fd, NULL, -1); return NEXT(fstat64)(fd, to); }
int fstatat64(int fd, const char *path, struct stat64 *to, int flags) {
    FAIL(STAT, -1, path, -1);
    return NEXT(fstatat64)(fd, path, to, flags);
}
DIR *opendir(const char *path) { return fault(LIST, -1, path) ? NULL : NEXT(opendir)(path); }

pid_t fork(void) { FAIL(FORK, -1, NULL, -1); return NEXT(fork)(); }
/* The caller of a vfork shares its stack with the child, so it cannot be called from here: fork serves as well. Python
 * calls fork if vfork fails; both are one call of a rule. */
pid_t vfork(void) { FAIL(FORK | PEEK, -1, NULL, -1); return NEXT(fork)(); }
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                char *const argv[], char *const envp[]) {
    return fault(FORK, -1, NULL) ? errno : NEXT(posix_spawn)(pid, path, actions, attr, argv, envp);
}
int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                 char *const argv[], char *const envp[]) {
    return fault(FORK, -1, NULL) ? errno : NEXT(posix_spawnp)(pid, file, actions, attr, argv, envp);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
    return fault(THREAD, -1, NULL) ? errno : NEXT(pthread_create)(thread, attr, start, arg);
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    int result = NEXT(clock_gettime)(clock, to);
    if (result || !clocks)
        return result;
    if (clock == CLOCK_REALTIME && clocks->frozen)
        to->tv_sec = clocks->frozen, to->tv_nsec = 0;
    else if (clock == CLOCK_REALTIME)
        to->tv_sec += clocks->forward + clocks->suspended;
    else if (clock == CLOCK_BOOTTIME)
        to->tv_sec += clocks->suspended;
    return 0;
}
