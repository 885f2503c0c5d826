# An embedder's view: install the library, then build against nothing but what was installed.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda examples/cpp tests/python/testing/make_checkpoints.py
build release specdec
prefix=$PWD/build/example-prefix
cmake --install build/release --prefix "$prefix" >/dev/null
cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build build/example
"$PYTHON" tests/python/testing/make_checkpoints.py llama build/example/checkpoint
build/example/generate build/example/checkpoint 1 2 3 4
build/example/custom_drafter build/example/checkpoint 1 2 3 4
