/* compare_groups.c: statistics over runs that differ only in their seed. */
#include "cli/study/compare.h"

#include <math.h>

static bool differ_in_seed_alone(const compared *a, const compared *b) {
    sr_run_settings same_seed = b->settings; /* borrows its strings */
    same_seed.seed = a->settings.seed;
    return sr_run_settings_difference(&a->settings, &same_seed) == NULL;
}

static double loss_of(const compared *run) {
    return run->record.points[run->record.count - 1].loss;
}

static double validation_of(const compared *run) {
    return run->record.last_loss;
}

static double best_of(const compared *run) {
    return run->record.best_loss;
}

static double accuracy_of(const compared *run) {
    return run->record.last_accuracy;
}

/* Over the runs of the group of `first`: it and later ones. */
static seed_mean mean_of(const compared *first, int count, double (*value)(const compared *)) {
    double sum = 0, squares = 0;
    int seeds = 0;
    for (int i = 0; i < count; i++)
        if (differ_in_seed_alone(first, &first[i])) {
            sum += value(&first[i]);
            seeds++;
        }
    const double mean = sum / seeds;
    for (int i = 0; i < count; i++)
        if (differ_in_seed_alone(first, &first[i]))
            squares += (value(&first[i]) - mean) * (value(&first[i]) - mean);
    return (seed_mean){mean, seeds > 1 ? sqrt(squares / (seeds - 1)) : NAN};
}

static bool is_first(const compared *runs, int index) {
    for (int i = 0; i < index; i++)
        if (differ_in_seed_alone(&runs[i], &runs[index]))
            return false;
    return true;
}

int compare_groups(seed_group *groups, const compared *runs, int count) {
    int found = 0;
    for (int i = 0; i < count; i++) {
        if (!is_first(runs, i))
            continue;
        const compared *first = &runs[i];
        const int rest = count - i;
        seed_group *group = &groups[found++];
        *group = (seed_group){.first = first,
                              .loss = mean_of(first, rest, loss_of),
                              .validation = mean_of(first, rest, validation_of),
                              .best = mean_of(first, rest, best_of),
                              .accuracy = mean_of(first, rest, accuracy_of)};
        for (int k = 0; k < rest; k++)
            group->seeds += differ_in_seed_alone(first, &first[k]);
    }
    return found;
}
