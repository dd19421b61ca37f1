// A HIP program like anybody's: counts the letters of a text on the GPU and compares with the CPU. It knows nothing of the
// emulator it may run on.
//
//   hipcc histogram.cpp -o histogram        (README.md has a line for clang++ alone)
//   crates/gfx/run ./histogram
#include <hip/hip_runtime.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        if (hipError_t error = (call); error != hipSuccess) {                                            \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, hipGetErrorString(error)); \
            return 1;                                                                                    \
        }                                                                                                \
    } while (0)

constexpr unsigned LETTERS = 26;

// Each workgroup counts in shared memory, then adds what it found to the total.
__global__ void count_letters(const char *text, unsigned n, unsigned *total) {
    __shared__ unsigned here[LETTERS];
    if (threadIdx.x < LETTERS) here[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned letter = (text[i] | 32) - 'a';
        if (letter < LETTERS) atomicAdd(&here[letter], 1u);
    }
    __syncthreads();
    if (threadIdx.x < LETTERS) atomicAdd(&total[threadIdx.x], here[threadIdx.x]);
}

int main() {
    std::string text;
    while (text.size() < 100'000) text += "The quick brown fox jumps over the lazy dog. ";
    std::array<unsigned, LETTERS> want{}, got{};
    for (char c : text)
        if (unsigned letter = (c | 32) - 'a'; letter < LETTERS) want[letter]++;

    hipDeviceProp_t device;
    CHECK(hipGetDeviceProperties(&device, 0));
    char *on_device;
    unsigned *counts;
    CHECK(hipMalloc(&on_device, text.size()));
    CHECK(hipMalloc(&counts, sizeof got));
    CHECK(hipMemcpy(on_device, text.data(), text.size(), hipMemcpyHostToDevice));
    CHECK(hipMemset(counts, 0, sizeof got));
    count_letters<<<8, 256>>>(on_device, unsigned(text.size()), counts);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(got.data(), counts, sizeof got, hipMemcpyDeviceToHost));
    CHECK(hipFree(on_device));
    CHECK(hipFree(counts));
    std::printf("%s: %zu characters, %u times e: %s\n", device.gcnArchName, text.size(), got['e' - 'a'],
                got == want ? "as on the CPU" : "WRONG");
    return got == want ? 0 : 1;
}
