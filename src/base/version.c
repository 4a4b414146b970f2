/* version.c: the version of the running library. */
#include "softrnn.h"

#define TEXT_OF(number)                   #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *srnn_version(void) {
    return VERSION_TEXT(SRNN_VERSION_MAJOR, SRNN_VERSION_MINOR, SRNN_VERSION_PATCH);
}
