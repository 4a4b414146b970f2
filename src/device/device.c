/* device.c: the public calls on devices. */
#include "device/device.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

srnn_status srnn_device_open(srnn_device **device, const char *name) {
    *device = NULL;
    if (!name || strcmp(name, "cpu") == 0)
        return sr_device_cpu_open(device, 0);
    if (strcmp(name, "cuda") == 0)
        return sr_device_cuda_open(device, 0);
    if (strncmp(name, "cuda:", 5) == 0 && isdigit((unsigned char)name[5]) && strlen(name) < 9) {
        char *end;
        const long index = strtol(name + 5, &end, 10);
        if (*end == '\0')
            return sr_device_cuda_open(device, (int)index);
    }
    return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no device '%s': use cpu, cuda or cuda:N", name);
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
