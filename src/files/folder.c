/* folder.c: making, locking, listing, renaming and removing folders, durably. */
#include "files/folder.h"

#include "base/clock.h"
#include "files/file.h"
#include "files/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_FOLDERS = 16, LOOK_MICROSECONDS = 5000 };

static srnn_status fail(const char *path, const char *what) {
    return SR_FAIL(SRNN_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

srnn_status sr_folder_make(const char *path) {
    struct stat status;
    if (mkdir(path, 0777) == 0)
        return SRNN_OK;
    if (errno != EEXIST || stat(path, &status) != 0)
        return fail(path, "cannot be made");
    if (!S_ISDIR(status.st_mode))
        return SR_FAIL(SRNN_ERR_IO, "%s: is a file, not a folder", path);
    return SRNN_OK;
}

srnn_status sr_folders_make(const char *path) {
    char part[SR_PATH_BYTES];
    SR_TRY(sr_path_print(part, "%s", path));
    for (char *at = part + 1; *part && *at; at++)
        if (*at == '/') {
            *at = '\0';
            SR_TRY(sr_folder_make(part));
            *at = '/';
        }
    return sr_folder_make(part);
}

/* False, with errno set, if another process still holds it after `patience` seconds. */
static bool take(int lock, double patience) {
    const double begin = sr_clock_seconds();
    for (;;) {
        if (flock(lock, LOCK_EX | LOCK_NB) == 0)
            return true;
        if (errno != EWOULDBLOCK || sr_clock_seconds() - begin >= patience)
            return false;
        usleep(LOOK_MICROSECONDS);
    }
}

/* Whether the name still refers to the open file. */
static bool is_file(int open_file, const char *name) {
    struct stat own, named;
    return fstat(open_file, &own) == 0 && stat(name, &named) == 0 && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

srnn_status sr_folder_lock(int *lock, const char *path, double patience) {
    char name[SR_PATH_BYTES];
    *lock = -1;
    SR_TRY(sr_path_join(name, path, "lock"));
    SR_TRY(sr_descriptor_open_own(lock, name, O_RDWR | O_CREAT));
    if (take(*lock, patience)) {
        if (is_file(*lock, name))
            return SRNN_OK;
        sr_folder_unlock(*lock);
        return sr_folder_lock(lock, path, patience); /* its previous holder removed it */
    }
    const srnn_status status =
        errno == EWOULDBLOCK
            ? SR_FAIL(SRNN_ERR_IO, "%s: another process is at work in this folder", path)
            : fail(name, "cannot be locked");
    sr_folder_unlock(*lock);
    *lock = -1;
    return status;
}

void sr_folder_unlock(int lock) {
    if (lock >= 0)
        close(lock);
}

static srnn_status append(sr_names *names, const char *name) {
    char **grown = realloc(names->names, (names->count + 1) * sizeof *grown);
    if (!grown)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a list of files");
    names->names = grown;
    grown[names->count] = strdup(name);
    if (!grown[names->count])
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a list of files");
    names->count++;
    return SRNN_OK;
}

srnn_status sr_folder_list(sr_names *names, const char *path) {
    *names = (sr_names){0};
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT ? SRNN_OK : fail(path, "cannot be read");
    srnn_status status = SRNN_OK;
    const struct dirent *entry;
    while (errno = 0, status == SRNN_OK && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = append(names, entry->d_name);
    if (status == SRNN_OK && errno != 0) /* the listing is incomplete */
        status = fail(path, "cannot be read");
    closedir(folder);
    if (status != SRNN_OK)
        sr_names_free(names);
    return status;
}

void sr_names_free(sr_names *names) {
    for (size_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    *names = (sr_names){0};
}

static srnn_status sync_folder(const char *path) {
    const int descriptor = sr_descriptor_open(path, O_RDONLY | O_DIRECTORY);
    if (descriptor < 0)
        return fail(path, "cannot be opened");
    const int result = fsync(descriptor);
    close(descriptor);
    return result == 0 ? SRNN_OK : fail(path, "cannot be made durable");
}

srnn_status sr_folder_rename(const char *from, const char *to) {
    SR_TRY(sync_folder(from));
    if (rename(from, to) != 0)
        return fail(to, "the new folder cannot be renamed to this");
    char *copy = strdup(to);
    if (!copy)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a path");
    const srnn_status status = sync_folder(dirname(copy));
    free(copy);
    return status;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

srnn_status sr_folder_remove(const char *path) {
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    return nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) == 0
               ? SRNN_OK
               : fail(path, "cannot be removed");
}
