/* registry.c: the table of devices, and the public calls on one. */
#include "device/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sr_device_kind *const kinds[] = {&sr_device_kind_cpu, &sr_device_kind_cuda};

const sr_device_kind *sr_device_kind_at(size_t index) {
    return index < sizeof kinds / sizeof *kinds ? kinds[index] : NULL;
}

/* The index after ":" in a name: one to three digits and nothing else. */
static bool parse_index(int *index, const char *text) {
    const size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 3 || text[digits] != '\0')
        return false;
    *index = atoi(text);
    return true;
}

static bool name_means(sr_device_choice *choice, const char *name, const sr_device_kind *kind) {
    const size_t length = strlen(kind->name);
    if (strncmp(name, kind->name, length) != 0)
        return false;
    *choice = (sr_device_choice){.kind = kind, .has_index = name[length] == ':'};
    if (name[length] == '\0')
        return true;
    return kind->numbered && choice->has_index && parse_index(&choice->index, name + length + 1);
}

srnn_status sr_device_choose(sr_device_choice *choice, const char *name) {
    const sr_device_kind *kind;
    char known[96] = "";
    if (!name)
        name = kinds[0]->name;
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++)
        if (name_means(choice, name, kind))
            return SRNN_OK;
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s%s%s%s", i ? ", " : "", kind->name,
                 kind->numbered ? " or " : "", kind->numbered ? kind->name : "",
                 kind->numbered ? ":N" : "");
    }
    return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no device '%s': use %s", name, known);
}

srnn_status srnn_device_open(srnn_device **device, const char *name) {
    sr_device_choice choice;
    *device = NULL;
    SR_TRY(sr_device_choose(&choice, name));
    return choice.kind->open(device, choice.index, 0);
}

void srnn_device_close(srnn_device *device) {
    if (device)
        device->close(device);
}

const char *srnn_device_name(const srnn_device *device) {
    return device->name;
}

srnn_status srnn_device_stream(srnn_device *device, void *stream) {
    return device->stream(device, stream);
}

srnn_status srnn_device_wait(srnn_device *device) {
    return device->wait(device);
}
