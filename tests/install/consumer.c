/* consumer.c: the smallest program that uses the installed library. */
#include <softrnn.h>

#include <stdio.h>

int main(void) {
    printf("softrnn %s\n", srnn_version());
    return 0;
}
