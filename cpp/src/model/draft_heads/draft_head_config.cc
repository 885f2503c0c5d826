#include "model/draft_heads/draft_head_config.h"

#include "core/check.h"
#include "core/str_cat.h"
#include "model/json_file.h"
#include "specdec/error.h"

namespace specdec {
namespace {

struct ConfigFile {
  explicit ConfigFile(const std::string& directory)
      : path(directory + "/config.json"), json(read_json_object(path)) {}
  const std::string path;
  const nlohmann::json json;
  const JsonFields fields{path, json};
};

}  // namespace

int32_t load_mask_token(const std::string& directory, int vocab_size) {
  const ConfigFile file(directory);
  const JsonFields& fields = file.fields;
  for (const char* key : {"pard_token", "ptd_token_id", "mask_token_id"}) {
    if (!fields.has(key)) continue;
    const int token = fields.get_int(key, {}, /*minimum=*/0);
    if (token < vocab_size) return token;
    fields.fail(key, str_cat(token, " is not in the vocabulary of ", vocab_size, " tokens"));
  }
  throw CheckpointError(file.path, "",
                        "mask_token_id: missing (nor is there pard_token or ptd_token_id); the "
                        "model was not trained for parallel_drafting");
}

DraftHeadConfig load_draft_head_config(const DrafterConfig& drafter,
                                       const DraftHeadTarget& target) {
  const bool is_in_target = drafter.method == DraftMethod::kMtp && drafter.model.empty();
  if (is_in_target) return parse_mtp(drafter, target);
  require_directory(drafter.model);
  const ConfigFile file(drafter.model);
  switch (drafter.method) {
    case DraftMethod::kMtp:
      if (is_gemma4_assistant(file.fields)) {
        return parse_gemma4_assistant(file.fields, drafter, target);
      }
      return parse_mtp(drafter, target);
    case DraftMethod::kEagle:
    case DraftMethod::kEagle3:
      return parse_eagle(file.fields, drafter, target);
    case DraftMethod::kDflash:
    case DraftMethod::kDspark:
      return parse_dflash(file.fields, drafter, target);
    case DraftMethod::kMedusa:
      return parse_medusa(file.fields, drafter, target);
    case DraftMethod::kMlpSpeculator:
      return parse_mlp_speculator(file.fields, drafter, target);
    default:
      break;
  }
  SPECDEC_CHECK(is_draft_head(drafter.method));
  return {};
}

std::unique_ptr<Model> load_draft_head(const DraftHeadConfig& config,
                                       const DraftHeadLoadArgs& args) {
  switch (config.method) {
    case DraftMethod::kMedusa:
      return load_medusa(ConfigFile(config.directory).fields, config, args);
    case DraftMethod::kMlpSpeculator:
      return load_mlp_speculator(ConfigFile(config.directory).fields, config, args);
    default:
      return config.model.reads_target_kv ? load_gemma4_assistant(config, args)
                                          : load_eagle(config, args);
  }
}

}  // namespace specdec
