#include "backend/op_args.h"

#include "core/check.h"

namespace specdec {

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kAct:
      return "act";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt8Grouped:
      return "int8_grouped";
    case WeightFormat::kInt8GroupedMin:
      return "int8_grouped_min";
    case WeightFormat::kInt4Grouped:
      return "int4_grouped";
    case WeightFormat::kInt4GroupedMin:
      return "int4_grouped_min";
  }
  detail::check_failed(__FILE__, __LINE__, "weight format is known");
}

}  // namespace specdec
