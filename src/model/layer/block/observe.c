/* observe.c: what an observer of a decoder layer is shown: floats in host memory. */
#include "model/layer/block/observe.h"

#include "base/bf16.h"
#include "base/memory.h"
#include "model/layer/attention_parts.h"

#include <stdlib.h>

/* A copy of a matrix as floats in host memory, with the same stride. */
static srnn_status fetch(float **out, srnn_device *device, sr_matrix m) {
    const sr_matrix whole = {m.data, m.rows, m.stride, m.stride, m.dtype, m.handed, m.note};
    SR_TRY(sr_alloc((void **)out, (size_t)(m.rows * m.stride), sizeof(float)));
    return sr_matrix_fetch(*out, device, whole);
}

static srnn_status give_back(srnn_device *device, sr_matrix m, float *host) {
    const size_t count = (size_t)(m.rows * m.stride), bytes = sr_element_bytes(m.dtype);
    for (size_t i = 0; m.dtype == SRNN_BF16 && i < count; i++) {
        const uint16_t number = sr_bf16_of(host[i]);
        memcpy((char *)host + i * bytes, &number, bytes);
    }
    return sr_device_copy_in(device, m.data, host, count * bytes);
}

/* Where an operand stands in the host's copy of its matrix. */
static void *moved(const void *data, sr_matrix m, float *host) {
    const ptrdiff_t bytes = (const char *)data - (const char *)m.data;
    return data ? host + bytes / (ptrdiff_t)sr_element_bytes(m.dtype) : NULL;
}

/* The learned vectors, which are floats already, into host. */
static srnn_status fetch_vectors(float *host, srnn_device *device, srnn_operands *in,
                                 const sr_layer_wiring *wiring) {
    for (int n = 0; n < SR_OPERANDS; host += wiring->learned[n++]) {
        if (!wiring->learned[n])
            continue;
        SR_TRY(sr_device_copy_out(device, host, sr_operand_data((sr_operand)n, in),
                                  (size_t)wiring->learned[n] * sizeof *host));
        sr_operand_place((sr_operand)n, in, host);
    }
    return SRNN_OK;
}

enum { PROJECTED, CONVOLVED, O, SHOWN };

static srnn_status show_copies(const sr_block *b, srnn_operands *in, srnn_tensor *o,
                               const sr_matrix shown[SHOWN], float *const host[SHOWN]) {
    const sr_layer_wiring *wiring = &b->mixer->attention->wiring;
    int64_t learned = 1;
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const int from = wiring->places[n].convolved ? CONVOLVED : PROJECTED;
        learned += wiring->learned[n];
        if (wiring->places[n].there)
            sr_operand_place(which, in, moved(sr_operand_data(which, in), shown[from], host[from]));
    }
    o->data = host[O];
    float *vectors;
    SR_TRY(sr_alloc((void **)&vectors, (size_t)learned, sizeof *vectors));
    srnn_status status = fetch_vectors(vectors, b->backend->device, in, wiring);
    if (status == SRNN_OK)
        status = b->observer.see(b->observer.context, b->layer, in, *o);
    free(vectors);
    return status;
}

static srnn_status show(const sr_block *b, const sr_layer_weights *weights, void *saved) {
    srnn_device *device = b->backend->device;
    srnn_tensor o;
    srnn_operands in = sr_attention_layer_operands(b->mixer->attention, &o, weights, saved);
    if (sr_device_is_host(device))
        return b->observer.see(b->observer.context, b->layer, &in, o);
    const sr_layer_arrays arrays =
        sr_layer_arrays_at(b->mixer->attention, &b->mixer->attention->saved, saved, b->rows);
    const sr_matrix shown[SHOWN] = {arrays.projected, arrays.convolved, arrays.o};
    float *host[SHOWN] = {NULL, NULL, NULL};
    srnn_status status = SRNN_OK;
    for (int i = 0; i < SHOWN && status == SRNN_OK; i++)
        if (shown[i].columns)
            status = fetch(&host[i], device, shown[i]);
    if (status == SRNN_OK)
        status = show_copies(b, &in, &o, shown, host);
    if (status == SRNN_OK)
        status = give_back(device, shown[O], host[O]);
    for (int i = 0; i < SHOWN; i++)
        free(host[i]);
    return status;
}

srnn_status sr_block_observe(const sr_block *b, const sr_layer_weights *weights, void *saved) {
    if (b->observer.see && b->mixer->attention)
        SR_TRY(show(b, weights, saved));
    return b->largest ? sr_attention_layer_largest(b->mixer->attention, b->largest, weights, saved)
                      : SRNN_OK;
}
