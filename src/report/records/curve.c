/* curve.c: the curves of a run's metrics.jsonl. */
#include "report/records/curve.h"

#include "files/json.h"

#include <math.h>

static void add(sr_curve_bin *bin, double step, double value) {
    if (isfinite(value)) {
        bin->values += value;
        bin->steps += step;
        bin->count++;
    }
}

double sr_curve_bin_value(const sr_curve_bin *bin) {
    return bin->count ? bin->values / (double)bin->count : NAN;
}

double sr_curve_bin_step(const sr_curve_bin *bin) {
    return bin->count ? bin->steps / (double)bin->count : NAN;
}

static void add_line(sr_curve *curve, const json_t *line) {
    const double step = sr_json_number_of(line, "step");
    if (!(step >= 1 && step <= curve->steps))
        return;
    size_t bin = (size_t)((step - 1) / curve->steps * SR_CURVE_BINS);
    bin = bin < SR_CURVE_BINS ? bin : SR_CURVE_BINS - 1;
    curve->last_step = step;
    curve->skipped = sr_json_number_of(line, "skipped");
    add(&curve->loss[bin], step, sr_json_number_of(line, "loss"));
    add(&curve->gradient[bin], step, sr_json_number_of(line, "gradient_norm"));
    if (!json_object_get(line, "validation_loss"))
        return;
    curve->last_loss = sr_json_number_of(line, "validation_loss");
    curve->last_accuracy = sr_json_number_of(line, "validation_accuracy");
    curve->best_loss = fmin(curve->best_loss, curve->last_loss); /* fmin ignores NAN */
    add(&curve->validation[bin], step, curve->last_loss);
    add(&curve->accuracy[bin], step, curve->last_accuracy);
}

static srnn_status visit_line(void *context, const json_t *object, size_t line) {
    sr_curve *curve = context;
    (void)line;
    if (object)
        add_line(curve, object);
    else
        curve->bad_lines++;
    return SRNN_OK;
}

srnn_status sr_curve_read(sr_curve *curve, const char *path, double steps) {
    *curve = (sr_curve){.steps = steps, .last_loss = NAN, .last_accuracy = NAN, .best_loss = NAN};
    return sr_json_lines_read(path, visit_line, curve);
}
