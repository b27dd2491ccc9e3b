/* Counts the calls that touch files under some folders, and makes one of them fail, or kills the process there.

   cc -shared -fPIC -O1 -o shim.so shim.c -ldl;  LD_PRELOAD=./shim.so python …

   shim.py compiles it and arms it by ctypes. Disarmed it passes every call on. Only calls that go through the
   dynamic linker are seen: those of Python, numpy and torch are, those inside libc (fopen's reads) are not. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, ONCE, ALWAYS, KILL_BEFORE, KILL_AFTER, COUNT_CHANGES };

struct report {              /* in memory shared with the process that armed the shim */
    long calls;              /* seen so far */
    char where[1024];        /* the call that failed first, or was killed: its name and path */
};

static const char *roots[4]; /* folders, absolute; NULL ends them */
static long at;              /* the call to act on, from 1 */
static int mode, error_number;
static struct report *report; /* NULL: disarmed */

void shim_arm(const char *first, const char *second, long number, int how, int error, struct report *shared) {
    roots[0] = first, roots[1] = second;
    at = number, mode = how, error_number = error;
    report = shared;
}

static int is_watched(const char *path) {
    for (int i = 0; roots[i]; i++) {
        size_t length = strlen(roots[i]);
        if (!strncmp(path, roots[i], length) && (path[length] == 0 || path[length] == '/')) return 1;
    }
    return 0;
}

static void name_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, descriptor == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlink, link, path, 4000);
    path[length > 0 ? length : 0] = 0;
}

/* Before and after a call that only reads, the disk is the same: nobody is killed there, nor is it counted. */
static int changes_something(const char *call) {
    static const char *changing[] = {"open", "write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate64", "mkdir",
                                     "rmdir", "unlink", "unlinkat", "rename", "chmod", "copy_file_range", NULL};
    for (int i = 0; changing[i]; i++)
        if (!strcmp(call, changing[i])) return 1;
    return 0;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

/* What is to happen to this call: an errno to fail with, -1 to be killed after it, 0 nothing. */
static int fate(const char *call, int descriptor, const char *name) {
    if (!report) return 0;
    int before = errno; /* which readdir's caller looks at */
    char path[8192] = "";
    if (!name || name[0] != '/') name_of(descriptor, path);
    if (name && name[0] == '/') snprintf(path, sizeof path, "%s", name);
    else if (name) snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", name);
    errno = before;
    if (!is_watched(path) || (mode >= KILL_BEFORE && !changes_something(call))) return 0;
    long number = __atomic_add_fetch(&report->calls, 1, __ATOMIC_SEQ_CST);
    if (mode == COUNT || mode == COUNT_CHANGES || number < at || (number > at && mode != ALWAYS)) return 0;
    if (number == at) snprintf(report->where, sizeof report->where, "%s %.900s", call, path);
    if (mode == KILL_BEFORE) die();
    return mode == KILL_AFTER ? -1 : error_number;
}

#define WRAP(type, call, parameters, arguments, descriptor, name, failed)        \
    type call parameters {                                                       \
        static type (*real) parameters;                                          \
        if (!real) real = (type (*) parameters) dlsym(RTLD_NEXT, #call);         \
        int fated = fate(#call, descriptor, name);                               \
        if (fated > 0) { errno = fated; return failed; }                         \
        type result = real arguments;                                            \
        if (fated < 0) die();                                                    \
        return result;                                                           \
    }

#define WRAP_OPEN(call, parameters, descriptor)                                  \
    int call parameters {                                                        \
        static int (*real)(int, const char *, int, ...);                         \
        va_list more; va_start(more, flags); mode_t rights = va_arg(more, mode_t); va_end(more); \
        if (!real) real = (int (*)(int, const char *, int, ...)) dlsym(RTLD_NEXT, "openat64"); \
        int fated = fate("open", descriptor, path);                              \
        if (fated > 0) { errno = fated; return -1; }                             \
        int result = real(descriptor, path, flags, rights);                        \
        if (fated < 0) die();                                                    \
        return result;                                                           \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), AT_FDCWD)
WRAP_OPEN(open64, (const char *path, int flags, ...), AT_FDCWD)
WRAP_OPEN(openat, (int folder, const char *path, int flags, ...), folder)
WRAP_OPEN(openat64, (int folder, const char *path, int flags, ...), folder)

int close(int fd) { /* Linux closes it in any case */
    static int (*real)(int);
    if (!real) real = (int (*)(int)) dlsym(RTLD_NEXT, "close");
    int fated = fate("close", fd, NULL);
    int result = real(fd);
    if (fated < 0) die();
    if (fated > 0) { errno = fated; return -1; }
    return result;
}

WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), fd, NULL, -1)
WRAP(ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n), fd, NULL, -1)
WRAP(ssize_t, pread64, (int fd, void *to, size_t n, off_t o), (fd, to, n, o), fd, NULL, -1)
WRAP(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), fd, NULL, -1)
WRAP(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), fd, NULL, -1)
WRAP(ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t o), (fd, from, n, o), fd, NULL, -1)
WRAP(int, fsync, (int fd), (fd), fd, NULL, -1)
WRAP(int, fdatasync, (int fd), (fd), fd, NULL, -1)
WRAP(int, ftruncate64, (int fd, off_t n), (fd, n), fd, NULL, -1)
WRAP(off_t, lseek64, (int fd, off_t o, int from), (fd, o, from), fd, NULL, -1)
WRAP(int, flock, (int fd, int operation), (fd, operation), fd, NULL, -1)
WRAP(int, fstat64, (int fd, struct stat64 *s), (fd, s), fd, NULL, -1)
WRAP(DIR *, fdopendir, (int fd), (fd), fd, NULL, NULL)
WRAP(struct dirent64 *, readdir64, (DIR *folder), (folder), dirfd(folder), NULL, NULL)
WRAP(ssize_t, sendfile64, (int to, int from, off_t *o, size_t n), (to, from, o, n), from, NULL, -1)
WRAP(ssize_t, copy_file_range, (int from, off_t *f, int to, off_t *t, size_t n, unsigned flags),
     (from, f, to, t, n, flags), from, NULL, -1)
WRAP(void *, mmap64, (void *where, size_t n, int p, int flags, int fd, off_t o), (where, n, p, flags, fd, o),
     flags & MAP_ANONYMOUS ? -1 : fd, NULL, MAP_FAILED)
WRAP(DIR *, opendir, (const char *path), (path), AT_FDCWD, path, NULL)
WRAP(int, stat64, (const char *path, struct stat64 *s), (path, s), AT_FDCWD, path, -1)
WRAP(int, lstat64, (const char *path, struct stat64 *s), (path, s), AT_FDCWD, path, -1)
WRAP(int, fstatat64, (int folder, const char *path, struct stat64 *s, int flags), (folder, path, s, flags),
     folder, path, -1)
WRAP(int, access, (const char *path, int how), (path, how), AT_FDCWD, path, -1)
WRAP(int, mkdir, (const char *path, mode_t m), (path, m), AT_FDCWD, path, -1)
WRAP(int, rmdir, (const char *path), (path), AT_FDCWD, path, -1)
WRAP(int, unlink, (const char *path), (path), AT_FDCWD, path, -1)
WRAP(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, path, -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), AT_FDCWD, to, -1)
WRAP(int, chmod, (const char *path, mode_t m), (path, m), AT_FDCWD, path, -1)
WRAP(int, utimensat, (int folder, const char *path, const struct timespec t[2], int flags),
     (folder, path, t, flags), folder, path, -1)
