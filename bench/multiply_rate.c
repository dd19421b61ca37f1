// How many 16-bit products a core makes a second, in a loop of nothing else: plainly, and with half the multiplications as
// additions (crates/ops/src/cpu/x86/winograd.rs), word by word and as numbers. Twelve sums of sixteen, as the kernels have.
//   cc -O1 -mavx512f -mavx512bw -mavx512vnni bench/multiply_rate.c -o multiply_rate && taskset -c 1 ./multiply_rate
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 12, REPEATS = 100000, ROUNDS = 30 };

// Two pairs of weights are in zmm30 and zmm31; %1 points at activations. 64 products each.
#define PLAIN(sum, at)                                  \
    "vpdpwssd " at "(%1)%{1to16%}, %%zmm30, " sum "\n"  \
    "vpdpwssd " at "+4(%1)%{1to16%}, %%zmm31, " sum "\n"
#define WORDS(sum, at)                     \
    "vpbroadcastd " at "(%1), %%zmm28\n"   \
    "vpbroadcastd " at "+4(%1), %%zmm29\n" \
    "vpaddw %%zmm28, %%zmm31, %%zmm28\n"   \
    "vpaddw %%zmm29, %%zmm30, %%zmm29\n"   \
    "vpdpwssd %%zmm28, %%zmm29, " sum "\n"
#define NUMBERS(sum, at)                                \
    "vpaddd " at "(%1)%{1to16%}, %%zmm31, %%zmm28\n"    \
    "vpaddd " at "+4(%1)%{1to16%}, %%zmm30, %%zmm29\n"  \
    "vpdpwssd %%zmm28, %%zmm29, " sum "\n"
#define TWELVE(one)                                                                                      \
    one("%%zmm0", "0") one("%%zmm1", "64") one("%%zmm2", "128") one("%%zmm3", "192")                     \
    one("%%zmm4", "256") one("%%zmm5", "320") one("%%zmm6", "384") one("%%zmm7", "448")                  \
    one("%%zmm8", "512") one("%%zmm9", "576") one("%%zmm10", "640") one("%%zmm11", "704")
#define KERNEL(name, one)                                                                                 \
    static void name(const int *x) {                                                                      \
        long n = REPEATS;                                                                                 \
        __asm__ volatile("1:\n" TWELVE(one) TWELVE(one) "dec %0\njnz 1b\n"                                \
                         : "+r"(n) : "r"(x)                                                               \
                         : "memory", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", \
                           "zmm9", "zmm10", "zmm11", "zmm28", "zmm29");                                   \
    }
KERNEL(plain, PLAIN)
KERNEL(words, WORDS)
KERNEL(numbers, NUMBERS)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void measure(const char *name, void (*kernel)(const int *), const int *x) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; ++round) {
        const double start = now();
        kernel(x);
        const double took = now() - start;
        best = took < best ? took : best;
    }
    printf("%-8s %6.1f GMAC/s\n", name, 64.0 * 2 * ROWS * REPEATS / best / 1e9);
}

int main(void) {
    int *x = aligned_alloc(64, 64 * ROWS);
    if (!x) return 1;
    memset(x, 0, 64 * ROWS);
    measure("plain", plain, x);
    measure("words", words, x);
    measure("numbers", numbers, x);
    free(x);
    return 0;
}
