// What a GPU achieves, as an entry for `kvdepot plan --catalogue`: FLOP/s by precision over a prefill's matrix
// products, memory bandwidth, and host-device copies by size (pinned and pageable; contiguous, and gathered from slabs
// as KV lies in an engine's memory).
//
//   nvcc -O3 -std=c++20 -o build/gpu_roofline bench/gpu_roofline.cu -ldl       # `make gpu-roofline` where nvcc is
//   build/gpu_roofline NAME > h100-mine.toml
//
// The entry goes to standard output, a readable table to standard error. Matrix products come from cuBLAS, which is
// loaded when the program runs: the toolkit's headers are not needed to build it. Precisions that cuBLAS's plain
// interface has no type for (FP8) are not measured, and the entry leaves them out: add them from the data sheet with
// measured = false. Each figure is the median of kRepeats timed runs after a warm-up; its spread is the entry's error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <library_types.h>

namespace {

constexpr int kRepeats = 15;
constexpr int kTokens = 8192;  // rows of the products: one prefill chunk
constexpr int kHidden = 8192;  // columns: a 70B model's projections
constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
constexpr std::size_t kGatherBytes = std::size_t{64} << 20;

[[noreturn]] void fail(const char* what, const char* why) {
  std::fprintf(stderr, "gpu_roofline: error: %s: %s\n", what, why);
  std::exit(1);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(what, cudaGetErrorString(error));
}

struct Measured {
  double median = 0;
  double spread = 0;  // half of the middle 80 %, relative
};

// Rate of `work` units per run, from events around each run.
Measured rate(double work, const std::function<void()>& run) {
  cudaEvent_t start;
  cudaEvent_t stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  for (int i = 0; i < 3; ++i) run();
  std::vector<double> rates;
  for (int i = 0; i < kRepeats; ++i) {
    check(cudaEventRecord(start), "event");
    run();
    check(cudaEventRecord(stop), "event");
    check(cudaEventSynchronize(stop), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop), "event");
    rates.push_back(work / (static_cast<double>(ms) * 1e-3));
  }
  check(cudaEventDestroy(start), "event");
  check(cudaEventDestroy(stop), "event");
  std::sort(rates.begin(), rates.end());
  const double median = rates[kRepeats / 2];
  return {median, (rates[kRepeats * 9 / 10] - rates[kRepeats / 10]) / 2 / median};
}

// The three cuBLAS functions that are needed, by their published C interface.
struct Cublas {
  using Handle = void*;
  int (*create)(Handle*) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType,
              int, const void*, void*, cudaDataType, int, int, int) = nullptr;
  Handle handle = nullptr;

  Cublas() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so", "libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}) {
      library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
      if (library != nullptr) break;
    }
    if (library == nullptr) fail("cuBLAS", "libcublas.so is not found: install the CUDA toolkit's libraries");
    create = reinterpret_cast<decltype(create)>(dlsym(library, "cublasCreate_v2"));
    gemm = reinterpret_cast<decltype(gemm)>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || gemm == nullptr || create(&handle) != 0) fail("cuBLAS", "it does not start");
  }
};

struct Precision {
  const char* name;  // as the catalogue calls it
  cudaDataType input;
  cudaDataType output;
  int compute;        // cublasComputeType_t
  std::size_t bytes;  // of an input element
  std::size_t out_bytes;
};
constexpr int kCompute32F = 68;
constexpr int kCompute32I = 72;
constexpr std::array<Precision, 4> kPrecisions{{{"bf16", CUDA_R_16BF, CUDA_R_16BF, kCompute32F, 2, 2},
                                                {"fp16", CUDA_R_16F, CUDA_R_16F, kCompute32F, 2, 2},
                                                {"int8", CUDA_R_8I, CUDA_R_32I, kCompute32I, 1, 4},
                                                {"fp32", CUDA_R_32F, CUDA_R_32F, kCompute32F, 4, 4}}};

// FLOP/s of C[tokens, hidden] = A[tokens, hidden] * B[hidden, hidden]; nothing where cuBLAS refuses the types.
Measured product(const Cublas& cublas, const Precision& p, void* a, void* b, void* c) {
  const float one_f = 1;
  const float zero_f = 0;
  const int one_i = 1;
  const int zero_i = 0;
  const bool integer = p.compute == kCompute32I;
  const void* one = integer ? static_cast<const void*>(&one_i) : &one_f;
  const void* zero = integer ? static_cast<const void*>(&zero_i) : &zero_f;
  int status = 0;
  const auto run = [&] {
    status |= cublas.gemm(cublas.handle, 1, 0, kHidden, kTokens, kHidden, one, b, p.input, kHidden, a, p.input, kHidden,
                          zero, c, p.output, kHidden, p.compute, -1);
  };
  run();
  check(cudaDeviceSynchronize(), p.name);
  if (status != 0) return {};
  return rate(2.0 * kTokens * kHidden * kHidden, run);
}

__global__ void read_all(const float4* from, std::size_t count, float* sink) {
  float sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const float4 value = from[i];
    sum += value.x + value.y + value.z + value.w;
  }
  if (sum == 1.2345f) *sink = sum;  // never: keeps the loads
}

// Fills memory with 16-bit words that are numbers between 0.5 and 2, of either sign, as bf16 and fp32, and harmless as
// the other types: zeros would let the chip save power and flatter it.
__global__ void fill(unsigned short* words, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto hash = static_cast<unsigned>(i * 2654435761u) ^ static_cast<unsigned>(i >> 13);
    words[i] = static_cast<unsigned short>(0x3F00u | (hash >> 7 & 0xFFu) | (hash & 0x8000u));
  }
}

// Moves slabs between scattered places in device memory and one contiguous range, one block of threads for each.
__global__ void gather(const char* const* slabs, std::size_t slab_bytes, char* to) {
  const auto* from = reinterpret_cast<const uint4*>(slabs[blockIdx.x]);
  auto* into = reinterpret_cast<uint4*>(to + blockIdx.x * slab_bytes);
  for (std::size_t i = threadIdx.x; i < slab_bytes / sizeof(uint4); i += blockDim.x) into[i] = from[i];
}

struct Copies {
  void* device = nullptr;
  void* pinned = nullptr;
  void* pageable = nullptr;
};

void print_copy(const char* what, std::size_t bytes, const Measured& m) {
  std::fprintf(stderr, "  %-42s %9zu B %8.2f GB/s (spread %.0f %%)\n", what, bytes, m.median * 1e-9, m.spread * 100);
}

// Host to device by size. Returns the pinned rates as the points of a [[link]].
std::string copies_by_size(const Copies& at) {
  std::string points;
  for (std::size_t bytes = 16 << 10; bytes <= kGatherBytes; bytes *= 4) {
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
      return rate(static_cast<double>(bytes), [=] { check(cudaMemcpyAsync(to, from, bytes, kind), "copy"); });
    };
    const Measured in = copy(at.device, at.pinned, cudaMemcpyHostToDevice);
    print_copy("host to device, pinned", bytes, in);
    print_copy("device to host, pinned", bytes, copy(at.pinned, at.device, cudaMemcpyDeviceToHost));
    print_copy("host to device, pageable", bytes, copy(at.device, at.pageable, cudaMemcpyHostToDevice));
    char point[64];
    std::snprintf(point, sizeof(point), "%s[%zu, %.3e]", points.empty() ? "" : ", ", bytes, in.median);
    points += point;
  }
  return points;
}

// 64 MiB as slabs: a copy for each, against one kernel that gathers them and one copy.
void copies_of_slabs(const Copies& at, void* staging) {
  for (std::size_t slab = 32 << 10; slab <= std::size_t{96} << 10; slab += 32 << 10) {
    const std::size_t count = kGatherBytes / 2 / slab;
    std::vector<const char*> slabs(count);
    for (std::size_t i = 0; i < count; ++i) slabs[i] = static_cast<char*>(at.device) + (i * 7919 % count) * slab;
    const char** list = nullptr;
    check(cudaMalloc(&list, count * sizeof(char*)), "memory");
    check(cudaMemcpy(list, slabs.data(), count * sizeof(char*), cudaMemcpyHostToDevice), "copy");
    const auto bytes = static_cast<double>(count * slab);
    print_copy(
        "device to host, a copy for each slab", slab, rate(bytes, [&] {
          for (std::size_t i = 0; i < count; ++i) {
            check(cudaMemcpyAsync(static_cast<char*>(at.pinned) + i * slab, slabs[i], slab, cudaMemcpyDeviceToHost),
                  "copy");
          }
        }));
    print_copy("device to host, gathered by a kernel", slab, rate(bytes, [&] {
                 gather<<<static_cast<unsigned>(count), 256>>>(list, slab, static_cast<char*>(staging));
                 check(cudaMemcpyAsync(at.pinned, staging, count * slab, cudaMemcpyDeviceToHost), "copy");
               }));
    check(cudaFree(list), "memory");
  }
}

// Peak bytes/s by the device's own clock and bus: what the achieved share is of.
double peak_memory(int device) {
  int khz = 0;
  int bits = 0;
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device), "attribute");
  check(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device), "attribute");
  return 2.0 * khz * 1e3 * bits / 8;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage", "gpu_roofline NAME > entry.toml");
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "no GPU");
  check(cudaGetDeviceProperties(&properties, device), "no GPU");
  std::fprintf(stderr, "%s\n", properties.name);

  void* a = nullptr;
  void* b = nullptr;
  void* c = nullptr;
  check(cudaMalloc(&a, kMemoryBytes), "memory");
  check(cudaMalloc(&b, std::size_t{4} * kHidden * kHidden), "memory");
  check(cudaMalloc(&c, std::size_t{4} * kTokens * kHidden), "memory");
  fill<<<1024, 256>>>(static_cast<unsigned short*>(a), kMemoryBytes / 2);
  fill<<<1024, 256>>>(static_cast<unsigned short*>(b), std::size_t{2} * kHidden * kHidden);
  check(cudaDeviceSynchronize(), "fill");

  const Cublas cublas;
  std::string flops;
  double error = 0.02;  // at least: what runs of this program differ by
  for (const Precision& p : kPrecisions) {
    const Measured m = product(cublas, p, a, b, c);
    std::fprintf(stderr, "  %-42s %8.1f TFLOP/s (spread %.0f %%)\n", p.name, m.median * 1e-12, m.spread * 100);
    if (m.median <= 0 || std::string(p.name) == "fp16") continue;  // the catalogue counts fp16 as bf16
    char entry[64];
    std::snprintf(entry, sizeof(entry), "%s%s = %.4e", flops.empty() ? "" : ", ", p.name, m.median);
    flops += entry;
    error = std::max(error, m.spread);
  }
  const Measured memory = rate(static_cast<double>(kMemoryBytes), [&] {
    read_all<<<static_cast<unsigned>(properties.multiProcessorCount) * 16, 512>>>(
        static_cast<const float4*>(a), kMemoryBytes / sizeof(float4), static_cast<float*>(c));
  });
  std::fprintf(stderr, "  %-42s %8.1f GB/s (spread %.0f %%)\n", "memory, read", memory.median * 1e-9,
               memory.spread * 100);
  error = std::max(error, memory.spread);

  Copies at{a, nullptr, std::malloc(kGatherBytes)};
  if (at.pageable == nullptr) fail("memory", "64 MiB on the host");
  std::fill_n(static_cast<char*>(at.pageable), kGatherBytes, 1);
  check(cudaMallocHost(&at.pinned, kGatherBytes), "pinned memory");
  const std::string points = copies_by_size(at);
  copies_of_slabs(at, static_cast<char*>(a) + kMemoryBytes / 2);
  check(cudaGetLastError(), "kernel");

  const double peak = std::max(peak_memory(device), memory.median);
  std::printf("[[device]]\nname = \"%s\"\nmemory_bytes = %.4e\nmemory_bytes_per_s = %.4e\nflops_per_s = {%s}\n",
              argv[1], static_cast<double>(properties.totalGlobalMem), peak, flops.c_str());
  std::printf(
      "compute_efficiency = 1.0  # the FLOP/s above are achieved ones\nmemory_efficiency = %.3f\nerror = %.3f\n"
      "layer_s = 32.1e-6  # not measured here: inference-sim's fit\nstep_s = 126e-6\nmeasured = true\n"
      "source = \"bench/gpu_roofline.cu on %s: products of %d x %d x %d\"\n\n",
      memory.median / peak, error, properties.name, kTokens, kHidden, kHidden);
  std::printf(
      "[[link]]\nname = \"%s-host\"\nbytes_per_s = [%s]\nmeasured = true\nsource = \"bench/gpu_roofline.cu on %s: "
      "pinned copies to the device\"\n",
      argv[1], points.c_str(), properties.name);
  return 0;
}
