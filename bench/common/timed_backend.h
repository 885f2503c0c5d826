// A backend that adds up where the time of a step goes, operation by operation.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "common/timing.h"
#include "testing/wrapped_backend.h"

namespace specdec::bench {

// Passes everything on to `inner`, which is borrowed.
class TimedBackend final : public testing::WrappedBackend {
 public:
  using WrappedBackend::WrappedBackend;

  // Seconds in each operation since the last call.
  std::map<std::string, double> take_seconds() { return std::exchange(seconds_, {}); }

  void embed(const EmbedArgs& args) override {
    timed("embed", [&] { WrappedBackend::embed(args); });
  }
  void norm(const NormArgs& args) override {
    timed("norm", [&] { WrappedBackend::norm(args); });
  }
  void linear(const LinearArgs& args) override {
    // The head is the one projection that starts from the residual stream and does not return to
    // it.
    const bool is_lm_head = args.in.norm != nullptr;
    timed(is_lm_head ? "head" : "linear", [&] { WrappedBackend::linear(args); });
  }
  void activated_linear(const ActivatedLinearArgs& args) override {
    timed("activated_linear", [&] { WrappedBackend::activated_linear(args); });
  }
  void project_qkv(const QkvArgs& args) override {
    timed("project_qkv", [&] { WrappedBackend::project_qkv(args); });
  }
  void tree_attention(const TreeAttentionArgs& args) override {
    timed("tree_attention", [&] { WrappedBackend::tree_attention(args); });
  }
  void moe(const MoeArgs& args) override {
    timed("moe", [&] { WrappedBackend::moe(args); });
    const auto num_experts = static_cast<double>(args.gate_up.size());
    const auto all = num_experts * static_cast<double>(args.gate_up[0]->size_bytes() +
                                                       args.down[0]->size_bytes());
    const double spared = std::pow(1.0 - args.router.top_k / num_experts, args.num_rows);
    expert_bytes_.all += all;
    expert_bytes_.chosen += all * (1.0 - spared);
  }
  // Of the experts of the operations since the last call, and of those that rows chose: as many as
  // independent rows choose on average; one row's are exact.
  struct ExpertBytes {
    double all = 0.0;
    double chosen = 0.0;
  };
  ExpertBytes take_expert_bytes() { return std::exchange(expert_bytes_, {}); }
  void scale_rows(const ScaleRowsArgs& args) override {
    timed("scale_rows", [&] { WrappedBackend::scale_rows(args); });
  }
  void sparse_gates(const SparseGatesArgs& args) override {
    timed("sparse_gates", [&] { WrappedBackend::sparse_gates(args); });
  }
  void predict_streams(const PredictStreamsArgs& args) override {
    timed("predict_streams", [&] { WrappedBackend::predict_streams(args); });
  }
  void correct_streams(const CorrectStreamsArgs& args) override {
    timed("correct_streams", [&] { WrappedBackend::correct_streams(args); });
  }
  void match_magnitude(const MatchMagnitudeArgs& args) override {
    timed("match_magnitude", [&] { WrappedBackend::match_magnitude(args); });
  }
  void short_conv(const ShortConvArgs& args) override {
    timed("short_conv", [&] { WrappedBackend::short_conv(args); });
  }
  void recurrence(const RecurrenceArgs& args) override {
    timed("recurrence", [&] { WrappedBackend::recurrence(args); });
  }
  void gated_norm(const GatedNormArgs& args) override {
    timed("gated_norm", [&] { WrappedBackend::gated_norm(args); });
  }
  void gather_rows(const GatherRowsArgs& args) override {
    timed("gather_rows", [&] { WrappedBackend::gather_rows(args); });
  }
  void load_rows(const LoadRowsArgs& args) override {
    timed("load_rows", [&] { WrappedBackend::load_rows(args); });
  }
  void store_rows(const StoreRowsArgs& args) override {
    timed("store_rows", [&] { WrappedBackend::store_rows(args); });
  }
  void copy_kv(const CopyKvArgs& args) override {
    timed("copy_kv", [&] { WrappedBackend::copy_kv(args); });
  }
  void sample(const SampleArgs& args) override {
    timed("sample", [&] { WrappedBackend::sample(args); });
  }

 private:
  template <class Operation>
  void timed(const char* name, Operation&& operation) {
    const Stopwatch watch;
    operation();
    seconds_[name] += watch.seconds();
  }

  std::map<std::string, double> seconds_;
  ExpertBytes expert_bytes_;
};

}  // namespace specdec::bench
