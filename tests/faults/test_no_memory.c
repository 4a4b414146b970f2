/* test_no_memory.c: each allocation of a command fails once. */
#include "fault_loop.h"

int main(void) {
    static const fault memory = {SOFTRNN_FAILING_ALLOCATOR, "ENOMEM", 24};
    return fault_loop(&memory, 1);
}
