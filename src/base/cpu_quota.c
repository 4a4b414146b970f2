/* cpu_quota.c: the limits of this process's control group: cores and memory. */
#include "base/cpu_quota.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The first line of a group's file (MOST bytes), or "". */
enum { MOST = 64 };
static void read_line(char line[MOST], const char *root, const char *group, const char *name) {
    char path[2 * PATH_BYTES];
    *line = '\0';
    if (snprintf(path, sizeof path, "%s%s/%s", root, group, name) >= (int)sizeof path)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (!fgets(line, MOST, file))
        *line = '\0';
    fclose(file);
}

/* "QUOTA PERIOD" in a group's cpu.max, as cores; "max PERIOD", or no such file: no limit. */
static double cores_of(const char *root, const char *group) {
    char line[MOST];
    double quota, period;
    read_line(line, root, group, "cpu.max");
    const int read = sscanf(line, "%lf %lf", &quota, &period);
    return read == 2 && quota > 0 && period > 0 ? quota / period : (double)INFINITY;
}

/* The number in a group's memory.max; "max", or no such file: no limit. */
static double bytes_of(const char *root, const char *group) {
    char line[MOST];
    double bytes;
    read_line(line, root, group, "memory.max");
    return sscanf(line, "%lf", &bytes) == 1 && bytes > 0 ? bytes : (double)INFINITY;
}

/* The version 2 group, "0::/a/b", in the file `own`; "" if there is none. */
static void find_group(char group[PATH_BYTES], const char *own) {
    char line[PATH_BYTES];
    FILE *file = fopen(own, "r");
    *group = '\0';
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = '\0';
            memcpy(group, line + 3, strlen(line + 3) + 1);
        }
    if (file)
        fclose(file);
}

/* The least limit of the group and its parents. */
static double least_of(const char *root, const char *own,
                       double (*limit)(const char *root, const char *group)) {
    char group[PATH_BYTES];
    double least = (double)INFINITY;
    find_group(group, own);
    for (char *end; (end = strrchr(group, '/')); *end = '\0')
        least = fmin(least, limit(root, group));
    return fmin(least, limit(root, ""));
}

double sr_cpu_quota(const char *root, const char *own) {
    return least_of(root, own, cores_of);
}

double sr_memory_quota(const char *root, const char *own) {
    return least_of(root, own, bytes_of);
}
