/* variants.c: `softrnn variants`, the table of variants. */
#include "base/units.h"
#include "cli/attention/support.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "equation/facts.h"
#include "equation/model_names.h"
#include "files/json.h"
#include "model/layer/sizes.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Families have a numeric parameter and no rows in the table; these represent them. */
static const struct {
    const char *text, *note;
} families[] = {
    {"order:1", "softmax with exp cut after order 1; order:N for any N from 0 to 170"},
    {"order:2", "softmax with exp cut after order 2; even orders are positive everywhere"},
    {"order:4", "softmax with exp cut after order 4"},
    {"elu:2", "order:2 on elu(x) + 1 of q and k; elu:N for any N"},
    {"relu:2", "order:2 on relu of q and k; relu:N for any N"},
    {"cosine:2", "order:2 on q and k of length one; cosine:N for any N"},
    {"power:2", "the weight is s^2; power:p for any p from 1 to 64"},
};

enum { FAMILIES = sizeof families / sizeof *families, TEXT_MAX = 512 };

/* Elements of the state of one head, with the default number of levels; SIZE_MAX: overflow. */
static size_t state_numbers(const srnn_attention *attention, int D) {
    const size_t one = srnn_attention_state_numbers(attention, D, D);
    const size_t states = attention->levels == SRNN_LEVELS_NONE ? 1 : SR_LEVELS_USUAL;
    return one < SIZE_MAX / states ? one * states : SIZE_MAX;
}

/* Bytes of a float state as text: "16.5 KB". */
static const char *format_state(char words[SR_BYTES_WORDS], const srnn_attention *attention,
                                int D) {
    const size_t numbers = state_numbers(attention, D);
    if (numbers == 0)
        return "-";
    return numbers == SIZE_MAX ? "> 64 EB" : sr_bytes_words(words, 4 * (double)numbers);
}

/* The tensors of a layer of the variant, of an arbitrary size. */
static srnn_status layer_of(sr_tensor_table *table, const srnn_attention *attention) {
    enum { WIDTH = 64, HEADS = 2 };
    const sr_layer_sizes sizes =
        sr_layer_sizes_usual(attention, HEADS, HEADS, WIDTH / HEADS, &(sr_layer_sizes){0});
    const sr_layer_dims dims = sr_layer_sizes_dims(&sizes, WIDTH);
    return sr_layer_tensors(table, "", attention, &dims);
}

/* name = a tensor's name in files without ".bias" or ".weight", which is *part; false for a
 * projection that every layer has, and for the bias next to a weight. */
static bool tensor_name(char name[SR_SPEC_NAME], const char **part, const sr_tensor_table *table,
                        size_t i) {
    static const char *const plain[] = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"};
    char bias[SR_SPEC_NAME + 8];
    snprintf(name, SR_SPEC_NAME, "%s", table->specs[i].name);
    char *dot = strrchr(name, '.');
    const bool is_weight = dot && strcmp(dot, ".weight") == 0;
    if (dot && strcmp(dot, ".bias") == 0)
        return false;
    if (is_weight)
        *dot = '\0';
    snprintf(bias, sizeof bias, "%s.bias", name);
    *part = !is_weight ? "" : sr_tensor_table_find(table, bias) ? "weight, bias" : "weight";
    for (size_t n = 0; n < sizeof plain / sizeof *plain; n++)
        if (strcmp(name, plain[n]) == 0)
            return false;
    return true;
}

/* Of a layer with its authors' wiring. */
static void add_own_layer(json_t *list, const srnn_attention *attention) {
    sr_tensor_table table = {0};
    const srnn_status status = layer_of(&table, attention);
    for (size_t i = 0; i < table.count && status == SRNN_OK; i++) {
        char name[SR_SPEC_NAME];
        const char *part;
        if (tensor_name(name, &part, &table, i))
            sr_json_append(list, json_pack("{s:s, s:s}", "name", name, "tensors", part));
    }
    sr_tensor_table_free(&table);
}

/* [{"name": .., "tensors": ..}, ..], the learned tensors of a layer besides the projections of q,
 * k, v and o, as named in files. */
static json_t *learned_json(const srnn_attention *attention) {
    sr_learned learned[SR_LEARNED_MAX];
    json_t *list = json_array();
    const bool plain = attention->wiring.layer == SRNN_LAYER_PLAIN;
    const size_t count = plain ? sr_attention_learned(learned, attention) : 0;
    if (!plain)
        add_own_layer(list, attention);
    for (size_t i = 0; i < count; i++)
        sr_json_append(list, json_pack("{s:s, s:s}", "name", learned[i].name, "tensors",
                                       learned[i].tensors));
    return list;
}

static void print_learned(const srnn_attention *attention) {
    json_t *list = learned_json(attention), *tensor;
    size_t i;
    json_array_foreach(list, i, tensor)
        printf("%s%s", i ? ", " : "    learns ", sr_json_text_of(tensor, "name"));
    fputs(json_array_size(list) ? "\n" : "", stdout);
    json_decref(list);
}

static void print_row(const srnn_variant *variant, int D) {
    char text[TEXT_MAX], words[SR_BYTES_WORDS];
    srnn_attention_print(text, sizeof text, &variant->attention);
    printf("%-60s%12s   %s\n    %s\n", variant->name, format_state(words, &variant->attention, D),
           srnn_attention_has_state(&variant->attention) ? "parallel chunked recurrent"
                                                         : "parallel",
           text);
    print_learned(&variant->attention);
    if (*variant->note)
        printf("    note: %s\n", variant->note);
}

static json_t *row_object(const srnn_variant *variant, int D) {
    char text[TEXT_MAX];
    srnn_attention_print(text, sizeof text, &variant->attention);
    json_t *names = learned_json(&variant->attention), *forms = json_pack("[s]", "parallel"),
           *bytes = json_null();
    if (srnn_attention_has_state(&variant->attention)) {
        sr_json_append(forms, json_string("chunked"));
        sr_json_append(forms, json_string("recurrent"));
        const size_t numbers = state_numbers(&variant->attention, D);
        if (numbers < SIZE_MAX)
            bytes = json_real(4 * (double)numbers);
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:i, s:o, s:s, s:b}", "name", variant->name, "attention",
                     text, "learned", names, "forms", forms, "head_size", D, "state_bytes", bytes,
                     "note", variant->note, "whole_model", false);
}

/* The same for a model without attention: no head, no form, no state. */
static json_t *whole_model_object(const sr_named_model *model) {
    return json_pack("{s:s, s:n, s:[], s:[], s:n, s:n, s:s, s:b}", "name", model->name, "attention",
                     "learned", "forms", "head_size", "state_bytes", "note", model->note,
                     "whole_model", true);
}

/* Row `index` of the named variants followed by the families; false past the end. */
static bool row_at(srnn_variant *row, size_t index) {
    size_t named = 0;
    for (; srnn_variant_at(named); named++)
        if (named == index) {
            *row = *srnn_variant_at(named);
            return true;
        }
    if (index - named >= FAMILIES)
        return false;
    *row =
        (srnn_variant){.name = families[index - named].text, .note = families[index - named].note};
    return srnn_attention_parse(&row->attention, row->name) == SRNN_OK;
}

static srnn_status print_json(int D) {
    json_t *rows = json_array();
    srnn_variant row;
    for (size_t i = 0; row_at(&row, i); i++)
        sr_json_append(rows, row_object(&row, D));
    for (size_t i = 0; sr_named_model_at(i); i++)
        sr_json_append(rows, whole_model_object(sr_named_model_at(i)));
    const srnn_status status = sr_json_print(stdout, rows, JSON_INDENT(2));
    json_decref(rows);
    return status;
}

static void print_table(int D) {
    char size[48];
    srnn_variant row;
    snprintf(size, sizeof size, "state, D=%d", D);
    printf("%-60s%12s   forms\n", "name", size);
    for (size_t i = 0; row_at(&row, i); i++)
        print_row(&row, D);
    printf("\nstate: floats of one head of values, whatever the length of the sequence; of %d "
           "levels.\n"
           "--attention takes a name, a text form, or a name and changes: norm,clamp=5\n"
           "\nwhole models without attention, for train and study: avey_causal,chunk=64\n",
           SR_LEVELS_USUAL);
    for (size_t i = 0; sr_named_model_at(i); i++)
        printf("%-16s%s\n", sr_named_model_at(i)->name, sr_named_model_at(i)->note);
}

int command_variants(int argc, char **argv) {
    bool json = false, support = false;
    int D = 64;
    const command_option options[] = {
        OPTION_FLAG("--json", &json, "one array instead of a table"),
        OPTION_FLAG("--support", &support,
                    "which kernel computes each variant: by device, number type and form"),
        OPTION_INTEGER("--head-size", &D, 1, SR_HEAD_SIZE_MAX, "D",
                       "head size for the size of the state"),
    };
    const command_line line = {
        .usage = "softrnn variants [options]",
        .purpose =
            "The variants of attention: name, text form, learned tensors besides the q, k, v "
            "and o\nprojections, forms, and the size of the fixed-size state where there is "
            "one.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn variants --head-size 32\n"
                    "  softrnn variants --support\n"
                    "  softrnn variants --json | jq '.[] | select(.state_bytes) | .name'\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (support)
        return command_report(support_print(row_at, D));
    if (json)
        return command_report(print_json(D));
    print_table(D);
    return EXIT_OK;
}
