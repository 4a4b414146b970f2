/* test.h: what every test program includes. */
#ifndef SR_TESTS_TEST_H
#define SR_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
