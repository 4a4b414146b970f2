/* test_bad_disk.c: each file operation of a command fails once, and the disk is full from each
 * operation on that needs space. */
#include "fault_loop.h"

int main(void) {
    static const fault disk[] = {{SOFTRNN_FAILING_FILES, "EIO", 6},
                                 {SOFTRNN_FAILING_FILES, "ENOSPC", 4}};
    return fault_loop(disk, 2);
}
