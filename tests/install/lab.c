/* lab.c: a program that uses the laboratory. */
#include <softrnn_lab.h>

#include <stdio.h>

int main(void) {
    srnl_tokenizer *tokenizer;
    int32_t ids[2];
    size_t count;
    if (srnl_tokenizer_load(&tokenizer, "bytes") != SRNN_OK ||
        srnl_tokenizer_encode(tokenizer, "ab", 2, ids, 2, &count) != SRNN_OK || count != 2) {
        fprintf(stderr, "%s\n", srnn_error_detail());
        return 1;
    }
    srnl_tokenizer_free(tokenizer);
    printf("softrnn %s\n", srnn_version());
    return 0;
}
