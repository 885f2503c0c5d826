# Formats, lints and types.
# reads: .
mapfile -t cpp_files < <(git ls-files '*.h' '*.c' '*.cc' '*.cu' '*.cuh')
mapfile -t cmake_files < <(git ls-files '*CMakeLists.txt' 'cmake/*.cmake')
clang-format --dry-run --Werror "${cpp_files[@]}"
gersemi --check --no-warn-about-unknown-commands "${cmake_files[@]}"
ruff check .
ruff format --check .
mypy
