/* libraries.c: the versions of the libraries that this program runs with. */
#include "cli/line/libraries.h"

#include "ops/cpu/gemm.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <lzma.h>
#include <pcre2.h>
#include <string.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

void libraries_print(FILE *out) {
    char pcre[64] = "";
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) < (int)sizeof pcre)
        (void)pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    pcre[strcspn(pcre, " ")] = '\0'; /* a date follows */
    fprintf(out, "%s, jansson %s, libyaml %s, PCRE2 %s, utf8proc %s, zlib %s, zstd %s, lzma %s\n",
            sr_gemm_library(), jansson_version_str(), yaml_get_version_string(), pcre,
            utf8proc_version(), zlibVersion(), ZSTD_versionString(), lzma_version_string());
}
