/* attend.c: `softrnn attend`, one attention call on tensors from a file. */
#include "cli/attention/attend.h"

#include "base/memory.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "equation/facts.h"
#include "verify/call.h"

#include <stdio.h>
#include <string.h>

static bool is_floating(sr_dtype dtype) {
    switch (dtype) {
    case SR_DTYPE_F32:
    case SR_DTYPE_F64:
    case SR_DTYPE_F16:
    case SR_DTYPE_BF16:
        return true;
    case SR_DTYPE_I64:
    case SR_DTYPE_I32:
    case SR_DTYPE_I16:
    case SR_DTYPE_I8:
    case SR_DTYPE_U8:
    case SR_DTYPE_BOOL:
        return false;
    }
    return false;
}

srnn_status attend_require_rank(const sr_tensor **tensor, const attend_request *request,
                                const sr_safetensors *in, const char *name, int rank) {
    SR_TRY(sr_safetensors_require(tensor, in, name));
    if (!is_floating((*tensor)->dtype))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: tensor '%s' holds %s; give F32, F64, F16 or BF16",
                       request->in_path, name, sr_dtype_name((*tensor)->dtype));
    if ((*tensor)->rank != rank)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: tensor '%s' has %d dimensions instead of %d",
                       request->in_path, name, (*tensor)->rank, rank);
    return SRNN_OK;
}

srnn_status attend_require(const sr_tensor **tensor, const attend_request *request,
                           const sr_safetensors *in, const char *name, int rank,
                           const int64_t *shape) {
    SR_TRY(attend_require_rank(tensor, request, in, name, rank));
    if (sr_tensor_has_shape(*tensor, rank, shape))
        return SRNN_OK;
    char has[SR_SHAPE_BYTES], expected[SR_SHAPE_BYTES];
    sr_shape_print(has, rank, (*tensor)->shape);
    sr_shape_print(expected, rank, shape);
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "%s: tensor '%s' has the shape %s; the other tensors require %s",
                   request->in_path, name, has, expected);
}

srnn_status attend_offsets(int64_t **offsets, int64_t *documents, const attend_request *request,
                           const sr_safetensors *in) {
    *offsets = NULL;
    *documents = 0;
    const sr_tensor *tensor = sr_safetensors_find(in, "offsets");
    if (!tensor)
        return SRNN_OK;
    if (tensor->dtype != SR_DTYPE_I64 || tensor->rank != 1 || tensor->count < 2)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: tensor 'offsets' must be I64 with one dimension of documents + 1",
                       request->in_path);
    void *copy;
    SR_TRY(sr_alloc(&copy, tensor->count, sizeof **offsets));
    memcpy(copy, tensor->data, tensor->bytes);
    *offsets = copy;
    *documents = (int64_t)tensor->count - 1;
    return SRNN_OK;
}

srnn_status attend_describe(sr_safetensors_writer *writer, const srnn_attention *attention) {
    char text[SR_ATTENTION_TEXT];
    srnn_attention_print(text, sizeof text, attention);
    return sr_safetensors_writer_metadata(writer, "attention", text);
}

/* Adds the file name to an error about sizes. */
static srnn_status name_file(srnn_status status, const attend_request *request) {
    if (status != SRNN_ERR_ARGUMENT && status != SRNN_ERR_UNSUPPORTED && status != SRNN_ERR_LIMIT)
        return status;
    char detail[768];
    snprintf(detail, sizeof detail, "%s", srnn_error_detail());
    return SR_FAIL(status == SRNN_ERR_ARGUMENT ? SRNN_ERR_FORMAT : status, "%s: %s",
                   request->in_path, detail);
}

static srnn_status attend(const attend_request *request) {
    sr_safetensors *in;
    SR_TRY(sr_safetensors_open(&in, request->in_path));
    bool layer = sr_safetensors_find(in, "x") != NULL;
    srnn_status status = layer ? attend_layer(request, in) : attend_heads(request, in);
    sr_safetensors_free(in);
    return name_file(status, request);
}

/* In the order of srnn_dtype. */
static const char *const dtype_words[] = {"float", "double", "bf16", NULL};

/* On the requested device. */
static srnn_status attend_on(attend_request *request, const char *device) {
    SR_TRY(srnn_device_open(&request->problem.device, device));
    const srnn_status status = attend(request);
    srnn_device_close(request->problem.device);
    return status;
}

int command_attend(int argc, char **argv) {
    const char *attention = "softmax", *device = "cpu";
    int form = SRNN_FORM_AUTO, dtype = SRNN_F32;
    attend_request request = {0};
    const command_option options[] = {
        OPTION_TEXT("--attention", &attention, "SPEC", "a variant: a name or a text form"),
        OPTION_TEXT("--in", &request.in_path, "FILE", "safetensors file to read"),
        OPTION_TEXT("--out", &request.out_path, "FILE", "safetensors file to write"),
        OPTION_FLAG("--backward", &request.backward, "gradients too"),
        OPTION_CHOICE("--form", &form, form_words, "FORM", "how to compute"),
        OPTION_INTEGER("--chunk", &request.problem.chunk, 0, 1 << 20, "N",
                       "tokens in a chunk; 0: chosen"),
        OPTION_TEXT("--kernel", &request.problem.kernel, "NAME", "this kernel and no other"),
        OPTION_INTEGER("--threads", &request.problem.threads, 0, 1024, "N",
                       "threads to use; 0: all cores"),
        OPTION_CHOICE("--dtype", &dtype, dtype_words, "TYPE", "numbers to compute with"),
        OPTION_DEVICE(&device),
    };
    const command_line line = {
        .usage = "softrnn attend --attention SPEC --in FILE --out FILE [options]",
        .purpose =
            "One attention call on tensors from a safetensors file.\n\n"
            "The equation alone: q (B, H, T, D), k (B, Hkv, T, D), v (B, Hkv, T, Dv), position "
            "already applied:\n"
            "no rotary embedding and no convolution is done here. Where the variant has them:\n"
            "value_gate (B, Hkv, T), output_gate (B, H, T), decay (B, Hkv, T), write_gate (B, Hkv, "
            "T),\n"
            "level_gate (B, H, T, levels), pool_gate, skip, all before their sigmoid or other "
            "function;\n"
            "norm_weight (Dv), norm_bias (Dv), value_power, a_log, dt_bias (Hkv), skip_weight "
            "(H),\n"
            "level_scale (H, levels), sinks (H); with decay=given and write_gate=given decay and\n"
            "write_gate are the numbers themselves; the shapes with share=qk and wide gates: "
            "softrnn.h.\n"
            "Packed documents: offsets (documents + 1) of I64. For --backward: dy (or do), (B, H, "
            "T, Dv).\n"
            "Writes y (B, H, T, Dv) and the gradients dq, dk, dv, d.value_gate, d.norm_weight "
            "...\n\n"
            "A whole layer, if the file has x (B, T, C): its weights under their names in\n"
            "checkpoints (q_proj.weight, out_gate_proj.bias, out_norm.weight, conv1d.weight,\n"
            "norm_const ..., with or without a prefix such as model.layers.0.self_attn.), dy\n"
            "(B, T, C) for --backward, and metadata num_attention_heads, num_key_value_heads\n"
            "(default: as many; with share=qk n_groups, default: 1), head_dim (default: C / "
            "heads,\n"
            "or as the shapes say), rope_theta (default: 10000).\n"
            "Writes y, dx and d.<name> of every weight. Empty front tokens are the model's: x has\n"
            "them already.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples =
            "  softrnn attend --attention norm --in qkv.safetensors --out y.safetensors\n"
            "  softrnn attend --attention order:2 --form chunked --backward --in a --out b\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!request.in_path || !request.out_path)
        return command_refuse("missing %s\nUsage: %s", request.in_path ? "--out" : "--in",
                              line.usage);
    request.problem.form = (srnn_form)form;
    request.problem.dtype = (srnn_dtype)dtype;
    srnn_status status = srnn_attention_parse(&request.problem.attention, attention);
    return command_report(status == SRNN_OK ? attend_on(&request, device) : status);
}
