// How fast threads read main memory together: `read_bandwidth THREADS` prints bytes per second, the best of 12
// passes over 256 MiB a thread. Each thread reads eight streams at once, as a product over many rows does.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 8, PASSES = 12, MAX_THREADS = 256 };
static const size_t BYTES = (size_t)256 << 20;

static pthread_barrier_t gate;
static volatile uint64_t sink;

static void *work(void *block) {
    const size_t n_words = BYTES / STREAMS / sizeof(uint64_t);
    const uint64_t *words = block;
    for (int pass = 0; pass < PASSES; ++pass) {
        pthread_barrier_wait(&gate);
        // Sixteen words a stream and step: enough sums in flight for the widest vectors.
        uint64_t sums[STREAMS][16] = {{0}};
        for (size_t i = 0; i + 16 <= n_words; i += 16)
            for (int s = 0; s < STREAMS; ++s)
                for (int k = 0; k < 16; ++k) sums[s][k] += words[s * n_words + i + k];
        uint64_t total = 0;
        for (int s = 0; s < STREAMS; ++s)
            for (int k = 0; k < 16; ++k) total += sums[s][k];
        sink = total;
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 1;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "read_bandwidth: error: THREADS must be 1 to %d\n", MAX_THREADS);
        return 2;
    }
    pthread_t threads[MAX_THREADS];
    pthread_barrier_init(&gate, NULL, n_threads + 1);
    for (int i = 0; i < n_threads; ++i) {
        void *block = aligned_alloc(4096, BYTES);
        if (!block) {
            fprintf(stderr, "read_bandwidth: error: no memory\n");
            return 1;
        }
        memset(block, i + 1, BYTES);
        if (pthread_create(&threads[i], NULL, work, block)) return 1;
    }
    double best = 0;
    for (int pass = 0; pass < PASSES; ++pass) {
        double start = now();
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        double rate = BYTES * (double)n_threads / (now() - start);
        if (rate > best) best = rate;
    }
    for (int i = 0; i < n_threads; ++i) pthread_join(threads[i], NULL);
    printf("%.0f\n", best);
    return 0;
}
