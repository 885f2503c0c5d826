#include "common/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/str_cat.h"
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

// Each says whether the text is such a value.
bool read(const std::string& text, int, bool* to) {
  *to = true;
  return text.empty();
}
bool read(const std::string& text, int least, int* to) {
  const char* const end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, *to);
  return error == std::errc() && read_to == end && *to >= least;
}
bool read(const std::string& text, int least, std::vector<int>* to) {
  to->clear();
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    if (!read(item, least, &to->emplace_back())) return false;
  }
  return !to->empty();
}
bool read(const std::string& text, int, std::string* to) {
  *to = text;
  return true;
}
bool read(const std::string& text, int, std::optional<std::string>* to) {
  *to = text;
  return true;
}
bool read(const std::string& text, int, DType* to) {
  *to = text == "float32" ? DType::kF32 : DType::kBF16;
  return name_of(*to) == text;
}
template <class Enum>
  requires(!kEnumNames<Enum>.empty())
bool read(const std::string& text, int, Enum* to) {
  const std::optional<Enum> value = value_of<Enum>(text);
  if (value.has_value()) *to = *value;
  return value.has_value();
}

}  // namespace

Options parse_options(int argc, char** argv, std::initializer_list<const char*> devices,
                      const std::vector<Argument>& own) {
  Options options;
  options.device = *devices.begin();
  options.num_threads = ThreadPool::default_num_threads();
  std::vector<Argument> known = own;
  known.insert(known.end(), {{"--threads", &options.num_threads},
                             {"--device", &options.device},
                             {"--budget", &options.budget_seconds},
                             {"--cpu_isa", &options.cpu_isa},
                             {"--dtype", &options.dtype},
                             {"--format", &options.format},
                             {"--filter", &options.filter},
                             {"--json", &options.json},
                             {"--nondeterministic", &options.nondeterministic},
                             {"--rows", &options.rows},
                             {"--launch", &options.launch},
                             {"--list-launches", &options.list_launches},
                             {"--smoke", &options.smoke}});
  std::vector<std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string& name = given.emplace_back(argument.substr(0, equals));
    const std::string value = equals < argument.size() ? argument.substr(equals + 1) : "";
    const auto to = std::ranges::find(known, name, &Argument::name);
    const auto takes = [&](auto* destination) { return read(value, to->least, destination); };
    if (to == known.end() || !std::visit(takes, to->destination)) refuse(argument);
  }
  for (const Argument& argument : own) {
    if (!argument.is_needed || std::ranges::find(given, argument.name) != given.end()) continue;
    refuse(str_cat("none; ", argument.name, "=... is needed"));
  }
  if (options.list_launches) options.device = "emulated";
  if (std::ranges::find(devices, options.device) == devices.end()) {
    refuse("--device=" + options.device);
  }
  return options;
}

std::unique_ptr<Backend> make_cpu_backend(const Options& options) {
  return make_backend({.device = "cpu",
                       .cpu_isa = options.cpu_isa,
                       .num_threads = options.num_threads,
                       .act_dtype = options.dtype});
}

}  // namespace specdec::bench
