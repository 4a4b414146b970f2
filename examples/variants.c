/* variants.c: what there is to choose from, and what each costs to keep. */
#include <softrnn.h>

#include <stdio.h>

int main(void) {
    const int D = 64;
    for (size_t i = 0; srnn_variant_at(i); i++) {
        const srnn_variant *variant = srnn_variant_at(i);
        char text[512];
        srnn_attention_print(text, sizeof text, &variant->attention);
        printf("%s\n    %s\n", variant->name, text);
        if (srnn_attention_has_state(&variant->attention))
            printf("    a state of %zu numbers for every head of %d\n",
                   srnn_attention_state_numbers(&variant->attention, D, D), D);
        else
            printf("    keeps keys and values: %d numbers per token and head\n", 2 * D);
    }
    return 0;
}
