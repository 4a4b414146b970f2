/* question.c: introduces a study: the paper, the tasks, the variants in words. */
#include "files/json.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/draw/words.h"
#include "report/study/kinds.h"
#include "report/study/sections.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

static const char paper[] =
    "<p>Attention adds up what earlier tokens hold, each with a weight: exp of a product q\u00b7k. "
    "Softmax divides by the sum of the weights, the <em>denominator</em>. <cite>On the "
    "Expressiveness "
    "of Softmax Attention: A Recurrent Neural Network Perspective</cite> (Mongaras and Larson, <a "
    "href=\"https://arxiv.org/abs/2507.23632\">arXiv 2507.23632</a>) takes this apart: exp is a "
    "series, each order of it a recurrent network, linear attention the first; and a norm or a "
    "gate "
    "may stand in for the denominator. ";

static const char neighbours[] =
    "<p>Attention adds up what earlier tokens hold, each with a weight: exp of a product q\u00b7k. "
    "Softmax divides by the sum of the weights. Its neighbours choose otherwise: another function "
    "than exp, no denominator, weights that fade; most of them can then keep the past in a state "
    "of "
    "fixed size, where softmax keeps all of it. Where a layer has more weights than "
    "softmax\u2019s, "
    "or fewer, the study\u2019s file may give its MLP less or more. ";

/* Smallest and largest number of seeds of a variant in a cell. */
typedef struct seed_range {
    double least, most;
} seed_range;

static seed_range find_seeds(const sr_records *records) {
    seed_range range = {INFINITY, 0};
    for (size_t c = 0; c < records->cell_count; c++)
        for (size_t i = 0; i < records->cells[c].count; i++) {
            range.least = fmin(range.least, records->cells[c].entries[i].runs);
            range.most = fmax(range.most, records->cells[c].entries[i].runs);
        }
    return range;
}

static bool uses_baseline(const sr_records *records) {
    for (size_t i = 0; i < records->variant_count; i++)
        if (records->variants[i].used && records->variants[i].style == 0)
            return true;
    return false;
}

static size_t count_used(const sr_records *records) {
    size_t count = 0;
    for (size_t i = 0; i < records->variant_count; i++)
        count += records->variants[i].used;
    return count;
}

/* What the models of a study differ in. */
typedef struct differences {
    bool attention;
    bool settings; /* of the variant's own, such as its optimizer, or another width of its MLP */
} differences;

static void add_differences(differences *all, const sr_variant_record *a,
                            const sr_variant_record *b) {
    all->attention = all->attention || strcmp(a->text, b->text) != 0;
    all->settings = all->settings || !sr_variant_same_settings(a, b);
}

static differences find_differences(const sr_records *records) {
    const sr_variant_record *first = NULL;
    differences all = {false, false};
    for (size_t i = 0; i < records->variant_count; i++) {
        const sr_variant_record *variant = &records->variants[i];
        if (!variant->used)
            continue;
        first = first ? first : variant;
        add_differences(&all, first, variant);
    }
    return all;
}

/* The layers of other systems differ in more than their attention. */
static void write_models(FILE *out, const sr_records *records) {
    const size_t count = count_used(records);
    const differences differ = find_differences(records);
    const bool layers = sr_study_has_systems(records);
    if (count == 1) {
        fputs("Here 1 small model is trained", out);
        return;
    }
    fprintf(out,
            "Here %zu small models that differ in their %s%s are trained on the same data in the "
            "same order from the same initial weights",
            count, differ.attention ? "attention" : "settings",
            differ.attention && differ.settings ? " and in settings of their own"
            : differ.attention && layers        ? ""
                                                : " alone");
}

static void write_design(FILE *out, const sr_records *records) {
    const seed_range seeds = find_seeds(records);
    const char *each = count_used(records) > 1 ? "each " : "";
    write_models(out, records);
    if (seeds.most > 1 && seeds.least < seeds.most)
        fprintf(out, ", %swith %s to %s seeds of random numbers", each,
                sr_format_count(seeds.least).text, sr_format_count(seeds.most).text);
    else if (seeds.most > 1)
        fprintf(out, ", %swith %s seeds of random numbers", each, sr_format_count(seeds.most).text);
    if (count_used(records) > 1 && uses_baseline(records)) {
        fputs(", and compared with <b>", out);
        sr_escape_html(out, sr_json_text_of(records->plan, "baseline"));
        fputs("</b>, the baseline", out);
    }
    fputs(".</p>\n", out);
}

static bool has_cell(const sr_records *records, const char *task) {
    for (size_t i = 0; i < records->cell_count; i++)
        if (strcmp(records->cells[i].task, task) == 0)
            return true;
    return false;
}

/* The length of a shell word, whose spaces are between quotation marks. */
static size_t word_length(const char *word) {
    bool quoted = false;
    size_t n = 0;
    for (; word[n] && (quoted || word[n] != ' '); n++) {
        if (word[n] == '\'')
            quoted = !quoted;
        else if (!quoted && word[n] == '\\' && word[n + 1])
            n++;
    }
    return n;
}

/* The files of `--text` in the study's command; else the default text. */
static void write_text_name(FILE *out, const sr_records *records) {
    const char *command = sr_json_text_of(records->plan, "command");
    const char *given = strstr(command, " --text ");
    struct stat file;
    char path[SR_PATH_BYTES];
    if (given) {
        given += strlen(" --text ");
        snprintf(path, sizeof path, "%.*s", (int)word_length(given), given);
        fputs("<code>", out);
        sr_escape_html(out, path);
        fputs("</code>", out);
    } else {
        fputs("the King James Bible", out);
    }
    if (sr_path_join(path, records->folder, "data/text.txt") == SRNN_OK && stat(path, &file) == 0)
        fprintf(out, ", %s", sr_format_bytes((double)file.st_size).text);
}

/* Each task once, however many sizes and learning rates it has. */
static void write_tasks(FILE *out, const sr_records *records) {
    const json_t *tasks = json_object_get(records->plan, "tasks"), *task;
    size_t i;
    fputs("<ul class=\"tasks\">\n", out);
    json_array_foreach(tasks, i, task) {
        const char *data = sr_json_text_of(task, "data");
        if (!has_cell(records, sr_json_text_of(task, "name")))
            continue;
        fputs("<li><b>", out);
        sr_escape_html(out, sr_json_text_of(task, "title"));
        fputs("</b>: ", out);
        if (strcmp(data, "@text") == 0) {
            write_text_name(out, records);
            fputs("; ", out);
        }
        fputs(strcmp(sr_json_text_of(task, "measure"), "accuracy") == 0
                  ? "accuracy, the share of right answers, more is better"
                  : "loss in nats per token, the surprise at what comes next, less is better",
              out);
        fputs(".</li>\n", out);
    }
    fputs("</ul>\n", out);
}

static void write_variants(FILE *out, const sr_records *records) {
    fputs("<dl class=\"words\">\n", out);
    for (size_t i = 0; i < records->variant_count; i++) {
        const sr_variant_record *variant = &records->variants[i];
        const sr_system *system = sr_system_of(variant->attention);
        if (!variant->used)
            continue;
        fputs("<div><dt>", out);
        sr_escape_html(out, variant->name);
        fputs("</dt> <dd>", out);
        if (variant->known)
            sr_words_write(out, &variant->descriptor);
        else
            sr_escape_html(out, system ? system->title : variant->text);
        fputs("</dd></div>\n", out);
    }
    fputs("</dl>\n", out);
}

srnn_status sr_section_question(sr_page *page, const sr_records *records) {
    sr_page_section(page, "question", "The question");
    fputs(sr_study_is_about_paper(records) ? paper
          : sr_study_has_systems(records)  ? neighbours
                                           : "<p>",
          page->body);
    write_design(page->body, records);
    write_tasks(page->body, records);
    write_variants(page->body, records);
    return SRNN_OK;
}
