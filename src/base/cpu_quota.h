/* cpu_quota.h (private): how much of the cores' time the system grants this process. */
#ifndef SR_BASE_CPU_QUOTA_H
#define SR_BASE_CPU_QUOTA_H

/* Cores' worth of time that the process's control group, and those above it, grant; INFINITY: as
 * much as there is, or nothing is known. `root` is where control groups are mounted
 * (/sys/fs/cgroup), `own` the file that names this process's (/proc/self/cgroup). Of version 2
 * only. */
double sr_cpu_quota(const char *root, const char *own);

#endif
