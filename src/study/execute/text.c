/* text.c: the text that tasks with the data "@text" train on. */
#include "files/file.h"
#include "files/memory_stream.h"
#include "study/execute/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One verse per line after its reference: "Ge1:1 In the beginning ...". */
static const char bible_command[] = "bible -f gen1:1-rev22:21 </dev/null 2>/dev/null";
enum { LEAST_BYTES = 1 << 20 };

static srnn_status read_bible(FILE *out) {
    FILE *in = popen(bible_command, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    if (!in)
        return SR_FAIL(SRNN_ERR_IO, "the command `bible` cannot be started");
    while ((length = getline(&line, &capacity, in)) > 0) {
        const char *verse = strchr(line, ' ');
        if (verse)
            fputs(verse + 1, out);
    }
    free(line);
    if (pclose(in) != 0 || ftell(out) < LEAST_BYTES)
        return SR_FAIL(SRNN_ERR_IO,
                       "the command `bible` did not give the King James Bible: install Debian's "
                       "package bible-kjv, or name a text of your own with --text FILE");
    return SRNN_OK;
}

static srnn_status read_files(FILE *out, const sr_word_list *files) {
    for (size_t i = 0; i < files->count; i++) {
        sr_mapping file;
        SR_TRY(sr_mapping_open(&file, files->words[i]));
        fwrite(file.data, 1, file.bytes, out);
        sr_mapping_close(&file);
    }
    return SRNN_OK;
}

static srnn_status keep(const char *path, const char *text, size_t bytes) {
    sr_mapping before;
    if (access(path, F_OK) != 0)
        return sr_file_replace(path, text, bytes);
    SR_TRY(sr_mapping_open(&before, path));
    const bool same = before.bytes == bytes && memcmp(before.data, text, bytes) == 0;
    sr_mapping_close(&before);
    return same
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "%s: the study in this folder has another text; use another folder", path);
}

srnn_status sr_study_text(const char *path, const sr_word_list *files) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = sr_memory_stream(&text, &bytes);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the text");
    srnn_status status = files->count ? read_files(out, files) : read_bible(out);
    if (fclose(out) != 0 && status == SRNN_OK)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the text");
    if (status == SRNN_OK)
        status = keep(path, text, bytes);
    free(text);
    return status;
}
