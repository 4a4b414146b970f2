/* moment_files.c: the optimizer's moments in a checkpoint. */
#include "train/moment_files.h"

#include "files/folder.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "model/files/tensor_stream.h"
#include "train/parallel/shares.h"
#include "train/run/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOMENTS = 2, MOMENT_NAME = SR_SPEC_NAME + 40 };

static const char *const moment_names[MOMENTS] = {"mean", "square"};

/* Elements of one tensor that belong to one share. */
typedef struct part {
    const sr_tensor_spec *spec;
    size_t first, count; /* within the tensor */
    int64_t at;          /* within the rank's arrays */
} part;

static part part_of(const sr_tensor_spec *spec, const sr_share *share) {
    const sr_share tensor = {.first = (int64_t)spec->start, .count = (int64_t)spec->count};
    const sr_share common = sr_share_common(&tensor, share);
    return (part){spec, (size_t)common.first, (size_t)common.count, common.at};
}

static float *moment_at(const sr_moment_files *m, int which, int64_t at) {
    const sr_moments *moments = sr_trainer_moments(m->trainer);
    return (which == 0 ? moments->mean : moments->square) + at;
}

/* ---- all parts of all shares, in a fixed order */

typedef struct visit {
    const sr_moment_files *moments;
    void *context;
    const char *path; /* for messages */
} visit;

typedef srnn_status visitor(const visit *visit, int which, const part *part);

static srnn_status visit_all(visitor *see, const visit *v) {
    const sr_tensor_table *table = sr_trainer_table(v->moments->trainer);
    size_t shares;
    const sr_share *share = sr_trainer_shares(v->moments->trainer, &shares);
    for (size_t s = 0; s < shares; s++)
        for (size_t i = 0; i < table->count; i++) {
            const part here = part_of(&table->specs[i], &share[s]);
            for (int which = 0; which < MOMENTS && here.count > 0; which++)
                SR_TRY(see(v, which, &here));
        }
    return SRNN_OK;
}

/* The name of a part and its shape: the tensor's shape if the part is the whole tensor. */
static sr_tensor describe(char name[MOMENT_NAME], int which, const part *p) {
    sr_tensor tensor = {.name = name, .rank = 1, .shape = {(int64_t)p->count}};
    if (p->count == p->spec->count) {
        snprintf(name, MOMENT_NAME, "%s.%s", moment_names[which], p->spec->name);
        tensor.rank = p->spec->rank;
        memcpy(tensor.shape, p->spec->shape, sizeof p->spec->shape);
    } else {
        snprintf(name, MOMENT_NAME, "%s.%s@%zu", moment_names[which], p->spec->name, p->first);
    }
    return tensor;
}

/* ---- writing */

static srnn_status add_part(const visit *v, int which, const part *p) {
    char name[MOMENT_NAME];
    sr_tensor tensor = describe(name, which, p);
    tensor.data = moment_at(v->moments, which, p->at);
    return sr_safetensors_writer_add(v->context, &tensor);
}

static srnn_status write_file(const sr_moment_files *m, const char *path) {
    sr_safetensors_writer *writer;
    SR_TRY(sr_safetensors_writer_create(&writer));
    sr_safetensors_writer_reader(writer, sr_stream_out, m->model->backend);
    srnn_status status = visit_all(add_part, &(visit){m, writer, path});
    if (status == SRNN_OK)
        status = sr_safetensors_writer_write(writer, path);
    sr_safetensors_writer_free(writer);
    return status;
}

static srnn_status compare_part(const visit *v, int which, const part *p) {
    char name[MOMENT_NAME];
    const sr_tensor *tensor;
    (void)describe(name, which, p);
    SR_TRY(sr_safetensors_require(&tensor, v->context, name));
    return sr_stream_compare(v->moments->model->backend, moment_at(v->moments, which, p->at),
                             p->count, tensor, v->path);
}

static srnn_status read_back(const sr_moment_files *m, const char *path) {
    sr_safetensors *file;
    SR_TRY(sr_safetensors_open(&file, path));
    const srnn_status status = visit_all(compare_part, &(visit){m, file, path});
    sr_safetensors_free(file);
    return status;
}

srnn_status sr_moment_files_write(const sr_moment_files *m, const char *folder) {
    char path[SR_PATH_BYTES];
    const bool split = sr_trainer_splits(m->trainer);
    if (!split && m->ranks->rank != 0)
        return SRNN_OK;
    if (split)
        SR_TRY(sr_path_print(path, "%s/" SR_OPTIMIZER_STEM "-%05d-of-%05d.safetensors", folder,
                             m->ranks->rank + 1, m->ranks->count));
    else
        SR_TRY(sr_path_join(path, folder, SR_OPTIMIZER_STEM ".safetensors"));
    SR_TRY(write_file(m, path));
    return read_back(m, path);
}

/* ---- reading */

/* Parses the name of a tensor in a file: which moment, which tensor, and the index of its first
 * element. False: not a moment. */
static bool parse_name(const char *name, const sr_tensor_table *table, int *which,
                       const sr_tensor_spec **spec, size_t *first) {
    char weight[SR_SPEC_NAME];
    *first = 0;
    for (*which = 0; *which < MOMENTS; ++*which) {
        const size_t length = strlen(moment_names[*which]);
        if (strncmp(name, moment_names[*which], length) == 0 && name[length] == '.') {
            name += length + 1;
            break;
        }
    }
    const char *mark = strchr(name, '@');
    const size_t length = mark ? (size_t)(mark - name) : strlen(name);
    if (*which == MOMENTS || length >= sizeof weight)
        return false;
    memcpy(weight, name, length);
    weight[length] = '\0';
    *spec = sr_tensor_table_find(table, weight);
    if (!*spec || !mark)
        return *spec != NULL;
    char *end;
    const unsigned long long begin = strtoull(mark + 1, &end, 10);
    *first = (size_t)begin;
    return mark[1] && !*end && begin <= (*spec)->count;
}

/* Copies the overlap of a part and a tensor of the file; adds its number of elements. */
static srnn_status take_common(const sr_moment_files *m, int which, const part *p,
                               const sr_tensor *tensor, size_t first, size_t *taken) {
    const sr_share theirs = {.first = (int64_t)first, .count = (int64_t)tensor->count};
    const sr_share own = {(int64_t)p->first, p->at, (int64_t)p->count};
    const sr_share common = sr_share_common(&theirs, &own);
    if (common.count == 0)
        return SRNN_OK;
    *taken += (size_t)common.count;
    return sr_stream_in(m->model->backend,
                        sr_matrix_of(moment_at(m, which, common.at), 1, common.count, SRNN_F32),
                        tensor, (size_t)common.first);
}

static srnn_status read_tensor(const sr_moment_files *m, const sr_tensor *tensor, const char *path,
                               size_t *taken) {
    const sr_tensor_spec *spec;
    size_t first, shares;
    int which;
    if (!parse_name(tensor->name, sr_trainer_table(m->trainer), &which, &spec, &first) ||
        tensor->count > spec->count - first || tensor->dtype != SR_DTYPE_F32 ||
        (tensor->count == spec->count && !sr_tensor_has_shape(tensor, spec->rank, spec->shape)))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is not of this model", path, tensor->name);
    const sr_share *share = sr_trainer_shares(m->trainer, &shares);
    for (size_t s = 0; s < shares; s++) {
        const part own = part_of(spec, &share[s]);
        if (own.count > 0)
            SR_TRY(take_common(m, which, &own, tensor, first, taken));
    }
    return SRNN_OK;
}

static srnn_status read_file(const sr_moment_files *m, const char *path, size_t *taken) {
    sr_safetensors *file;
    SR_TRY(sr_safetensors_open(&file, path));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < sr_safetensors_count(file) && status == SRNN_OK; i++)
        status = read_tensor(m, sr_safetensors_at(file, i), path, taken);
    sr_safetensors_free(file);
    return status;
}

static srnn_status count_part(const visit *v, int which, const part *p) {
    (void)which;
    *(size_t *)v->context += p->count;
    return SRNN_OK;
}

srnn_status sr_moment_files_read(const sr_moment_files *m, const char *folder) {
    char path[SR_PATH_BYTES];
    size_t taken = 0, needed = 0;
    sr_names names;
    SR_TRY(visit_all(count_part, &(visit){m, &needed, folder}));
    SR_TRY(sr_folder_list(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++)
        if (sr_progress_is_optimizer(names.names[i])) {
            status = sr_path_join(path, folder, names.names[i]);
            if (status == SRNN_OK)
                status = read_file(m, path, &taken);
        }
    sr_names_free(&names);
    SR_TRY(status);
    return taken == needed ? SRNN_OK
                           : SR_FAIL(SRNN_ERR_FORMAT,
                                     "%s: the optimiser's files hold %zu of the %zu numbers that "
                                     "are needed, each once",
                                     folder, taken, needed);
}
