#include "model/heads/head_config.h"

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {

DraftHeadConfig load_head_config(const DrafterConfig& drafter, const HeadTarget& target) {
  switch (drafter.method) {
    case DraftMethod::kEagle:
    case DraftMethod::kEagle3:
      return parse_eagle(drafter, target);
    default:
      break;
  }
  throw InvalidArgument("method", str_cat("'", name_of(drafter.method), "' is not available"));
}

std::unique_ptr<Model> load_head(const DraftHeadConfig& config, const HeadLoadArgs& args) {
  return load_eagle(config, args);
}

}  // namespace specdec
