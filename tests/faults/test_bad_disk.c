/* test_bad_disk.c: each call of a command that touches a file fails once in turn, and the disk is
 * full from each one on that needs room. */
#include "fault_loop.h"

int main(void) {
    static const fault disk[] = {{SOFTRNN_FAILING_FILES, "EIO", 6},
                                 {SOFTRNN_FAILING_FILES, "ENOSPC", 4}};
    return fault_loop(disk, 2);
}
