/* folder.h: making, locking, listing, renaming and removing folders, durably. */
#ifndef SR_FILES_FOLDER_H
#define SR_FILES_FOLDER_H

#include "base/status.h"

/* Creates a folder; succeeds if it exists. Its parent must exist. */
srnn_status sr_folder_make(const char *path);

/* The same including missing parents. */
srnn_status sr_folders_make(const char *path);

/* Locks an existing folder against other processes that lock it, until unlocked or until this
 * process and those it forked have ended, however they end. Fails if another process still holds
 * the lock after `patience` seconds. */
srnn_status sr_folder_lock(int *lock, const char *path, double patience);
void sr_folder_unlock(int lock); /* accepts -1 */

typedef struct sr_names {
    char **names; /* (count), owned */
    size_t count;
} sr_names;

/* The names in a folder except "." and "..", unordered; none if there is no such folder. */
srnn_status sr_folder_list(sr_names *names, const char *path);
void sr_names_free(sr_names *names);

/* Renames a folder within its parent; its content is synced before, the new name after. */
srnn_status sr_folder_rename(const char *from, const char *to);

/* Removes a folder recursively; succeeds if there is none. */
srnn_status sr_folder_remove(const char *path);

#endif
