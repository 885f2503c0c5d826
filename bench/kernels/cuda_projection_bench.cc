#include "bench/kernels/cuda_projection_bench.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "common/gpu_requests.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/gemm/cublaslt.h"
#include "testing/quantized_matrix.h"

namespace specdec::bench {
namespace {

constexpr int64_t kBeyondCache = int64_t{256} << 20;
constexpr int kMaxSets = 64;

}  // namespace

int sets_for(double bytes) {
  return std::clamp(static_cast<int>(kBeyondCache / bytes) + 1, 1, kMaxSets);
}

// The launch of one projection as the decoder makes it, on given weights.
class ProjectionBench::Run {
 public:
  Run(Gpu& gpu, const ModelShape& model, const Projection& projection, int num_rows)
      : gpu_(gpu),
        model_(model),
        kernel_(projection.kernel),
        requests_(gpu, model, 1, num_rows, 64, 1) {
    const DType act = gpu.backend().act_dtype();
    gpu.backend().begin_step();
    batch_ = requests_.stage(1);
    const int staged_rows = batch_.num_rows;  // with padding
    rows_ = gpu.random(sizeof(float) * staged_rows * projection.in_features, DType::kF32);
    act_rows_ = gpu.random(size_of(act) * staged_rows * projection.in_features, act);
    out_ = gpu.device().allocate(sizeof(float) * staged_rows * projection.out_features, "a bench");
    norm_weight_ = gpu.random(sizeof(float) * projection.in_features, DType::kF32);
    rope_ = gpu.random(sizeof(float) * 65 * model.head_dim / 2, DType::kF32);
    norm_ = {.weight = norm_weight_.as<float>()};
    normed_ = {.x = rows_.data(), .norm = &norm_, .num_rows = staged_rows};
    acts_ = {.x = act_rows_.data(), .dtype = act, .num_rows = staged_rows};
  }

  void operator()(const PackedLinear& weight) {
    Backend& backend = gpu_.backend();
    if (kernel_ == "qkv") {
      backend.project_qkv({.weight = &weight,
                           .in = normed_,
                           .rope_cos = rope_.as<float>(),
                           .rope_sin = rope_.as<float>(),
                           .rotary_dim = model_.head_dim,
                           .num_heads = model_.num_heads,
                           .batch = &batch_,
                           .kv = requests_.layers().front(),
                           .q = out_.data()});
    } else if (kernel_ == "gate_up") {
      backend.activated_linear({.weight = &weight, .in = normed_, .out = out_.data()});
    } else if (kernel_ == "head") {
      backend.linear({.weight = &weight, .in = normed_, .out = out_.as<float>()});
    } else {
      backend.linear({.weight = &weight, .in = acts_, .out = out_.as<float>(), .accumulate = true});
    }
  }

 private:
  Gpu& gpu_;
  ModelShape model_;
  std::string kernel_;
  GpuRequests requests_;
  Buffer rows_, act_rows_, out_, norm_weight_, rope_;
  NormParams norm_;
  ProjectionInput normed_, acts_;
  BatchView batch_;
};

ProjectionBench::ProjectionBench(Gpu& gpu, const Options& options, const Stopwatch& watch,
                                 std::function<void(const Record&)> add)
    : gpu_(gpu), options_(options), watch_(watch), add_(std::move(add)) {}

void ProjectionBench::run(const ModelShape& model) {
  for (const Projection& projection : projections_of(model)) {
    if (!wants(projection, shape_name(model))) continue;
    const Weights weights = pack(projection);
    if (options_.nondeterministic) {
      many_rows(model, projection, weights);
      continue;
    }
    few_rows(model, projection, weights);
  }
}

void ProjectionBench::run_peer(const ModelShape& model) {
  if (options_.format != WeightFormat::kAct) return;
  for (const Projection& projection : projections_of(model)) {
    if (wants(projection, shape_name(model))) peer(model, projection);
  }
}

std::vector<int> ProjectionBench::rows_or(std::vector<int> all, std::vector<int> few) const {
  if (!options_.rows.empty()) return options_.rows;
  return options_.smoke ? few : all;
}

std::vector<ProjectionBench::Projection> ProjectionBench::projections_of(const ModelShape& model) {
  const int64_t q_width = int64_t{model.num_heads} * model.head_dim;
  const int64_t qkv_width = q_width + 2LL * model.num_kv_heads * model.head_dim;
  return {{"qkv", qkv_width, model.hidden, false},
          {"attention_out", model.hidden, q_width, false},
          {"gate_up", 2LL * model.intermediate, model.hidden, true},
          {"down", model.hidden, model.intermediate, false},
          {"head", model.vocab_size, model.hidden, false}};
}

bool ProjectionBench::wants(const Projection& projection, const std::string& shape) const {
  return options_.selects(projection.kernel + " " + shape) &&
         watch_.seconds() < options_.budget_seconds;
}

std::string ProjectionBench::shape_name(const ModelShape& model) const {
  return std::string(model.name) + " " + std::string(name_of(options_.format));
}

void ProjectionBench::say_absent(const std::string& what) {
  if (!absent_.insert(what).second) return;
  std::printf("absent: %s\n", what.c_str());
  std::fflush(stdout);
}

ProjectionBench::Weights ProjectionBench::pack(const Projection& projection) {
  const DType act = gpu_.backend().act_dtype();
  const auto& [kernel, out_features, in_features, gated] = projection;
  const int64_t part_rows = gated ? out_features / 2 : out_features;
  const std::vector<uint16_t> source =
      random_numbers(static_cast<size_t>(part_rows * in_features), act);
  WeightView view{.values = {source.data(), act, {part_rows, in_features}}};
  // Codes of a checkpoint, for formats that take no floats.
  std::optional<testing::QuantizedMatrix> codes;
  const bool has_zeros = options_.format == WeightFormat::kInt4GroupedZero;
  if (has_zeros || options_.format == WeightFormat::kInt4Table) {
    codes.emplace(part_rows, in_features, 4, false, 1);
    has_zeros ? codes->add_zeros(2) : codes->add_table(2);
    view = codes->view();
  }
  const std::vector<WeightView> parts(gated ? 2 : 1, view);
  const PackArgs args = {.parts = parts, .format = options_.format, .gated = gated};
  Weights weights;
  weights.push_back(gpu_.backend().pack_linear(args));
  const double bytes = static_cast<double>(weights.front()->size_bytes());
  const int num_sets = options_.smoke ? 2 : sets_for(bytes);
  while (static_cast<int>(weights.size()) < num_sets) {
    weights.push_back(gpu_.backend().pack_linear(args));
  }
  return weights;
}

double ProjectionBench::seconds_of(const Weights& weights, Run& run) {
  const double seconds = gpu_.graph_seconds(options_.samples(15), [&] {
    for (const auto& weight : weights) run(*weight);
  });
  return seconds / static_cast<double>(weights.size());
}

void ProjectionBench::few_rows(const ModelShape& model, const Projection& projection,
                               const Weights& weights) {
  for (int num_rows : rows_or({1, 2, 4, 8, 16, 32, 64}, {1, 3, 17})) {
    if (!wants(projection, shape_name(model))) return;
    Run run(gpu_, model, projection, num_rows);
    add_({.kernel = projection.kernel,
          .shape = shape_name(model),
          .rows = num_rows,
          .seconds = seconds_of(weights, run),
          .bytes = static_cast<double>(weights.front()->size_bytes()),
          .flops = 2.0 * num_rows *
                   static_cast<double>(projection.out_features * projection.in_features),
          .counters = {{"sets", static_cast<double>(weights.size())}},
          .launches = gpu_.launches()});
  }
}

void ProjectionBench::peer(const ModelShape& model, const Projection& projection) {
  if (gpu_.is_emulated() || !cublaslt_.problem.empty()) {
    say_absent("cublasLt: " + (gpu_.is_emulated() ? "the device is emulated" : cublaslt_.problem));
    return;
  }
  const DType act = gpu_.backend().act_dtype();
  const double bytes = 2.0 * static_cast<double>(projection.out_features * projection.in_features);
  std::vector<Buffer> weights;
  while (static_cast<int>(weights.size()) < sets_for(bytes)) {
    weights.push_back(gpu_.random(static_cast<size_t>(bytes), act));
  }
  const std::unique_ptr<cuda::Gemm> gemm = cuda::make_cublaslt(cublaslt_.api);
  Buffer workspace = gpu_.device().allocate(gemm->workspace_bytes(), "a bench");
  for (int num_rows : {1, 8, 16}) {
    if (!wants(projection, shape_name(model))) return;
    const cuda::GemmShape shape = {.dtype = act,
                                   .num_rows = num_rows,
                                   .num_outputs = static_cast<int>(projection.out_features),
                                   .num_inputs = static_cast<int>(projection.in_features),
                                   .ld = projection.out_features};
    const Buffer rows = gpu_.random(2 * static_cast<size_t>(num_rows * shape.num_inputs), act);
    Buffer sums = gpu_.device().allocate(
        sizeof(float) * static_cast<size_t>(num_rows * projection.out_features), "a bench");
    double seconds = 0;
    for (int way = 0; way < gemm->num_ways(gpu_.stream(), shape); ++way) {
      const double each = gpu_.graph_seconds(options_.samples(15), [&] {
        for (const Buffer& weight : weights) {
          gemm->run(gpu_.stream(), way,
                    {.shape = shape,
                     .weights = weight.data(),
                     .rows = rows.data(),
                     .sums = sums.as<float>(),
                     .workspace = workspace.data()});
        }
      });
      seconds = way == 0 ? each : std::min(seconds, each);
    }
    if (seconds == 0) continue;
    add_({.kernel = projection.kernel + ": cublasLt",
          .shape = shape_name(model),
          .rows = num_rows,
          .seconds = seconds / static_cast<double>(weights.size()),
          .bytes = bytes,
          .flops = bytes * num_rows});
  }
}

void ProjectionBench::many_rows(const ModelShape& model, const Projection& projection,
                                const Weights& weights) {
  auto& chooser = dynamic_cast<cuda::CudaBackend&>(gpu_.backend()).projection_chooser();
  for (int num_rows : rows_or({128, 256, 512, 1024, 2048}, {130})) {
    if (!wants(projection, shape_name(model))) return;
    Run run(gpu_, model, projection, num_rows);
    // The clock tells which ways there are, and then lets each in turn be the fastest.
    std::vector<std::string> ways;
    chooser.set_timer([&](cuda::Device&, cuda::Stream&, const std::string& way, const auto&) {
      ways.push_back(way);
      return 1.0;
    });
    run(*weights.front());
    std::vector<double> seconds;
    for (const std::string& wanted : ways) {
      chooser.set_timer([&](cuda::Device&, cuda::Stream&, const std::string& way, const auto&) {
        return way == wanted ? 0.0 : 1.0;
      });
      seconds.push_back(seconds_of(weights, run));
    }
    const double best = *std::ranges::min_element(seconds);
    for (size_t i = 0; i < ways.size(); ++i) {
      add_({.kernel = projection.kernel + ": " + ways[i],
            .shape = shape_name(model),
            .rows = num_rows,
            .seconds = seconds[i],
            .flops = 2.0 * num_rows *
                     static_cast<double>(projection.out_features * projection.in_features),
            .counters = {{"over_best", seconds[i] / best}}});
    }
    for (const std::string way : {"wide_rows", "cutlass", "cublasLt"}) {
      if (std::ranges::none_of(ways, [&](const auto& there) { return there.starts_with(way); })) {
        say_absent(way);
      }
    }
  }
  chooser.set_timer(nullptr);
}

}  // namespace specdec::bench
