/* tokenizer_copy.c: keeps a tokenizer's file beside the data that was made with it. */
#include "data/tokenizer_copy.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where sr_tokenizer_load looks in a folder, and what a copy is called. */
static const char *const names[] = {"tokenizer.json", "tokenizer.json.gz", "tokenizer.model",
                                    "tokenizer.bin"};
enum { NAMES = sizeof names / sizeof *names };

/* The name whose ending fits. */
static const char *copy_name(const char *source) {
    size_t length = strlen(source);
    for (size_t i = 0; i < NAMES; i++) {
        const char *ending = strchr(names[i], '.');
        size_t ending_length = strlen(ending);
        if (length >= ending_length && strcmp(source + length - ending_length, ending) == 0)
            return names[i];
    }
    return "tokenizer.bin";
}

/* The first of the names that is in the folder; NULL without memory. */
static char *find_in_folder(const char *folder) {
    char *path = NULL;
    for (size_t i = 0; i < NAMES; i++) {
        free(path);
        if (asprintf(&path, "%s/%s", folder, names[i]) < 0)
            return NULL;
        if (access(path, F_OK) == 0)
            return path;
    }
    return path;
}

srnn_status sr_tokenizer_copy_find(sr_tokenizer_copy *copy, const char *name) {
    struct stat facts;
    *copy = (sr_tokenizer_copy){.name = name};
    if (stat(name, &facts) != 0)
        return SRNN_OK; /* it was loaded, so it is built in */
    copy->source = S_ISDIR(facts.st_mode) ? find_in_folder(name) : strdup(name);
    if (!copy->source)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", name);
    copy->name = copy_name(copy->source);
    return SRNN_OK;
}

static srnn_status copy_file(const char *from, const char *to) {
    sr_mapping mapping;
    SR_TRY(sr_mapping_open(&mapping, from));
    const srnn_status status = sr_file_replace(to, mapping.data, mapping.bytes);
    sr_mapping_close(&mapping);
    return status;
}

/* A tokenizer.json may have a file beside it that names the first and last token of a text. */
static srnn_status copy_config(const char *source, const char *folder) {
    static const char name[] = "tokenizer_config.json";
    const char *slash = strrchr(source, '/');
    char *from = NULL, *to = NULL;
    srnn_status status = SRNN_OK;
    if (asprintf(&from, "%.*s%s", slash ? (int)(slash + 1 - source) : 0, source, name) < 0 ||
        asprintf(&to, "%s/%s", folder, name) < 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", name);
    else if (access(from, F_OK) == 0)
        status = copy_file(from, to);
    free(from);
    free(to);
    return status;
}

srnn_status sr_tokenizer_copy_write(const sr_tokenizer_copy *copy, const char *folder) {
    if (!copy->source)
        return SRNN_OK;
    char *path;
    if (asprintf(&path, "%s/%s", folder, copy->name) < 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", copy->name);
    srnn_status status = copy_file(copy->source, path);
    free(path);
    if (status == SRNN_OK && strncmp(copy->name, names[0], strlen(names[0])) == 0)
        status = copy_config(copy->source, folder);
    return status;
}

srnn_status sr_tokenizer_keep(const char *folder, const char *name) {
    sr_tokenizer_copy copy;
    SR_TRY(sr_tokenizer_copy_find(&copy, name));
    const bool there = copy.source && access(copy.source, F_OK) == 0;
    const srnn_status status = there ? sr_tokenizer_copy_write(&copy, folder) : SRNN_OK;
    free(copy.source);
    return status;
}
