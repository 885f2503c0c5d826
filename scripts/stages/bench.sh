# That the microbenchmarks run; no figure is looked at.
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/testing bench/e2e/read_bandwidth.cc bench/run.py bench/common bench/host bench/kernels
build release bench/all
"$PYTHON" bench/run.py build/release --smoke --json build/release/microbenchmarks.json
"$PYTHON" bench/run.py build/release --smoke --device emulated
