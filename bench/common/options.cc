#include "common/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "core/thread_pool.h"

namespace specdec::bench {
namespace {

constexpr const char* kUsage =
    "arguments: --threads=N --cpu_isa=NAME --dtype=bfloat16|float32 --format=act|int8|...\n"
    "           --filter=PART_OF_A_NAME --json=FILE --smoke\n"
    "on GPUs:   --device=cuda|emulated --budget=SECONDS --nondeterministic --rows=N,N,...\n"
    "           --launch=WORD,WORD,... (how kernels are launched: SPECDEC_CUDA_LAUNCH)\n"
    "           --list-launches (measures nothing; needs no GPU, but the emulated device)\n";

[[noreturn]] void refuse(const std::string& argument) {
  std::fprintf(stderr, "bad argument: %s\n%s", argument.c_str(), kUsage);
  std::exit(2);
}

int positive(const std::string& argument, const std::string& value) {
  char* end = nullptr;
  const long number = std::strtol(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || number < 1 || number > 4096) refuse(argument);
  return static_cast<int>(number);
}

std::vector<int> positive_numbers(const std::string& argument, const std::string& values) {
  std::vector<int> numbers;
  std::istringstream stream(values);
  for (std::string value; std::getline(stream, value, ',');) {
    numbers.push_back(positive(argument, value));
  }
  if (numbers.empty()) refuse(argument);
  return numbers;
}

WeightFormat format_of(const std::string& argument, const std::string& value) {
  for (int i = 0; i <= static_cast<int>(WeightFormat::kFp8Grouped); ++i) {
    if (name_of(static_cast<WeightFormat>(i)) == value) return static_cast<WeightFormat>(i);
  }
  refuse(argument);
}

}  // namespace

bool is_dummy(const std::string& load_format) {
  if (load_format != "auto" && load_format != "dummy") refuse("--load_format=" + load_format);
  return load_format == "dummy";
}

Options parse_options(int argc, char** argv, std::initializer_list<const char*> devices) {
  Options options;
  options.device = *devices.begin();
  options.num_threads = ThreadPool::default_num_threads();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view name = std::string_view(argument).substr(0, equals);
    const std::string value = equals < argument.size() ? argument.substr(equals + 1) : "";
    if (name == "--threads") {
      options.num_threads = positive(argument, value);
    } else if (name == "--device" &&
               std::find(devices.begin(), devices.end(), value) != devices.end()) {
      options.device = value;
    } else if (name == "--budget") {
      options.budget_seconds = positive(argument, value);
    } else if (name == "--cpu_isa") {
      options.cpu_isa = value;
    } else if (name == "--dtype" && (value == "bfloat16" || value == "float32")) {
      options.dtype = value == "float32" ? DType::kF32 : DType::kBF16;
    } else if (name == "--format") {
      options.format = format_of(argument, value);
    } else if (name == "--filter") {
      options.filter = value;
    } else if (name == "--json" && !value.empty()) {
      options.json = value;
    } else if (argument == "--nondeterministic") {
      options.deterministic = false;
    } else if (name == "--rows") {
      options.rows = positive_numbers(argument, value);
    } else if (name == "--launch") {
      options.launch = value;
    } else if (argument == "--list-launches") {
      options.list_launches = true;
      options.device = "emulated";
    } else if (argument == "--smoke") {
      options.smoke = true;
    } else if (argument == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else {
      refuse(argument);
    }
  }
  return options;
}

}  // namespace specdec::bench
