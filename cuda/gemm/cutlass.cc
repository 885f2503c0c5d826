#include "cuda/gemm/cutlass.h"

#include "cuda/gemm/cutlass_ways.h"

namespace specdec::cuda {
namespace {

class Cutlass final : public Gemm {
 public:
  explicit Cutlass(int num_multiprocessors) : num_multiprocessors_(num_multiprocessors) {}

  std::string name() const override { return "cutlass"; }
  int num_ways(Stream&, const GemmShape&) override { return static_cast<int>(bf16_.size()); }
  std::string name_of(int way) const override { return bf16_.at(static_cast<size_t>(way)).name; }
  void run(Stream& stream, int way, const GemmParams& params) override {
    const auto& ways = params.shape.dtype == DType::kBF16 ? bf16_ : f16_;
    ways.at(static_cast<size_t>(way)).launch(stream, num_multiprocessors_, params);
  }

 private:
  int num_multiprocessors_;
  std::vector<native::CutlassWay> bf16_ = native::cutlass_bf16();
  std::vector<native::CutlassWay> f16_ = native::cutlass_f16();
};

}  // namespace

std::string cutlass_note() { return "with CUTLASS"; }

std::unique_ptr<Gemm> make_cutlass(const DeviceProperties& properties) {
  if (properties.compute_capability != 90) return nullptr;
  return std::make_unique<Cutlass>(properties.num_multiprocessors);
}

}  // namespace specdec::cuda
