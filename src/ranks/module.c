/* module.c: detects an MPI launcher and loads the transport module. */
#include "ranks/module.h"

#include <dlfcn.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "softrnn_mpi.so"

static bool has(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

/* Environment variables of MPI launchers: Open MPI, PMIx (srun --mpi=pmix), PMI (MPICH). */
static bool started_by_mpi(void) {
    return has("OMPI_COMM_WORLD_SIZE") || has("PMIX_RANK") || has("PMI_RANK");
}

srnn_status sr_ranks_started(bool *several) {
    const char *choice = getenv("SOFTRNN_MPI"), *tasks = getenv("SLURM_STEP_NUM_TASKS");
    *several = false;
    if (choice && strcmp(choice, "none") == 0)
        return SRNN_OK;
    *several = started_by_mpi();
    if (!*several && tasks && atoi(tasks) > 1 && has("SLURM_PROCID"))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "srun started %s tasks without MPI: use srun --mpi=pmix, "
                       "or mpirun; SOFTRNN_MPI=none makes each of them work alone",
                       tasks);
    return SRNN_OK;
}

/* Next to the program, else in the installation folder relative to it. */
static void find(char path[PATH_MAX]) {
    char folder[PATH_MAX / 2];
    const char *named = getenv("SOFTRNN_MPI");
    if (named && *named) {
        snprintf(path, PATH_MAX, "%s", named);
        return;
    }
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    snprintf(path, PATH_MAX, "%s/" MODULE, folder);
    if (access(path, F_OK) != 0)
        snprintf(path, PATH_MAX, "%s/%s/" MODULE, folder, SOFTRNN_MODULES_FROM_PROGRAM);
}

static srnn_status missing(const char *why) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "the program was started as one of several ranks, but it cannot load its "
                   "module for MPI: %s. It is built where MPI is installed (Debian: "
                   "libopenmpi-dev) and must be in the program's folder, or SOFTRNN_MPI must name "
                   "it; SOFTRNN_MPI=none does without ranks",
                   why);
}

/* Plug-ins of Open MPI need its symbols, so the module is loaded with RTLD_GLOBAL. */
srnn_status sr_ranks_module_open(void **module, sr_link **link) {
    char path[PATH_MAX], why[SR_LINK_TEXT] = "";
    sr_link_open *open_link;
    find(path);
    *link = NULL;
    *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!*module)
        return missing(dlerror());
    void *symbol = dlsym(*module, SR_LINK_OPEN);
    if (!symbol)
        return missing(dlerror());
    memcpy(&open_link, &symbol, sizeof open_link);
    if (open_link(link, SR_LINK_VERSION, why) != 0)
        return missing(why);
    return SRNN_OK;
}
