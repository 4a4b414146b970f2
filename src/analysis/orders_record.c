/* orders_record.c: the results of a survey as JSON. */
#include "analysis/orders_record.h"

#include "analysis/orders.h"
#include "files/json.h"

#include <math.h>

static const char *const size_names[SR_ORDER_SIZES] = {"log_mean", "log_mean_weighted", "mean_log",
                                                       "mean_log_weighted"};

json_t *sr_record_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *sr_record_numbers(const double *x, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        sr_json_append(list, sr_record_number(x[i]));
    return list;
}

json_t *sr_record_needed(const double *errors, int cuts, const double *tolerances) {
    json_t *list = json_array();
    for (int i = 0; i < SR_TOLERANCES; i++) {
        const int order = sr_order_needed(errors, cuts, tolerances[i]);
        sr_json_append(list, order < 0 ? json_null() : json_integer(order));
    }
    return list;
}

static json_t *logits_of(const sr_order_sums *sums) {
    static const double shares[] = {0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999};
    json_t *quantiles = json_array();
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const double x = sr_histogram_quantile(&sums->histogram, shares[i]);
        const double inside = fmin(fmax(x, sums->least), sums->most);
        sr_json_append(quantiles, json_pack("[ff]", shares[i], inside));
    }
    return json_pack("{sI, so, so, so, so, so}", "pairs", (json_int_t)sums->pairs, "min",
                     sr_record_number(sums->least), "max", sr_record_number(sums->most), "mean",
                     sr_record_number(sums->mean), "sd",
                     sr_record_number(sr_order_sums_deviation(sums)), "quantiles", quantiles);
}

/* The lists that errors are appended to. */
typedef struct error_lists {
    json_t *errors, *needed;
    int cuts;
    const double *tolerances;
} error_lists;

/* The relative errors of all cuts about a centre, and the orders needed; null for a centre that was
 * not tried. */
static void add_errors(const error_lists *to, const char *name, const double *differences,
                       double size) {
    double relative[SR_CUTS];
    for (int cut = 0; differences && cut < to->cuts; cut++)
        relative[cut] = sr_truncation_error(differences[cut], size);
    sr_json_append(json_object_get(to->errors, name),
                   differences ? sr_record_numbers(relative, to->cuts) : json_null());
    sr_json_append(json_object_get(to->needed, name),
                   differences ? sr_record_needed(relative, to->cuts, to->tolerances)
                               : json_null());
}

static void add_truncation(json_t *to, const sr_truncation *t, const sr_survey *survey, int centres,
                           const double *tolerances) {
    const error_lists lists = {.errors = json_pack("{s[], s[]}", "weights", "outputs"),
                               .needed = json_pack("{s[], s[]}", "weights", "outputs"),
                               .cuts = sr_cut_count(survey->most_order),
                               .tolerances = tolerances};
    for (int centre = 0; centre < SR_CENTRES; centre++) {
        const bool tried = centre < centres;
        add_errors(&lists, "weights", tried ? t->weights[centre] : NULL, t->weights_size);
        add_errors(&lists, "outputs", tried ? t->outputs[centre] : NULL, t->outputs_size);
    }
    sr_json_set(to, "errors", lists.errors);
    sr_json_set(to, "needed", lists.needed);
}

static json_t *head_of(const sr_survey *survey, int layer, int head, int centres,
                       const double *tolerances) {
    const int number = layer * survey->H + head;
    const sr_order_sums *sums = &survey->sums[number];
    json_t *record = json_pack("{so, s{}, s{}}", "logits", logits_of(sums), "sizes", "dominant");
    for (int size = 0; size < SR_ORDER_SIZES; size++) {
        double sizes[SR_ORDERS];
        for (int n = 0; n <= survey->orders; n++)
            sizes[n] = sr_order_size_of(sums, (sr_order_size)size, n);
        sr_json_set(json_object_get(record, "sizes"), size_names[size],
                    sr_record_numbers(sizes, survey->orders + 1));
        sr_json_set(json_object_get(record, "dominant"), size_names[size],
                    json_integer(sr_order_dominant(sums, (sr_order_size)size, survey->orders)));
    }
    add_truncation(record, &survey->truncation[number], survey, centres, tolerances);
    return record;
}

/* The size of order n over all heads, with equal weight. */
static double layer_size(const sr_survey *survey, int layer, sr_order_size size, int n) {
    const bool of_mean = size == SR_SIZE_LOG_MEAN || size == SR_SIZE_LOG_MEAN_WEIGHTED;
    double largest = -INFINITY, sum = 0;
    for (int head = 0; head < survey->H; head++)
        largest = fmax(largest, sr_order_size_of(&survey->sums[layer * survey->H + head], size, n));
    if (!isfinite(largest))
        return largest;
    for (int head = 0; head < survey->H; head++) {
        const double x = sr_order_size_of(&survey->sums[layer * survey->H + head], size, n);
        sum += of_mean ? exp(x - largest) : x;
    }
    return of_mean ? largest + log(sum / survey->H) : sum / survey->H;
}

static void add_layer_sizes(json_t *record, const sr_survey *survey, int layer) {
    for (int size = 0; size < SR_ORDER_SIZES; size++) {
        double sizes[SR_ORDERS];
        int dominant = 0;
        for (int n = 0; n <= survey->orders; n++) {
            sizes[n] = layer_size(survey, layer, (sr_order_size)size, n);
            dominant = sizes[n] > sizes[dominant] ? n : dominant;
        }
        sr_json_set(json_object_get(record, "sizes"), size_names[size],
                    sr_record_numbers(sizes, survey->orders + 1));
        sr_json_set(json_object_get(record, "dominant"), size_names[size], json_integer(dominant));
    }
}

/* Sizes as the reference defines them, not their logs. */
static void add_reference(json_t *record, const sr_survey *survey, int layer) {
    double sizes[SR_ORDERS] = {0};
    int dominant = 0;
    for (int n = 0; n <= survey->orders; n++) {
        for (int head = 0; head < survey->H; head++)
            sizes[n] += sr_order_size_reference(&survey->sums[layer * survey->H + head], n,
                                                survey->square_pairs) /
                        survey->H;
        dominant = sizes[n] > sizes[dominant] ? n : dominant;
    }
    sr_json_set(json_object_get(record, "sizes"), "reference",
                sr_record_numbers(sizes, survey->orders + 1));
    sr_json_set(json_object_get(record, "dominant"), "reference", json_integer(dominant));
}

json_t *sr_record_layer(const sr_survey *survey, int layer, const srnn_attention *attention,
                        const double *tolerances) {
    const bool analysed = survey->sums[layer * survey->H].pairs > 0;
    json_t *record = json_pack("{si, sb}", "layer", layer, "analysed", analysed);
    if (!analysed)
        return record;
    const int centres = sr_centre_count(attention);
    json_t *heads = json_array();
    sr_json_set(record, "free_shift", json_boolean(centres > 1));
    sr_json_set(record, "sizes", json_object());
    sr_json_set(record, "dominant", json_object());
    add_layer_sizes(record, survey, layer);
    add_reference(record, survey, layer);
    const sr_truncation all = sr_survey_layer(survey, layer);
    add_truncation(record, &all, survey, centres, tolerances);
    for (int head = 0; head < survey->H; head++)
        sr_json_append(heads, head_of(survey, layer, head, centres, tolerances));
    sr_json_set(record, "heads", heads);
    return record;
}
