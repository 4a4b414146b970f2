/* cpu_quota.c: the CPU quota of this process's control group. */
#include "base/cpu_quota.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* "QUOTA PERIOD" in a group's cpu.max, as cores; "max PERIOD", or no such file: no limit. */
static double quota_of(const char *root, const char *group) {
    char path[2 * PATH_BYTES];
    double quota, period;
    if (snprintf(path, sizeof path, "%s%s/cpu.max", root, group) >= (int)sizeof path)
        return (double)INFINITY;
    FILE *file = fopen(path, "r");
    if (!file)
        return (double)INFINITY;
    const int read = fscanf(file, "%lf %lf", &quota, &period);
    fclose(file);
    return read == 2 && quota > 0 && period > 0 ? quota / period : (double)INFINITY;
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

double sr_cpu_quota(const char *root, const char *own) {
    char group[PATH_BYTES];
    double least = (double)INFINITY;
    find_group(group, own);
    for (char *end; (end = strrchr(group, '/')); *end = '\0')
        least = fmin(least, quota_of(root, group));
    return fmin(least, quota_of(root, ""));
}
