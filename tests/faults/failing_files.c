/* failing_files.c: a library to be preloaded: file operations of a program fail (failing.h says
 * which).
 *
 * SOFTRNN_FAIL_WITH=EIO: any one call fails. =ENOSPC: the disk is full from one call on, and only
 * calls that need disk space are counted. A failed write has written half of its bytes; operations
 * on pipes, terminals and files of libraries work. */
#include "failing.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static bool full; /* ENOSPC */

/* Only the program itself, which has no name in the list. */
static int choose(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size, (void)context;
    if (!*info->dlpi_name)
        add_range(info);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("SOFTRNN_FAIL_WITH");
    full = text && strcmp(text, "ENOSPC") == 0;
    failing_begin(choose);
}

__attribute__((destructor)) static void end(void) {
    failing_end();
}

/* ---- which calls fail */

typedef enum { NEEDS_ROOM, NEEDS_NONE } needs;

static bool fails(const char *name, needs need, const void *caller) {
    if (!shared || !in_ranges(caller) || (full && need == NEEDS_NONE))
        return false;
    const long number = failing_count();
    if (fail_at == 0 || (full ? number < fail_at : number != fail_at))
        return false;
    if (number == fail_at)
        atomic_store(&shared->failed, name);
    errno = full ? ENOSPC : EIO;
    return true;
}

/* A file or folder on disk, not a virtual file of the kernel. */
static bool is_stored(int descriptor) {
    struct stat facts;
    struct statfs system;
    return descriptor > STDERR_FILENO && fstat(descriptor, &facts) == 0 &&
           (S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode)) &&
           fstatfs(descriptor, &system) == 0 && system.f_type != PROC_SUPER_MAGIC &&
           system.f_type != SYSFS_MAGIC;
}

static bool is_path(const char *path) {
    return strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0;
}

#define FAILS(name, need)          fails(name, need, __builtin_return_address(0))
#define FAILS_ON(file, name, need) (is_stored(file) && FAILS(name, need))
#define FAILS_AT(path, name, need) (is_path(path) && FAILS(name, need))

/* ---- the calls */

/* The third argument, which exists if a file may be created. */
#define MODE(mode, flags)            \
    mode_t mode = 0;                 \
    if ((flags)&O_CREAT) {           \
        va_list list;                \
        va_start(list, flags);       \
        mode = va_arg(list, mode_t); \
        va_end(list);                \
    }

int open(const char *path, int flags, ...) {
    MODE(mode, flags)
    if (FAILS_AT(path, "open", flags & O_CREAT ? NEEDS_ROOM : NEEDS_NONE))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(mode, flags)
    if (FAILS_AT(path, "openat", flags & O_CREAT ? NEEDS_ROOM : NEEDS_NONE))
        return -1;
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

/* It is closed nevertheless, as on Linux. */
int close(int file) {
    const bool failing = FAILS_ON(file, "close", NEEDS_ROOM);
    const int error = errno;
    const int result = (int)syscall(SYS_close, file);
    if (failing)
        errno = error;
    return failing ? -1 : result;
}

ssize_t read(int file, void *data, size_t bytes) {
    if (FAILS_ON(file, "read", NEEDS_NONE))
        return -1;
    return syscall(SYS_read, file, data, bytes);
}

ssize_t pread(int file, void *data, size_t bytes, off_t at) {
    if (FAILS_ON(file, "pread", NEEDS_NONE))
        return -1;
    return syscall(SYS_pread64, file, data, bytes, at);
}

ssize_t write(int file, const void *data, size_t bytes) {
    if (!FAILS_ON(file, "write", NEEDS_ROOM))
        return syscall(SYS_write, file, data, bytes);
    const int error = errno;
    syscall(SYS_write, file, data, bytes / 2);
    errno = error;
    return -1;
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    if (!FAILS_ON(file, "pwrite", NEEDS_ROOM))
        return syscall(SYS_pwrite64, file, data, bytes, offset);
    const int error = errno;
    syscall(SYS_pwrite64, file, data, bytes / 2, offset);
    errno = error;
    return -1;
}

int fsync(int file) {
    return FAILS_ON(file, "fsync", NEEDS_ROOM) ? -1 : (int)syscall(SYS_fsync, file);
}

int ftruncate(int file, off_t bytes) {
    return FAILS_ON(file, "ftruncate", NEEDS_NONE) ? -1 : (int)syscall(SYS_ftruncate, file, bytes);
}

int fchmod(int file, mode_t mode) {
    return FAILS_ON(file, "fchmod", NEEDS_NONE) ? -1 : (int)syscall(SYS_fchmod, file, mode);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (FAILS_ON(file, "mmap", NEEDS_NONE))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

int mkdir(const char *path, mode_t mode) {
    return FAILS_AT(path, "mkdir", NEEDS_ROOM) ? -1
                                               : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to) {
    return FAILS_AT(from, "rename", NEEDS_ROOM)
               ? -1
               : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

int unlink(const char *path) {
    return FAILS_AT(path, "unlink", NEEDS_NONE) ? -1
                                                : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int folder, const char *path, int flags) {
    return FAILS_AT(path, "unlinkat", NEEDS_NONE) ? -1
                                                  : (int)syscall(SYS_unlinkat, folder, path, flags);
}

/* Called by the C library, which walks a folder for the program. */
int remove(const char *path) {
    if (fails("remove", NEEDS_NONE, (const void *)ranges[0].begin))
        return -1;
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0)
        return 0;
    return errno == EISDIR ? (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : -1;
}

/* ---- folders, which the C library reads */

DIR *opendir(const char *path) {
    if (FAILS_AT(path, "opendir", NEEDS_NONE))
        return NULL;
    const int folder = (int)syscall(SYS_openat, AT_FDCWD, path,
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
    return folder < 0 ? NULL : fdopendir(folder);
}

struct dirent *readdir(DIR *folder) {
    static struct dirent *(*original)(DIR *);
    if (FAILS("readdir", NEEDS_NONE))
        return NULL;
    if (!original)
        *(void **)&original = dlsym(RTLD_NEXT, "readdir");
    return original(folder);
}
