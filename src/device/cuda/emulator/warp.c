/* warp.c: the collective instructions of a warp, from their definition in the PTX ISA. */
#include "device/cuda/emulator/warp.h"

#include "device/cuda/emulator/races.h"

enum { LANES = SR_EMULATOR_WARP, GROUP = 4 };

void sr_emulator_shuffle(void *const *operands) {
    uint64_t value[LANES];
    for (int lane = 0; lane < LANES; lane++)
        value[lane] = ((const sr_emulated_shuffle *)operands[lane])->value;
    for (int lane = 0; lane < LANES; lane++) {
        sr_emulated_shuffle *operand = operands[lane];
        operand->value = value[operand->from & (LANES - 1)];
    }
}

void sr_emulator_vote(void *const *operands) {
    uint32_t ballot = 0;
    for (int lane = 0; lane < LANES; lane++)
        ballot |= (uint32_t)((const sr_emulated_vote *)operands[lane])->truth << lane;
    for (int lane = 0; lane < LANES; lane++)
        ((sr_emulated_vote *)operands[lane])->ballot = ballot;
}

/* ---- mma ---- */

static float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float bf16_low(uint32_t both) {
    return bits_float(both << 16);
}

static float bf16_high(uint32_t both) {
    return bits_float(both & 0xffff0000u);
}

/* c += A B in every lane's fragments; A is 16 x depth, B depth x 8. */
static void multiply(void *const *operands, const float (*a)[16], const float (*b)[8], int depth) {
    float c[16][8];
    for (int lane = 0; lane < LANES; lane++) {
        const float *mine = ((const sr_emulated_mma *)operands[lane])->c;
        const int g = lane / GROUP, i = lane % GROUP;
        memcpy(&c[g][2 * i], mine, 2 * sizeof *mine);
        memcpy(&c[g + 8][2 * i], mine + 2, 2 * sizeof *mine);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < depth; k++)
            for (int column = 0; column < 8; column++)
                c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < LANES; lane++) {
        float *mine = ((const sr_emulated_mma *)operands[lane])->c;
        const int g = lane / GROUP, i = lane % GROUP;
        memcpy(mine, &c[g][2 * i], 2 * sizeof *mine);
        memcpy(mine + 2, &c[g + 8][2 * i], 2 * sizeof *mine);
    }
}

void sr_emulator_mma_bf16(void *const *operands) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < LANES; lane++) {
        const sr_emulated_mma *operand = operands[lane];
        const int g = lane / GROUP, i = lane % GROUP;
        /* the register: lower or upper rows, left or right columns */
        for (int r = 0; r < 4; r++) {
            float *pair = &a[g + 8 * (r % 2)][2 * i + 8 * (r / 2)];
            pair[0] = bf16_low(operand->a[r]);
            pair[1] = bf16_high(operand->a[r]);
        }
        for (int r = 0; r < 2; r++) {
            b[2 * i + 8 * r][g] = bf16_low(operand->b[r]);
            b[2 * i + 8 * r + 1][g] = bf16_high(operand->b[r]);
        }
    }
    multiply(operands, (const float(*)[16])a, (const float(*)[8])b, 16);
}

/* The bits of a float that the instruction reads. */
static float tf32(uint32_t bits) {
    return bits_float(bits & 0xffffe000u);
}

void sr_emulator_mma_tf32(void *const *operands) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < LANES; lane++) {
        const sr_emulated_mma *operand = operands[lane];
        const int g = lane / GROUP, i = lane % GROUP;
        for (int r = 0; r < 4; r++)
            a[g + 8 * (r % 2)][i + 4 * (r / 2)] = tf32(operand->a[r]);
        for (int r = 0; r < 2; r++)
            b[i + 4 * r][g] = tf32(operand->b[r]);
    }
    multiply(operands, (const float(*)[16])a, (const float(*)[8])b, 8);
}

/* ---- matrices of 8 x 8 numbers of 16 bits ---- */

/* Row r of matrix m: at the address given by the lane responsible for it. */
static char *row_of(void *const *operands, int m, int r, bool write) {
    char *row = ((const sr_emulated_matrices *)operands[8 * m + r])->row;
    if ((uintptr_t)row % 16 != 0)
        sr_emulator_fail("ldmatrix or stmatrix: lane %d's row is at no multiple of 16", 8 * m + r);
    sr_emulator_touch(8 * m + r, row, 16, write);
    return row;
}

void sr_emulator_matrices_load(void *const *operands) {
    const int count = ((const sr_emulated_matrices *)operands[0])->count;
    uint32_t loaded[4][LANES];
    for (int m = 0; m < count; m++)
        for (int r = 0; r < 8; r++)
            memcpy(&loaded[m][GROUP * r], row_of(operands, m, r, false), 16);
    for (int m = 0; m < count; m++)
        for (int lane = 0; lane < LANES; lane++)
            ((const sr_emulated_matrices *)operands[lane])->fragment[m] = loaded[m][lane];
}

void sr_emulator_matrices_load_transposed(void *const *operands) {
    const int count = ((const sr_emulated_matrices *)operands[0])->count;
    for (int m = 0; m < count; m++) {
        uint16_t matrix[8][8];
        for (int r = 0; r < 8; r++)
            memcpy(matrix[r], row_of(operands, m, r, false), 16);
        for (int lane = 0; lane < LANES; lane++) {
            const int g = lane / GROUP, i = lane % GROUP;
            ((const sr_emulated_matrices *)operands[lane])->fragment[m] =
                (uint32_t)matrix[2 * i + 1][g] << 16 | matrix[2 * i][g];
        }
    }
}

void sr_emulator_matrices_store(void *const *operands) {
    const int count = ((const sr_emulated_matrices *)operands[0])->count;
    for (int m = 0; m < count; m++)
        for (int lane = 0; lane < LANES; lane++)
            memcpy(row_of(operands, m, lane / GROUP, true) + 4 * (lane % GROUP),
                   &((const sr_emulated_matrices *)operands[lane])->fragment[m], 4);
}

void sr_emulator_matrices_store_transposed(void *const *operands) {
    const int count = ((const sr_emulated_matrices *)operands[0])->count;
    for (int m = 0; m < count; m++)
        for (int lane = 0; lane < LANES; lane++)
            for (int e = 0; e < 2; e++) {
                const uint32_t pair = ((const sr_emulated_matrices *)operands[lane])->fragment[m];
                const uint16_t number = (uint16_t)(pair >> 16 * e);
                memcpy(row_of(operands, m, 2 * (lane % GROUP) + e, true) + 2 * (lane / GROUP),
                       &number, sizeof number);
            }
}
