/* lab.c: the smallest program that uses the laboratory. */
#include <softrnn.h>

#include <stdio.h>

int main(void) {
    printf("softrnn %s\n", srnn_version());
    return 0;
}
