/* folder.h: making, locking, listing, renaming and removing folders, durably. */
#ifndef SR_FILES_FOLDER_H
#define SR_FILES_FOLDER_H

#include "base/status.h"

/* Makes a folder; fine if it is there. Its parent must exist. */
srnn_status sr_folder_make(const char *path);

/* The same with every folder on the way to it. */
srnn_status sr_folders_make(const char *path);

/* Keeps other processes that ask for it out of an existing folder, until unlocked or this process
 * and those it forked end, however they end. Fails if another one still holds it after `patience`
 * seconds. */
srnn_status sr_folder_lock(int *lock, const char *path, double patience);
void sr_folder_unlock(int lock); /* accepts -1 */

typedef struct sr_names {
    char **names; /* (count), owned */
    size_t count;
} sr_names;

/* The names in a folder but "." and "..", in no order; none if there is no such folder. */
srnn_status sr_folder_list(sr_names *names, const char *path);
void sr_names_free(sr_names *names);

/* Gives a folder another name beside it, after its content, and before its new name, is durable. */
srnn_status sr_folder_rename(const char *from, const char *to);

/* Removes a folder of files and folders; fine if there is none. */
srnn_status sr_folder_remove(const char *path);

#endif
