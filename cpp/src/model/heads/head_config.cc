#include "model/heads/head_config.h"

#include "core/check.h"

namespace specdec {

DraftHeadConfig load_head_config(const DrafterConfig& drafter, const HeadTarget& target) {
  switch (drafter.method) {
    case DraftMethod::kEagle:
    case DraftMethod::kEagle3:
      return parse_eagle(drafter, target);
    case DraftMethod::kMedusa:
      return parse_medusa(drafter, target);
    case DraftMethod::kMlpSpeculator:
      return parse_mlp_speculator(drafter, target);
    default:
      break;
  }
  SPECDEC_CHECK(is_head(drafter.method));
  return {};
}

std::unique_ptr<Model> load_head(const DraftHeadConfig& config, const HeadLoadArgs& args) {
  switch (config.method) {
    case DraftMethod::kMedusa:
      return load_medusa(config, args);
    case DraftMethod::kMlpSpeculator:
      return load_mlp_speculator(config, args);
    default:
      return load_eagle(config, args);
  }
}

}  // namespace specdec
