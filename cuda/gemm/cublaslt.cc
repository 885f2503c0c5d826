#include "cuda/gemm/cublaslt.h"

#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "cuda/gpu/shared_library.h"

namespace specdec::cuda {
namespace {

using cublaslt::Algorithm;
using cublaslt::Api;
using cublaslt::DataType;
using cublaslt::HeuristicResult;
using cublaslt::MatrixLayout;
using cublaslt::Status;

constexpr int kMostAlgorithms = 4;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr uint32_t kAlignmentBytes = 16;              // GemmShape's promise

void check(const Api& api, Status status, const char* what) {
  if (status == cublaslt::kSuccess) return;
  throw DeviceError(str_cat("cublasLt", what, ": ", api.GetStatusString(status)));
}

// Owns an object of the library.
template <class T>
class Owned {
 public:
  explicit Owned(Status (*destroy)(T*)) : destroy_(destroy) {}
  ~Owned() {
    if (object_ != nullptr && destroy_(object_) != cublaslt::kSuccess) {
      log_warning("destroying an object of cublasLt failed");
    }
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  T* get() const { return object_; }
  T** out() { return &object_; }

 private:
  Status (*destroy_)(T*);
  T* object_ = nullptr;
};

// A GEMM as the library sees it: transposed, because the library's matrices are column-major and
// ours are row-major.
class Problem {
 public:
  Problem(const Api& api, const GemmShape& shape)
      : desc_(api.MatmulDescDestroy),
        weights_(api.MatrixLayoutDestroy),
        rows_(api.MatrixLayoutDestroy),
        sums_(api.MatrixLayoutDestroy) {
    check(api, api.MatmulDescCreate(desc_.out(), cublaslt::ComputeType::kF32, DataType::kF32),
          "MatmulDescCreate");
    const auto transpose = cublaslt::Operation::kTranspose;
    check(api,
          api.MatmulDescSetAttribute(desc_.get(), cublaslt::DescAttribute::kTransA, &transpose,
                                     sizeof(transpose)),
          "MatmulDescSetAttribute");
    const DataType dtype = shape.dtype == DType::kBF16 ? DataType::kBF16 : DataType::kF16;
    const auto make = [&](Owned<MatrixLayout>& layout, DataType of, int rows, int columns,
                          int64_t ld) {
      check(api,
            api.MatrixLayoutCreate(layout.out(), of, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), ld),
            "MatrixLayoutCreate");
    };
    make(weights_, dtype, shape.num_inputs, shape.num_outputs, shape.num_inputs);
    make(rows_, dtype, shape.num_inputs, shape.num_rows, shape.num_inputs);
    make(sums_, DataType::kF32, shape.num_outputs, shape.num_rows, shape.ld);
  }

  cublaslt::MatmulDesc* desc() const { return desc_.get(); }
  MatrixLayout* weights() const { return weights_.get(); }
  MatrixLayout* rows() const { return rows_.get(); }
  MatrixLayout* sums() const { return sums_.get(); }

 private:
  Owned<cublaslt::MatmulDesc> desc_;
  Owned<MatrixLayout> weights_, rows_, sums_;
};

class Cublaslt final : public Gemm {
 public:
  explicit Cublaslt(const Api& api)
      : api_(api), context_(api.Destroy), preference_(api.MatmulPreferenceDestroy) {}

  std::string name() const override {
    const size_t version = api_.GetVersion();
    return str_cat("cublasLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  int num_ways(Stream& stream, const GemmShape& shape) override {
    int count = 0;
    stream.call_library("cublasLt", [&](void*) {
      prepare();
      count = static_cast<int>(algorithms_for(bucketed(shape)).size());
    });
    return count;
  }
  std::string name_of(int way) const override { return str_cat("cublasLt ", way); }
  size_t workspace_bytes() const override { return kWorkspaceBytes; }

  void run(Stream& stream, int way, const GemmParams& params) override {
    stream.call_library("cublasLt", [&](void* native_stream) {
      prepare();
      const GemmShape& shape = params.shape;
      const Problem problem(api_, shape);
      const Algorithm algorithm = algorithm_for(problem, shape, way);
      const float alpha = 1.0f;
      const float beta = params.accumulate ? 1.0f : 0.0f;
      check(
          api_,
          api_.Matmul(context_.get(), problem.desc(), &alpha, params.weights, problem.weights(),
                      params.rows, problem.rows(), &beta, params.sums, problem.sums(), params.sums,
                      problem.sums(), &algorithm, params.workspace, kWorkspaceBytes, native_stream),
          "Matmul");
    });
  }

 private:
  using Key = std::tuple<DType, int, int, int, int64_t>;

  // Call with the device current.
  void prepare() {
    if (context_.get() != nullptr) return;
    check(api_, api_.MatmulPreferenceCreate(preference_.out()), "MatmulPreferenceCreate");
    const auto prefer = [&](cublaslt::PreferenceAttribute attribute, const auto& value) {
      check(api_,
            api_.MatmulPreferenceSetAttribute(preference_.get(), attribute, &value, sizeof(value)),
            "MatmulPreferenceSetAttribute");
    };
    using enum cublaslt::PreferenceAttribute;
    prefer(kMaxWorkspaceBytes, uint64_t{kWorkspaceBytes});
    for (const auto alignment : {kMinAlignmentA, kMinAlignmentB, kMinAlignmentC, kMinAlignmentD}) {
      prefer(alignment, kAlignmentBytes);
    }
    check(api_, api_.Create(context_.out()), "Create");
  }

  // Algorithms are chosen for a bucket of rows, a power of two. Timing uses the same buckets, so
  // the algorithm that was timed is the one that runs.
  static GemmShape bucketed(GemmShape shape) {
    shape.num_rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.num_rows)));
    return shape;
  }

  const std::vector<Algorithm>& algorithms_for(const GemmShape& shape) {
    const Key key = {shape.dtype, shape.num_rows, shape.num_outputs, shape.num_inputs, shape.ld};
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) return found->second;
    const Problem problem(api_, shape);
    HeuristicResult results[kMostAlgorithms] = {};
    int num_results = 0;
    // Having no algorithm is no error.
    const Status status = api_.MatmulAlgoGetHeuristic(
        context_.get(), problem.desc(), problem.weights(), problem.rows(), problem.sums(),
        problem.sums(), preference_.get(), kMostAlgorithms, results, &num_results);
    std::vector<Algorithm>& algorithms = algorithms_[key];
    for (int i = 0; status == cublaslt::kSuccess && i < num_results; ++i) {
      if (results[i].status == cublaslt::kSuccess) algorithms.push_back(results[i].algorithm);
    }
    return algorithms;
  }

  // The bucket's algorithm if it serves these rows, else the library's first choice for them.
  Algorithm algorithm_for(const Problem& problem, const GemmShape& shape, int way) {
    const std::vector<Algorithm>& of_bucket = algorithms_for(bucketed(shape));
    SPECDEC_CHECK_LT(way, static_cast<int>(of_bucket.size()));
    const Algorithm& algorithm = of_bucket[static_cast<size_t>(way)];
    HeuristicResult result = {};
    const Status status =
        api_.MatmulAlgoCheck(context_.get(), problem.desc(), problem.weights(), problem.rows(),
                             problem.sums(), problem.sums(), &algorithm, &result);
    if (status == cublaslt::kSuccess && result.workspace_bytes <= kWorkspaceBytes) return algorithm;
    const std::vector<Algorithm>& of_rows = algorithms_for(shape);
    if (of_rows.empty()) {
      throw DeviceError(str_cat("cublasLt has no algorithm for ", shape.num_rows, " x ",
                                shape.num_outputs, " x ", shape.num_inputs));
    }
    return of_rows.front();
  }

  Api api_;
  Owned<cublaslt::Context> context_;
  Owned<cublaslt::Preference> preference_;
  std::map<Key, std::vector<Algorithm>> algorithms_;
};

}  // namespace

CublasltLibrary open_cublaslt(const std::vector<std::string>& names) {
  SharedLibrary library(names);
  CublasltLibrary found;
  Api& api = found.api;
  library.bind(api.GetVersion, "cublasLtGetVersion");
  library.bind(api.GetStatusString, "cublasLtGetStatusString");
  library.bind(api.Create, "cublasLtCreate");
  library.bind(api.Destroy, "cublasLtDestroy");
  library.bind(api.MatmulDescCreate, "cublasLtMatmulDescCreate");
  library.bind(api.MatmulDescDestroy, "cublasLtMatmulDescDestroy");
  library.bind(api.MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
  library.bind(api.MatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
  library.bind(api.MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
  library.bind(api.MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
  library.bind(api.MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
  library.bind(api.MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
  library.bind(api.MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.bind(api.MatmulAlgoCheck, "cublasLtMatmulAlgoCheck");
  library.bind(api.Matmul, "cublasLtMatmul");
  found.problem = library.problem();
  return found;
}

std::unique_ptr<Gemm> make_cublaslt(const Api& api) { return std::make_unique<Cublaslt>(api); }

}  // namespace specdec::cuda
