# An embedder's view: install the library, then build against nothing but what was installed.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda examples tests/python/testing/make_checkpoints.py
ensure_packages /usr/bin/pkg-config pkgconf
build release specdec
prefix=$PWD/build/example-prefix
cmake --install build/release --prefix "$prefix" >/dev/null
cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build build/example
"$PYTHON" tests/python/testing/make_checkpoints.py llama build/example/checkpoint
build/example/generate build/example/checkpoint 1 2 3 4
build/example/custom_drafter build/example/checkpoint 1 2 3 4
cmake -S examples/c -B build/example-c -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build build/example-c
build/example-c/generate build/example/checkpoint 1 2 3 4
build/example-c/generate --draft build/example/checkpoint build/example/checkpoint 1 2 3 4

# The shared library, by pkg-config and by Python's ctypes. Its objects are those of preset release.
cmake --preset release -B build/shared -DBUILD_SHARED_LIBS=ON -DSPECDEC_TESTS=OFF -DSPECDEC_BENCH=OFF >/dev/null
cmake --build build/shared -j "$jobs" --target specdec
shared=$PWD/build/shared-prefix
cmake --install build/shared --prefix "$shared" >/dev/null
flags=$(PKG_CONFIG_PATH=$shared/lib/pkgconfig pkg-config --define-variable=prefix="$shared" --cflags --libs specdec)
cc -std=c99 -D_POSIX_C_SOURCE=200809L examples/c/generate.c -o build/example-c/shared $flags "-Wl,-rpath,$shared/lib"
expected=$(build/example/generate build/example/checkpoint 1 2 3 4)
[[ $(build/example-c/shared build/example/checkpoint 1 2 3 4 | head -1) == "$expected" ]]
[[ $("$PYTHON" examples/c/generate.py "$shared/lib/libspecdec.so" build/example/checkpoint 1 2 3 4) == "$expected" ]]
