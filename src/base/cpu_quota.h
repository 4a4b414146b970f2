/* cpu_quota.h (private): the limits of this process's control group: cores and memory. */
#ifndef SR_BASE_CPU_QUOTA_H
#define SR_BASE_CPU_QUOTA_H

/* The quota of the process's control group and its parents, in cores; INFINITY: unlimited or
 * unknown. `root` is the mount point of control groups (/sys/fs/cgroup), `own` the file that names
 * this process's group (/proc/self/cgroup). Version 2 only. */
double sr_cpu_quota(const char *root, const char *own);

/* The same of memory, in bytes. */
double sr_memory_quota(const char *root, const char *own);

#endif
