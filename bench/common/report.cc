#include "common/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cpu/cpu_info.h"
#include "cpu/isa.h"

namespace specdec::bench {
namespace {

// "12.3 us", three or four digits.
std::string duration(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  char text[32];
  for (const Unit unit : {Unit{1.0, "s"}, Unit{1e-3, "ms"}, Unit{1e-6, "us"}}) {
    if (seconds < unit.seconds) continue;
    std::snprintf(text, sizeof(text), "%.4g %s", seconds / unit.seconds, unit.name);
    return text;
  }
  std::snprintf(text, sizeof(text), "%.3g ns", seconds * 1e9);
  return text;
}

// Every figure of a record under the name it has in the JSON.
Figures figures(const Record& record) {
  Figures out;
  if (record.bytes > 0) {
    const double rate = record.bytes / record.seconds;
    out.emplace_back("gb_per_s", rate * 1e-9);
    if (record.read_rate > 0) {
      out.emplace_back("read_gb_per_s", record.read_rate * 1e-9);
      out.emplace_back("of_read", rate / record.read_rate);
    }
  }
  if (record.flops > 0) {
    const double rate = record.flops / record.seconds;
    out.emplace_back("gflop_per_s", rate * 1e-9);
    if (record.peak_rate > 0) {
      out.emplace_back("peak_gflop_per_s", record.peak_rate * 1e-9);
      out.emplace_back("of_peak", rate / record.peak_rate);
    }
  }
  if (record.read_rate > 0 && record.peak_rate > 0) {
    const double least = std::max(record.bytes / record.read_rate, record.flops / record.peak_rate);
    out.emplace_back("of_roofline", least / record.seconds);
  }
  out.insert(out.end(), record.counters.begin(), record.counters.end());
  std::erase_if(out, [](const auto& figure) { return std::isnan(figure.second); });
  return out;
}

nlohmann::json json_of(const LaunchRecord& launch) {
  nlohmann::json entry = {{"name", launch.name},
                          {"grid", launch.grid},
                          {"threads", launch.threads},
                          {"shared_bytes", launch.shared_bytes},
                          {"starts_early", launch.starts_early},
                          {"lets_next_early", launch.lets_next_early}};
  if (launch.registers > 0) {
    entry["registers"] = launch.registers;
    entry["static_shared_bytes"] = launch.static_shared_bytes;
  }
  for (const auto& [name, value] : launch.work) entry["work"][name] = value;
  return entry;
}

}  // namespace

Report::Report(std::string benchmark, const Options& options)
    : benchmark_(std::move(benchmark)), options_(options) {
  std::printf("%-42s %-30s %4s %3s %10s\n", "kernel", "shape", "M", "thr", "time");
  std::fflush(stdout);  // before what may go wrong
}

void Report::add(const Record& record) {
  records_.push_back(record);
  const std::string rows = record.rows > 0 ? std::to_string(record.rows) : "";
  std::printf("%-42s %-30s %4s %3d %10s", record.kernel.c_str(), record.shape.c_str(), rows.c_str(),
              record.threads, duration(record.seconds).c_str());
  for (const auto& [name, value] : figures(record)) std::printf("  %s %.4g", name.c_str(), value);
  std::printf("\n");
  std::fflush(stdout);
  save();
}

int Report::finish() const {
  if (records_.empty()) {
    std::fprintf(stderr, "no case has '%s' in its name\n", options_.filter.c_str());
    return 1;
  }
  if (save()) return 0;
  std::fprintf(stderr, "cannot write %s\n", options_.json.c_str());
  return 1;
}

bool Report::save() const {
  if (options_.json.empty()) return true;
  nlohmann::json records = nlohmann::json::array();
  for (const Record& record : records_) {
    nlohmann::json& entry = records.emplace_back();
    entry = {{"kernel", record.kernel},
             {"shape", record.shape},
             {"rows", record.rows},
             {"threads", record.threads},
             {"seconds", record.seconds}};
    for (const auto& [name, value] : figures(record)) entry[name] = value;
    if (record.launches.order.empty()) continue;
    for (const LaunchRecord& kind : record.launches.kinds) {
      entry["launches"].push_back(json_of(kind));
    }
    entry["order"] = record.launches.order;
    entry["other_nodes"] = record.launches.num_others;
  }
  // Whole at every moment: the program may be ended in this one.
  const std::string written = options_.json + ".new";
  std::ofstream file(written);
  file << nlohmann::json{{"benchmark", benchmark_},
                         {"device", options_.device},
                         {"cpu", cpu::cpu_model_name()},
                         {"best_isa", cpu::name_of(cpu::best_isa())},
                         {"smoke", options_.smoke},
                         {"facts", facts_},
                         {"records", records}}
              .dump(1)
       << "\n";
  file.close();
  return !file.fail() && std::rename(written.c_str(), options_.json.c_str()) == 0;
}

}  // namespace specdec::bench
