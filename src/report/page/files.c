/* files.c: embeds the files of the page. */
#include "report/page/files.h"

/* The assembler includes the file; its path comes from the build. */
#define EMBED(name, path)                                                                \
    __asm__(".section .rodata\n"                                                         \
            ".hidden sr_embedded_" #name "\n.global sr_embedded_" #name "\n"             \
            ".hidden sr_embedded_" #name "_end\n.global sr_embedded_" #name "_end\n"     \
            "sr_embedded_" #name ":\n.incbin \"" path "\"\nsr_embedded_" #name "_end:\n" \
            ".byte 0\n.previous\n");                                                     \
    extern const char sr_embedded_##name[] __attribute__((visibility("hidden")));        \
    extern const char sr_embedded_##name##_end[] __attribute__((visibility("hidden")));  \
    sr_page_file sr_page_##name(void) {                                                  \
        return (sr_page_file){sr_embedded_##name,                                        \
                              (size_t)(sr_embedded_##name##_end - sr_embedded_##name)};  \
    }

EMBED(template, SR_PAGE_FOLDER "/page.html")
EMBED(style, SR_PAGE_FOLDER "/page.css")
EMBED(figure_style, SR_PAGE_FOLDER "/figure.css")
EMBED(script, SR_PAGE_FOLDER "/page.js")
EMBED(selftest, SR_PAGE_FOLDER "/selftest.js")
EMBED(library, SR_DYGRAPHS)
