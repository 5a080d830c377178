// What a GPU achieves, as entries for `kvdepot plan --catalogue`: FLOP/s by precision over a prefill's matrix products,
// memory bandwidth, and host-device copies by size, both ways (pinned and pageable; contiguous, and slabs as KV lies in
// an engine's memory: a copy for each, or gathered by a kernel).
//
//   nvcc -O3 -std=c++20 -o build/gpu_roofline bench/gpu_roofline.cu -ldl       # `make gpu-roofline` where nvcc is
//   build/gpu_roofline NAME > h100-mine.toml
//
// The entries go to standard output, a readable table to standard error. Matrix products come from cuBLAS, those in FP8
// from cuBLASLt; both are loaded when the program runs: their headers are not needed to build it. A precision that the
// GPU or the library does not have is left out of the entry. What is not measured here stands in the entry's
// data_sheet. Each figure is the median of kRepeats timed runs after a warm-up; its spread is the entry's error.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <library_types.h>

namespace {

constexpr int kRepeats = 15;
// Of the entry: products alone are not a prefill. Whole ones of 4,096 tokens took 14 to 23 % (8B) and 29 to 32 % (1B)
// longer on an H100 than they say; runs of this program differ by 5 % (docs/results/gpu.md).
constexpr double kErrorLeast = 0.3;
// Runs of products that do not count: an idle GPU's clocks are low, and a busy one's give way to its power limit.
constexpr double kWarmSeconds = 0.25;
constexpr int kTokens = 8192;  // rows of the products: one prefill chunk
constexpr int kHidden = 8192;  // columns: a 70B model's projections
constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
constexpr std::size_t kGatherBytes = std::size_t{64} << 20;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

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

// Rate of `work` units per run, from events around each run, behind `warm_s` seconds of runs that do not count.
Measured rate(double work, const std::function<void()>& run, double warm_s = 0) {
  cudaEvent_t start;
  cudaEvent_t stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  const auto began = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 3; ++i) run();
    check(cudaDeviceSynchronize(), "warm-up");
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < warm_s);
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

// The first of the libraries that is there; nullptr when none is.
void* open_library(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

// The three cuBLAS functions that are needed, by their published C interface.
struct Cublas {
  using Handle = void*;
  int (*create)(Handle*) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType,
              int, const void*, void*, cudaDataType, int, int, int) = nullptr;
  Handle handle = nullptr;

  Cublas() {
    void* library = open_library({"libcublas.so", "libcublas.so.13", "libcublas.so.12", "libcublas.so.11"});
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
  return rate(2.0 * kTokens * kHidden * kHidden, run, kWarmSeconds);
}

// A product in FP8 (E4M3 in, bf16 out, sums in fp32), which only cuBLASLt has. Functions by their published C
// interface: descriptors are opaque pointers, types and attributes the numbers of library_types.h and cublasLt.h.
class CublasLt {
 public:
  CublasLt() {
    void* library = open_library({"libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"});
    if (library == nullptr) return;
    bool all = find(library, "cublasLtCreate", create_);
    all &= find(library, "cublasLtMatmulDescCreate", desc_create_);
    all &= find(library, "cublasLtMatmulDescSetAttribute", desc_set_);
    all &= find(library, "cublasLtMatrixLayoutCreate", layout_create_);
    all &= find(library, "cublasLtMatmulPreferenceCreate", preference_create_);
    all &= find(library, "cublasLtMatmulPreferenceSetAttribute", preference_set_);
    all &= find(library, "cublasLtMatmulAlgoGetHeuristic", heuristic_);
    all &= find(library, "cublasLtMatmul", matmul_);
    ready_ = all && create_(&handle_) == 0;
  }

  // FLOP/s of C[tokens, hidden] = A[tokens, hidden] * B[hidden, hidden]^T; nothing where FP8 is refused.
  Measured fp8(const void* a, const void* b, void* c) {
    if (!ready_) return {};
    void* desc = nullptr;
    void* weights = nullptr;
    void* tokens = nullptr;
    void* out = nullptr;
    void* preference = nullptr;
    const std::int32_t transposed = 1;
    const std::int32_t plain = 0;
    const std::int8_t fast = 1;  // accumulates as engines let it; an older library may not know it
    const float one = 1;
    const float zero = 0;
    void* scale = nullptr;  // of both inputs, on the device
    void* workspace = nullptr;
    check(cudaMalloc(&scale, sizeof(one)), "memory");
    check(cudaMemcpy(scale, &one, sizeof(one), cudaMemcpyHostToDevice), "copy");
    check(cudaMalloc(&workspace, kWorkspaceBytes), "memory");
    const std::uint64_t workspace_bytes = kWorkspaceBytes;
    int status = desc_create_(&desc, kCompute32F, kReal32F);
    status |= desc_set_(desc, kTransposeA, &transposed, sizeof(transposed));
    status |= desc_set_(desc, kTransposeB, &plain, sizeof(plain));
    status |= desc_set_(desc, kScaleA, &scale, sizeof(scale));
    status |= desc_set_(desc, kScaleB, &scale, sizeof(scale));
    (void)desc_set_(desc, kFastAccumulation, &fast, sizeof(fast));
    // Columns first: a matrix of rows of kHidden is one of columns of kHidden, transposed.
    status |= layout_create_(&weights, kReal8E4M3, kHidden, kHidden, kHidden);
    status |= layout_create_(&tokens, kReal8E4M3, kHidden, kTokens, kHidden);
    status |= layout_create_(&out, kReal16B, kHidden, kTokens, kHidden);
    status |= preference_create_(&preference);
    status |= preference_set_(preference, kWorkspaceMax, &workspace_bytes, sizeof(workspace_bytes));
    Heuristic best{};
    int found = 0;
    if (status == 0) {
      status = heuristic_(handle_, desc, weights, tokens, out, out, preference, 1, &best, &found);
    }
    Measured measured;
    if (status == 0 && found > 0) {
      const auto run = [&] {
        status |= matmul_(handle_, desc, &one, b, weights, a, tokens, &zero, c, out, c, out, &best.algorithm, workspace,
                          kWorkspaceBytes, nullptr);
      };
      run();
      if (status == 0 && cudaDeviceSynchronize() == cudaSuccess) {
        measured = rate(2.0 * kTokens * kHidden * kHidden, run, kWarmSeconds);
      }
    }
    check(cudaFree(scale), "memory");
    check(cudaFree(workspace), "memory");
    return status == 0 ? measured : Measured{};
  }

 private:
  static constexpr int kReal32F = 0;
  static constexpr int kReal16B = 14;
  static constexpr int kReal8E4M3 = 28;
  static constexpr int kCompute32F = 68;
  static constexpr int kTransposeA = 3;
  static constexpr int kTransposeB = 4;
  static constexpr int kScaleA = 17;
  static constexpr int kScaleB = 18;
  static constexpr int kFastAccumulation = 25;
  static constexpr int kWorkspaceMax = 1;

  struct Algorithm {
    std::uint64_t data[8];
  };
  struct Heuristic {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
  };

  template <class Function>
  static bool find(void* library, const char* name, Function& into) {
    into = reinterpret_cast<Function>(dlsym(library, name));
    return into != nullptr;
  }

  int (*create_)(void**) = nullptr;
  int (*desc_create_)(void**, int, int) = nullptr;
  int (*desc_set_)(void*, int, const void*, std::size_t) = nullptr;
  int (*layout_create_)(void**, int, std::uint64_t, std::uint64_t, std::int64_t) = nullptr;
  int (*preference_create_)(void**) = nullptr;
  int (*preference_set_)(void*, int, const void*, std::size_t) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*) = nullptr;
  int (*matmul_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                 void*, void*, const Algorithm*, void*, std::size_t, cudaStream_t) = nullptr;
  void* handle_ = nullptr;
  bool ready_ = false;
};

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

// The same for FP8 (E4M3): bytes of either sign between 0.5 and 1.875, where the words above would hold NaNs.
__global__ void fill_fp8(unsigned char* bytes, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto hash = static_cast<unsigned>(i * 2654435761u) ^ static_cast<unsigned>(i >> 13);
    bytes[i] = static_cast<unsigned char>(0x30u | (hash >> 7 & 0x0Fu) | (hash >> 8 & 0x80u));
  }
}

// Moves slabs between scattered places in device memory and one contiguous range, one block of threads for each.
__device__ void move_slab(const char* from, char* to, std::size_t slab_bytes) {
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* into = reinterpret_cast<uint4*>(to);
  for (std::size_t i = threadIdx.x; i < slab_bytes / sizeof(uint4); i += blockDim.x) into[i] = source[i];
}
__global__ void gather(char* const* slabs, std::size_t slab_bytes, char* to) {
  move_slab(slabs[blockIdx.x], to + blockIdx.x * slab_bytes, slab_bytes);
}
__global__ void scatter(char* const* slabs, std::size_t slab_bytes, const char* from) {
  move_slab(from + blockIdx.x * slab_bytes, slabs[blockIdx.x], slab_bytes);
}

struct Copies {
  void* device = nullptr;
  void* pinned = nullptr;
  void* pageable = nullptr;
};

// The points of a [[link]]: bytes/s by size of a request.
struct Points {
  const char* suffix;  // of the entry's name
  const char* what;
  std::string text{};

  void add(std::size_t bytes, const Measured& m) {
    char point[64];
    std::snprintf(point, sizeof(point), "%s[%zu, %.3e]", text.empty() ? "" : ", ", bytes, m.median);
    text += point;
    std::fprintf(stderr, "  %-46s %9zu B %8.2f GB/s (spread %.0f %%)\n", what, bytes, m.median * 1e-9, m.spread * 100);
  }
};

// Contiguous copies by size.
std::vector<Points> copies_by_size(const Copies& at) {
  Points in{"host", "host to device, pinned"};
  Points out{"host-out", "device to host, pinned"};
  Points pageable_in{"host-pageable", "host to device, pageable"};
  Points pageable_out{"host-pageable-out", "device to host, pageable"};
  for (std::size_t bytes = 16 << 10; bytes <= kGatherBytes; bytes *= 4) {
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
      return rate(static_cast<double>(bytes), [=] { check(cudaMemcpyAsync(to, from, bytes, kind), "copy"); });
    };
    in.add(bytes, copy(at.device, at.pinned, cudaMemcpyHostToDevice));
    out.add(bytes, copy(at.pinned, at.device, cudaMemcpyDeviceToHost));
    pageable_in.add(bytes, copy(at.device, at.pageable, cudaMemcpyHostToDevice));
    pageable_out.add(bytes, copy(at.pageable, at.device, cudaMemcpyDeviceToHost));
  }
  return {in, out, pageable_in, pageable_out};
}

// Some 32 MiB as slabs that lie scattered in device memory, from and to pinned memory: a copy for each, against one
// copy and a kernel that gathers or scatters them.
std::vector<Points> copies_of_slabs(const Copies& at, char* staging) {
  Points in{"host-slabs", "host to device, a copy for each slab"};
  Points out{"host-slabs-out", "device to host, a copy for each slab"};
  Points scattered{"host-gathered", "host to device, scattered by a kernel"};
  Points gathered{"host-gathered-out", "device to host, gathered by a kernel"};
  for (std::size_t slab = 32 << 10; slab <= std::size_t{96} << 10; slab += 32 << 10) {
    const std::size_t count = kGatherBytes / 2 / slab;
    const auto blocks = static_cast<unsigned>(count);
    std::vector<char*> slabs(count);
    for (std::size_t i = 0; i < count; ++i) slabs[i] = static_cast<char*>(at.device) + (i * 7919 % count) * slab;
    char** list = nullptr;
    check(cudaMalloc(&list, count * sizeof(char*)), "memory");
    check(cudaMemcpy(list, slabs.data(), count * sizeof(char*), cudaMemcpyHostToDevice), "copy");
    auto* const host = static_cast<char*>(at.pinned);
    const auto bytes = static_cast<double>(count * slab);
    const auto each = [&](bool to_device) {
      return rate(bytes, [&] {
        for (std::size_t i = 0; i < count; ++i) {
          char* const there = host + i * slab;
          check(to_device ? cudaMemcpyAsync(slabs[i], there, slab, cudaMemcpyHostToDevice)
                          : cudaMemcpyAsync(there, slabs[i], slab, cudaMemcpyDeviceToHost),
                "copy");
        }
      });
    };
    in.add(slab, each(true));
    out.add(slab, each(false));
    scattered.add(slab, rate(bytes, [&] {
                    check(cudaMemcpyAsync(staging, host, count * slab, cudaMemcpyHostToDevice), "copy");
                    scatter<<<blocks, 256>>>(list, slab, staging);
                  }));
    gathered.add(slab, rate(bytes, [&] {
                   gather<<<blocks, 256>>>(list, slab, staging);
                   check(cudaMemcpyAsync(host, staging, count * slab, cudaMemcpyDeviceToHost), "copy");
                 }));
    check(cudaFree(list), "memory");
  }
  return {in, out, scattered, gathered};
}

// Peak bytes/s by the device's own clock and bus: what the achieved share is of.
double peak_memory(int device) {
  int khz = 0;
  int bits = 0;
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device), "attribute");
  check(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device), "attribute");
  return 2.0 * khz * 1e3 * bits / 8;
}

// FLOP/s by precision, as the entry's inline table; `error` grows to the widest spread.
std::string flops_by_precision(void* a, void* b, void* c, double& error) {
  std::string flops;
  const auto add = [&](const char* name, const Measured& m) {
    std::fprintf(stderr, "  %-46s %8.1f TFLOP/s (spread %.0f %%)\n", name, m.median * 1e-12, m.spread * 100);
    if (m.median <= 0 || std::string(name) == "fp16") return;  // the catalogue counts fp16 as bf16
    char entry[64];
    std::snprintf(entry, sizeof(entry), "%s%s = %.4e", flops.empty() ? "" : ", ", name, m.median);
    flops += entry;
    error = std::max(error, m.spread);
  };
  const Cublas cublas;
  for (const Precision& p : kPrecisions) add(p.name, product(cublas, p, a, b, c));
  fill_fp8<<<1024, 256>>>(static_cast<unsigned char*>(a), std::size_t{kTokens} * kHidden);
  fill_fp8<<<1024, 256>>>(static_cast<unsigned char*>(b), std::size_t{kHidden} * kHidden);
  check(cudaDeviceSynchronize(), "fill");
  CublasLt lt;
  add("fp8", lt.fp8(a, b, c));
  (void)cudaGetLastError();  // a refusal of FP8 is no error of what follows
  return flops;
}

Copies host_memory(void* device) {
  Copies at{device, nullptr, std::malloc(kGatherBytes)};
  if (at.pageable == nullptr) fail("memory", "64 MiB on the host");
  std::fill_n(static_cast<char*>(at.pageable), kGatherBytes, 1);
  check(cudaMallocHost(&at.pinned, kGatherBytes), "pinned memory");
  std::fill_n(static_cast<char*>(at.pinned), kGatherBytes, 1);
  return at;
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

  double error = kErrorLeast;
  const std::string flops = flops_by_precision(a, b, c, error);
  const Measured memory = rate(static_cast<double>(kMemoryBytes), [&] {
    read_all<<<static_cast<unsigned>(properties.multiProcessorCount) * 16, 512>>>(
        static_cast<const float4*>(a), kMemoryBytes / sizeof(float4), static_cast<float*>(c));
  });
  std::fprintf(stderr, "  %-46s %8.1f GB/s (spread %.0f %%)\n", "memory, read", memory.median * 1e-9,
               memory.spread * 100);
  error = std::max(error, memory.spread);

  const Copies at = host_memory(a);
  std::vector<Points> links = copies_by_size(at);
  for (Points& points : copies_of_slabs(at, static_cast<char*>(a) + kMemoryBytes / 2)) links.push_back(points);
  check(cudaGetLastError(), "kernel");

  const double peak = std::max(peak_memory(device), memory.median);
  std::printf("[[device]]\nname = \"%s\"\nmemory_bytes = %.4e\nmemory_bytes_per_s = %.4e\nflops_per_s = {%s}\n",
              argv[1], static_cast<double>(properties.totalGlobalMem), peak, flops.c_str());
  std::printf(
      "compute_efficiency = 1.0  # the FLOP/s above are achieved ones\nmemory_efficiency = %.3f\nerror = %.3f\n"
      "layer_s = 32.1e-6  # inference-sim's fit, as the next two\nstep_s = 126e-6\nseq_s = 4.4e-6\nmeasured = true\n"
      "data_sheet = [\"memory_bytes_per_s\", \"layer_s\", \"step_s\", \"seq_s\"]\n"
      "source = \"bench/gpu_roofline.cu on %s: products of %d x %d x %d; memory_bytes_per_s is the peak by its "
      "clock and bus\"\n",
      memory.median / peak, error, properties.name, kTokens, kHidden, kHidden);
  for (const Points& points : links) {
    std::printf(
        "\n[[link]]\nname = \"%s-%s\"\nbytes_per_s = [%s]\nmeasured = true\nsource = \"bench/gpu_roofline.cu on %s: "
        "%s\"\n",
        argv[1], points.suffix, points.text.c_str(), properties.name, points.what);
  }
  return 0;
}
