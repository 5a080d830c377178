// Runs a libFuzzer target without libFuzzer: over its committed corpus, then over seeded mutations of it.
//
//   kvd_wire_frame_fuzz [--runs N] [--seed S] [corpus folder or input file]...
//
// Same seed and corpus, same inputs on every machine. When an input makes the target crash it is written to
// ./crash.bin; give that file as the argument to run it alone.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): the name is libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

// Inputs made up here are at most this long; longer ones can only come from the corpus. libFuzzer's default limit.
constexpr size_t kInputBytesMax = 4096;

struct Options {
  uint64_t runs = 0;
  uint64_t seed = 1;
  std::vector<std::filesystem::path> paths;
};

// The input under test, where the signal handler finds it.
const Input* current_input = nullptr;

// Only async-signal-safe calls: the program is in an unknown state.
void save_input_and_die(int signal_number) {
  const int fd = open("crash.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0 && current_input != nullptr) {
    [[maybe_unused]] const ssize_t written = write(fd, current_input->data(), current_input->size());
    close(fd);
  }
  constexpr std::string_view kText = "fuzz replay: crash, input saved in ./crash.bin\n";
  [[maybe_unused]] const ssize_t told = write(STDERR_FILENO, kText.data(), kText.size());
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<Options> parse_options(const std::vector<std::string_view>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--runs" || arguments[i] == "--seed") {
      const auto value = i + 1 < arguments.size() ? parse_number(arguments[i + 1]) : std::nullopt;
      if (!value) {
        return std::nullopt;
      }
      (arguments[i] == "--runs" ? options.runs : options.seed) = *value;
      ++i;
    } else if (arguments[i].starts_with("--")) {
      return std::nullopt;
    } else {
      options.paths.emplace_back(arguments[i]);
    }
  }
  return options;
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Input bytes;
  std::transform(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), std::back_inserter(bytes),
                 [](char c) { return static_cast<uint8_t>(c); });
  return bytes;
}

// Files of all paths, in an order that does not depend on the file system. A path that does not exist adds nothing:
// a target starts out without a corpus.
std::vector<Input> read_corpus(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        files.push_back(entry.path());
      }
    } else if (std::filesystem::exists(path)) {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  std::transform(files.begin(), files.end(), std::back_inserter(corpus), read_file);
  return corpus;
}

size_t pick(std::mt19937_64& random, size_t end) { return static_cast<size_t>(random() % end); }

// Values at which parsers go wrong: edges of lengths and of signs.
constexpr std::array<uint64_t, 8> kEdges = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~uint64_t{0}};

void mutate_once(Input& input, const std::vector<Input>& corpus, std::mt19937_64& random) {
  const size_t at = input.empty() ? 0 : pick(random, input.size());
  const auto place = input.begin() + static_cast<ptrdiff_t>(at);
  switch (pick(random, 7)) {
    case 0: input.resize(at); break;
    case 1: input.insert(place, 1 + pick(random, 16), static_cast<uint8_t>(random())); break;
    case 2:
      if (!corpus.empty()) {
        const Input& other = corpus[pick(random, corpus.size())];
        input.insert(place, other.begin(), other.end());
      }
      break;
    case 3: {
      const uint64_t edge = kEdges[pick(random, kEdges.size())];
      const size_t width = size_t{1} << pick(random, 4);
      for (size_t i = 0; i < width && at + i < input.size(); ++i) {
        input[at + i] = static_cast<uint8_t>(edge >> (8 * i));
      }
      break;
    }
    case 4:
      if (!input.empty()) {
        input.erase(place, place + static_cast<ptrdiff_t>(1 + pick(random, input.size() - at)));
      }
      break;
    default:
      if (!input.empty()) {
        input[at] ^= static_cast<uint8_t>(1U << pick(random, 8));
      }
  }
}

// Half the inputs start from a corpus file, half from random bytes.
Input make_input(const std::vector<Input>& corpus, std::mt19937_64& random) {
  Input input;
  if (!corpus.empty() && pick(random, 2) == 0) {
    input = corpus[pick(random, corpus.size())];
  } else {
    const size_t bytes_max = size_t{1} << pick(random, 13);
    input.resize(pick(random, bytes_max));
    std::generate(input.begin(), input.end(), [&random] { return static_cast<uint8_t>(random()); });
  }
  for (size_t mutations = pick(random, 5); mutations > 0; --mutations) {
    mutate_once(input, corpus, random);
  }
  input.resize(std::min(input.size(), kInputBytesMax));
  return input;
}

void run(const Input& input) {
  current_input = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = parse_options({argv + 1, argv + argc});
  if (!options) {
    std::fprintf(stderr, "usage: %s [--runs N] [--seed S] [corpus folder or input file]...\n", argv[0]);
    return 2;
  }
  for (const int signal_number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal_number, save_input_and_die);
  }
  const auto corpus = read_corpus(options->paths);
  std::printf("fuzz replay: %zu corpus inputs, %llu mutations, seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(options->runs), static_cast<unsigned long long>(options->seed));
  std::fflush(stdout);
  if (corpus.empty() && options->runs == 0) {
    std::fprintf(stderr, "fuzz replay: nothing to run\n");
    return 1;
  }
  for (const auto& input : corpus) {
    run(input);
  }
  std::mt19937_64 random(options->seed);
  for (uint64_t i = 0; i < options->runs; ++i) {
    const Input input = make_input(corpus, random);
    run(input);
  }
  return 0;
}
