// Device time of CUB's radix sort of 2^N random u32 keys, best of ten: what crates/sort is measured against.
#include <cub/cub.cuh>
#include <cstdio>
#include <cstdlib>
#include <vector>

template <class F> float best_of_ten(F sort) {
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  float best = 1e30f;
  for (int i = 0; i < 10; i++) {
    float ms;
    cudaEventRecord(a);
    sort();
    cudaEventRecord(b);
    cudaEventSynchronize(b);
    cudaEventElapsedTime(&ms, a, b);
    best = ms < best ? ms : best;
  }
  return best;
}

int main(int argc, char **argv) {
  int log2 = argc > 1 ? atoi(argv[1]) : 26;
  size_t n = size_t(1) << log2;
  std::vector<unsigned> keys(n);
  unsigned long long x = 88172645463325252ull;
  for (auto &key : keys) x ^= x << 13, x ^= x >> 7, x ^= x << 17, key = unsigned(x);
  unsigned *in, *out, *values, *values_out;
  for (auto p : {&in, &out, &values, &values_out}) cudaMalloc(p, n * 4);
  cudaMemcpy(in, keys.data(), n * 4, cudaMemcpyHostToDevice);
  size_t bytes = 0, pair_bytes = 0;
  cub::DeviceRadixSort::SortKeys(nullptr, bytes, in, out, n);
  cub::DeviceRadixSort::SortPairs(nullptr, pair_bytes, in, out, values, values_out, n);
  void *temp;
  cudaMalloc(&temp, bytes > pair_bytes ? bytes : pair_bytes);
  float keys_ms = best_of_ten([&] { cub::DeviceRadixSort::SortKeys(temp, bytes, in, out, n); });
  float pairs_ms = best_of_ten([&] { cub::DeviceRadixSort::SortPairs(temp, pair_bytes, in, out, values, values_out, n); });
  printf("CUB keys 2^%d u32: %.3f ms, %.2f Gkeys/s\n", log2, keys_ms, n / keys_ms / 1e6);
  printf("CUB pairs 2^%d u32: %.3f ms, %.2f Gkeys/s\n", log2, pairs_ms, n / pairs_ms / 1e6);
}
