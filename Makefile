# Makefile: the front door. `make help` lists what it can do; CMake does the work.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 10
FUZZ_RUNS ?= -1
# The same inputs each time, so that a commit that passed passes again; 0: others each time.
FUZZ_SEED ?= 1
PREFIX ?= /usr/local
# Where packages go.
DIST ?= build-dist
# Where the CUDA toolkit usually is when it is not on the path.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
need_nvcc = test -n "$(NVCC)" || { echo "nvcc not found: install NVIDIA's CUDA toolkit, version 12 or newer,\
    or say where it is: make $@ NVCC=/path/to/nvcc" >&2; exit 1; }
# What `make cuda` compiles for, in CMake's words, such as "80-real;90-real": this machine's GPUs; where there is none, all that
# cmake/cuda.cmake names. Wheels are for all.
CUDA_ARCHITECTURES ?= $(shell tools/cuda_architectures.sh "$(NVCC)")

# Most files are compiled alike in several builds; where ccache is, once.
CCACHE_DIR ?= $(CURDIR)/build/ccache
export CCACHE_DIR
# A folder that was built without it stays without: another launcher would compile every file again.
remember = $(if $(shell command -v ccache),$(if $(wildcard $(1)/build.ninja),,-DCMAKE_C_COMPILER_LAUNCHER=ccache),\
    -DCMAKE_C_COMPILER_LAUNCHER=)
# Silent unless it fails.
configure = log=$$(cmake -S . -B $(1) -G Ninja $(remember) $(2) 2>&1) || { echo "$$log"; exit 1; }
compile = cmake --build $(1) -j $(JOBS)
run_tests = ctest --test-dir $(1) -j $(JOBS) --timeout $(or $(2),300) --output-on-failure
# What does not depend on how the program was compiled is tested once, by `release`: rules of the source tree, pages in
# a browser, ranks that die, hang or fill a disk. Under sanitizers whole commands run too; another compiler changes what
# they compute with, which has tests of its own.
compiled_only = -LE 'tree|processes|levels'
computing_only = -LE 'tree|processes|levels|commands'
# `make check` leaves out lower instruction sets, ranks that fail, calls that fail, GPUs, and what takes ten seconds of a core
# and is rarely the only test that fails.
quick_only = -LE 'processes|levels|gpu|long'
# Builds beside the release have the CPU's kernels of one instruction set; `make nightly` tries sanitizers and clang with all.
one_level = -DSOFTRNN_CPU_LEVELS=OFF

.PHONY: build check test study study-full rnn study-gpu rnn-gpu verify deps deps-cuda deps-mpi deps-python deps-test deps-browser \
        deps-package deps-torch test-python wheel kernels deb dist docs \
        bench fuzz sanitize msan msan-all clang release nightly \
        cuda cuda-check emulated races format check-format install clean help

build: deps ## the library and the program, in build/ (the default)
	@$(call configure,build,-DCMAKE_BUILD_TYPE=Release)
	@$(call compile,build) --target softrnn softrnn_lab_shared manual
	@$(if $(filter build,$(or $(MAKECMDGOALS),build)),cat build/left_out.txt)

check: deps-test ## the quick tests, while you work: under four minutes on two cores, also the first time
	@$(call configure,build,-DCMAKE_BUILD_TYPE=Release)
	@$(call compile,build)
	@$(call run_tests,build) $(quick_only)

test: deps-test ## every check, about 25 minutes on two cores; the last line counts them
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/test.sh

study: build ## which part of softmax matters? ten minutes on two cores, into runs/study
	@build/cli/softrnn study --out runs/study

study-full: build ## the longer study: a night on two cores, into runs/study-full
	@build/cli/softrnn study studies/full.yaml --out runs/study-full

rnn: build ## what does a trained model lose as an RNN? fifteen minutes on two cores, into runs/rnn
	@build/cli/softrnn study studies/rnn.yaml --out runs/rnn

study-gpu: cuda ## the same question on a GPU, 34 M parameters, into runs/study-gpu; TEXT=files the first time
	@tools/study_gpu.sh build-cuda/cli/softrnn studies/gpu.yaml runs/study-gpu $(TEXT)

rnn-gpu: cuda ## the same on a GPU, a teacher of 34 M parameters, into runs/rnn-gpu; TEXT=files the first time
	@JOBS=6 RANK="--attention gla --device cuda --precision bf16 --batch 64 --length 256 --align-steps 80 --align-rate 0.003 \
	    --warmup 20 --validate-every 0 --validate-batches 4 --save-every 0 --most-order 24" \
	    tools/study_gpu.sh build-cuda/cli/softrnn studies/rnn_gpu.yaml runs/rnn-gpu $(TEXT)

verify: build ## all variants, all forms, all kernels on this machine
	@build/cli/softrnn verify

bench: build ## checks the kernels, then times them
	@bench/attention.sh build/cli/softrnn

release: deps-test build ## the release build and its tests
	@$(call compile,build)
	@$(call run_tests,build)

nightly: deps-test build races ## too long for every day: killed runs, Slurm, sanitizers with every instruction set, every failing allocation, long fuzzing
	@$(call compile,build)
	@$(MAKE) --no-print-directory sanitize clang one_level=-DSOFTRNN_CPU_LEVELS=ON
	@build-clang/cli/softrnn verify --quick
	@SOFTRNN_CPU=base build/tests/test_reach
	@SOFTRNN_KILLS=200 build/tests/test_train_command
	@SOFTRNN_KILLS=20 SOFTRNN_KILL_SEED=2 tests/ranks/check_ranks.py build/cli/softrnn killed
	@tools/deps.sh slurm
	@tests/study/check_slurm.py build/cli/softrnn
	@seq $(JOBS) | xargs -P $(JOBS) -I{} env SOFTRNN_FAULTS={}/$(JOBS) build/tests/test_no_memory
	@seq $(JOBS) | xargs -P $(JOBS) -I{} env SOFTRNN_FAULTS={}/$(JOBS) build/tests/test_bad_disk
	@$(MAKE) --no-print-directory fuzz FUZZ_SEED=0 FUZZ_SECONDS=0 FUZZ_RUNS=1000000
	@$(MAKE) --no-print-directory msan-all

sanitize: deps-test ## the build by clang with address and undefined-behaviour sanitizers, and its tests
	@grep -qs '^CMAKE_C_COMPILER:.*clang' build-sanitize/CMakeCache.txt || rm -rf build-sanitize # was gcc's
	@$(call configure,build-sanitize,-DCMAKE_BUILD_TYPE=Debug -DSOFTRNN_SANITIZE=ON $(one_level) \
	    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
	@$(call compile,build-sanitize)
	@$(call run_tests,build-sanitize) $(compiled_only)

# Of these no library but the stand-in for CBLAS touches memory.
msan_tests = test_ops test_bf16 test_model test_gradients test_random test_threads test_text test_status \
    test_facts test_spec
empty :=
msan: deps-test ## the numeric core with MemorySanitizer, which reports uninitialised memory, in build-msan/
	@tools/msan.sh build-msan
	@$(call compile,build-msan) --target $(msan_tests)
	@$(call run_tests,build-msan) -R '^($(subst $(empty) $(empty),|,$(msan_tests)))$$'

msan-all: deps-test ## the same with every library built so, and all tests; downloads sources of Debian
	@tools/msan.sh build-msan-all libraries
	@$(call compile,build-msan-all)
	@$(call run_tests,build-msan-all,3000) $(compiled_only)

clang: deps-test ## the build with clang, and its tests
	@$(call configure,build-clang,-DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang $(one_level))
	@$(call compile,build-clang)
	@$(call run_tests,build-clang) $(computing_only)

fuzz: deps-test ## each fuzzer for FUZZ_SECONDS (10)
	@$(call configure,build-fuzz,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang \
	    -DSOFTRNN_FUZZ=ON -DSOFTRNN_FUZZ_SECONDS=$(FUZZ_SECONDS) -DSOFTRNN_FUZZ_RUNS=$(FUZZ_RUNS) \
	    -DSOFTRNN_FUZZ_SEED=$(FUZZ_SEED) $(one_level))
	@$(call compile,build-fuzz) --target fuzzers
	@$(call run_tests,build-fuzz,7200) -R '^fuzz_'

cuda: deps-cuda ## the build with CUDA, in build-cuda/, for this machine's GPUs; without one for all (CUDA_ARCHITECTURES=...)
	@$(need_nvcc)
	@$(call configure,build-cuda,-DSOFTRNN_CUDA=ON -DCMAKE_CUDA_COMPILER=$(NVCC) \
	    $(if $(CUDA_ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)",-UCMAKE_CUDA_ARCHITECTURES))
	@$(call compile,build-cuda) --target softrnn softrnn_lab_shared gpu_tests

cuda-check: deps-cuda ## that the kernels for GPUs compile, Hopper's own for Hopper and the others for Ampere, and link; in build-cuda-check/
	@$(need_nvcc)
	@$(call configure,build-cuda-check,-DSOFTRNN_CUDA=ON -DCMAKE_CUDA_COMPILER=$(NVCC) $(one_level) \
	    -DCMAKE_CUDA_ARCHITECTURES=80-real)
	@$(call compile,build-cuda-check) --target softrnn gpu_tests

emulated: deps-test ## the kernels for GPUs on an emulated one, in build-emulated/
	@$(call configure,build-emulated,-DCMAKE_BUILD_TYPE=Release -DSOFTRNN_CUDA=emulated $(one_level))
	@$(call compile,build-emulated) --target gpu_tests
	@$(call run_tests,build-emulated) -L gpu

races: deps-test ## the same, looking for races between the threads of a block, in build-races/
	@$(call configure,build-races,-DCMAKE_BUILD_TYPE=Release -DSOFTRNN_CUDA=emulated -DSOFTRNN_CUDA_RACES=ON $(one_level))
	@$(call compile,build-races) --target gpu_tests test_emulator
	@build-races/tests/test_emulator
	@ctest --test-dir build-races -j $(JOBS) --timeout 3000 --output-on-failure -L gpu

format: deps-test ## lay out every source file
	@tools/format.sh

check-format: deps-test ## say which source files need it
	@tools/format.sh --check

install: build ## header, libraries, program and package files into PREFIX (/usr/local)
	@cmake --install build --prefix $(PREFIX)

deps: ## install what is missing to build (Debian 12)
	@tools/deps.sh

deps-cuda: ## install what a build with CUDA needs besides the CUDA toolkit
	@tools/deps.sh cuda

deps-mpi: ## install MPI, for training on several ranks
	@tools/deps.sh mpi

deps-python: ## install what makes environments for Python packages
	@tools/deps.sh python

deps-package: ## install what makes wheels and Debian packages
	@tools/deps.sh package

deps-test: ## install what is missing to build and test
	@tools/deps.sh test

deps-browser: ## install a browser, in which the tests then also open the report (a large download)
	@tools/deps.sh browser

deps-torch: ## install Debian's torch, on which the tests then also try the Python package (215 packages)
	@tools/deps.sh torch

test-python: deps-python ## the Python package in an environment of its own, with the newest torch and transformers (a large download)
	@tools/test_python.sh

wheel: deps-package ## the Python package with the program as a wheel for other machines, into build-python/wheels
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) tools/wheel.sh

kernels: wheel ## the layout that Hugging Face's `kernels` loads, from that wheel, into build-python/kernels
	@tools/kernel.sh

docs: build ## the documents, the C and the Python interface as one searchable site: build-docs/html/index.html
	@tools/deps.sh docs
	@mkdir -p build-docs
	@SOFTRNN_DOCS=$(CURDIR)/build-docs doxygen docs/site/Doxyfile
	@SOFTRNN_DOCS=$(CURDIR)/build-docs SOFTRNN_LIBRARIES=$(CURDIR)/build PYTHONDONTWRITEBYTECODE=1 \
	    sphinx-build -q -E -a -W --keep-going -j $(JOBS) -c docs/site -d build-docs/doctrees . build-docs/html
	@echo build-docs/html/index.html

deb: build deps-package ## a Debian package of what `make install` installs, into DIST (build-dist)
	@cd build && cpack -G DEB -B "$(abspath $(DIST))" >cpack.log || { cat cpack.log; exit 1; }
	@rm -rf "$(DIST)/_CPack_Packages"
	@ls "$(DIST)"/softrnn_*.deb

dist: build deps-package ## source archive, wheels, kernels, Debian package, bill of materials and checksums, into DIST (build-dist)
	@NVCC="$(NVCC)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) tools/dist.sh "$(DIST)"

clean: ## remove everything that was built
	@rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' Makefile | \
	    awk -F@ '{ printf "%-20s %s\n", $$1, $$2 }'
