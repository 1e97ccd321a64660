#!/usr/bin/env bash
# ./quickstart.sh          set up what is missing, then run the main example and plot it
# ./quickstart.sh test     set up, then run every test, as continuous integration does
# ./quickstart.sh setup    only set up .venv/
#
# Environment variables:
#   PYTHON                 the Python (3.11 or newer) to make .venv/ from
#   MPICC                  the MPI to build against, with its mpirun in the same folder
#   HDF5_PKGCONFIG_NAME    pkg-config's name of the parallel HDF5 of that MPI, or
#   HDF5_DIR               the folder in which it is installed
#   HPCSTENCIL_JAX         cuda12, cuda13 or cpu: which JAX to install (default: from nvidia-smi)
set -euo pipefail

PACKAGES_MPI=(libopenmpi-dev openmpi-bin libhdf5-openmpi-dev)
BUILT_HERE=(mpi4py h5py mpi4jax) # compiled against this machine's MPI

say() { printf '==> %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 4; } # 4: the environment is at fault
have() { command -v "$1" >/dev/null 2>&1; }

# ---- the machine ---------------------------------------------------------------------------------------------------

# Sets python to the first interpreter that is new enough and can make a virtual environment and build extensions.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    python=$("$candidate" - 2>/dev/null <<'PY'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if sys.version_info < (3, 11) or not os.path.exists(header):
    sys.exit(1)
print(os.path.realpath(sys.executable))
PY
    ) && return 0
  done
  return 1
}

# Prints openmpi or mpich (Intel MPI and others made from it included), from the output of a command.
mpi_family() {
  case $("$@" 2>&1 </dev/null) in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) echo openmpi ;;
    *MPICH* | *HYDRA* | *Intel*MPI*) echo mpich ;;
    *) return 1 ;;
  esac
}

# Sets mpicc, mpirun and hdf5 to a compiler wrapper, a launcher and a parallel HDF5 that belong together. Debian's own
# names come first: another MPI that is earlier in PATH has no matching parallel HDF5.
find_mpi() {
  local candidate family candidates="mpicc.openmpi mpicc.mpich mpicc"
  [[ -z ${HDF5_DIR:-} ]] || candidates=mpicc
  for candidate in ${MPICC:-$candidates}; do
    mpicc=$(command -v "$candidate") || continue
    family=$(mpi_family "$mpicc" -showme:version) || family=$(mpi_family "$mpicc" -v) || continue
    mpirun=${mpicc%/*}/mpirun${mpicc##*cc} # mpicc.openmpi: mpirun.openmpi
    [[ $(mpi_family "$mpirun" --version) == "$family" ]] || continue
    find_hdf5 "${HDF5_PKGCONFIG_NAME:-hdf5-$family}" && return 0
  done
  return 1
}

# Sets hdf5 to a line that names it, and hdf5_env to the variables that h5py's build needs.
find_hdf5() {
  local header=${HDF5_DIR:-}/include/H5pubconf.h tool
  if [[ -n ${HDF5_DIR:-} ]]; then
    hdf5="$HDF5_DIR $(sed -n 's/^#define H5_VERSION //p' "$header" 2>/dev/null)"
    hdf5_env=(HDF5_DIR="$HDF5_DIR")
    grep -q '^#define H5_HAVE_PARALLEL 1' "$header" 2>/dev/null
    return
  fi
  for tool in pkg-config /usr/bin/pkg-config; do # another pkg-config in PATH may not know Debian's folders
    hdf5="$1 $("$tool" --modversion "$1" 2>/dev/null)" || continue
    hdf5_env=(HDF5_PKGCONFIG_NAME="$1" PKG_CONFIG="$tool")
    return 0
  done
  return 1
}

# Sets missing to the Debian packages that this machine lacks. What the caller chose is not replaced, only reported.
find_missing() {
  local tool
  missing=()
  for tool in gcc g++ make cmake pkg-config; do have "$tool" || missing+=("$tool"); done
  if ! find_python; then
    [[ -z ${PYTHON:-} ]] || fail "PYTHON=$PYTHON is not a Python 3.11 or newer with venv and its C headers."
    if old_python; then tool=python3.11; else tool=python3; fi
    missing+=("$tool" "$tool-venv" "$tool-dev")
  fi
  if ! find_mpi; then
    [[ -z ${MPICC:-}${HDF5_DIR:-}${HDF5_PKGCONFIG_NAME:-} || ${#missing[@]} -gt 0 ]] || fail \
      "MPICC (${MPICC:-not set}), the mpirun beside it and a parallel HDF5 (HDF5_DIR: ${HDF5_DIR:-not set}," \
      "HDF5_PKGCONFIG_NAME: ${HDF5_PKGCONFIG_NAME:-not set}) do not belong together; set them right, or unset them" \
      "to use Debian's Open MPI."
    missing+=("${PACKAGES_MPI[@]}")
  fi
}

old_python() { [[ -x /usr/bin/python3 ]] && ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }

system_packages() {
  find_missing
  [[ ${#missing[@]} -gt 0 ]] || return 0
  local list="${missing[*]}"
  have apt-get || fail "this machine lacks what Debian calls $list; install it with this system's own package manager."
  [[ $EUID == 0 ]] || fail "some packages are missing; install them with
  sudo apt-get update && sudo apt-get install --no-install-recommends $list
then run this script again."
  say "Installing $list"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null || say "apt-get update failed; trying with the package lists that are here."
  apt-get install -yq --no-install-recommends "${missing[@]}" </dev/null >/dev/null \
    || fail "apt-get could not install $list; its message is above."
  hash -r
  find_missing
  [[ ${#missing[@]} -eq 0 ]] || fail "apt-get installed $list, but ${missing[*]} cannot be found; is /usr/bin in PATH?"
}

# Only tests need this: a Slurm cluster on this machine. If it cannot be installed, only these tests are skipped.
slurm_packages() {
  local packages=(slurmctld slurmd slurm-client munge iproute2) tool lacking=()
  for tool in slurmctld slurmd srun munged ip; do have "$tool" || lacking+=("$tool"); done
  [[ ${#lacking[@]} -gt 0 ]] || return 0
  if [[ $EUID == 0 ]] && have apt-get; then
    say "Installing ${packages[*]} for the tests on a Slurm cluster"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null || true
    if apt-get install -yq --no-install-recommends "${packages[@]}" </dev/null >/dev/null; then hash -r; return; fi
  fi
  say "The tests on a Slurm cluster will not be run: ${lacking[*]} not found. They need root, and
    apt-get install --no-install-recommends ${packages[*]}"
}

# Prints cuda12, cuda13 or cpu.
which_jax() {
  local version
  if [[ -n ${HPCSTENCIL_JAX:-} ]]; then
    echo "$HPCSTENCIL_JAX"
  elif have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    version=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
    if [[ ${version:-12} -ge 13 ]]; then echo cuda13; else echo cuda12; fi
  else
    echo cpu
  fi
}

# ---- .venv ---------------------------------------------------------------------------------------------------------

venv_pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" </dev/null; }
venv_python() { .venv/bin/python "$@" </dev/null; }
sha() { sha256sum | cut -c1-16; }
version_of() { sed -n "s/^$1==//p" constraints.txt; }

# An interrupted pip may leave half a package behind and regard it as complete, so an unfinished .venv is created again.
# Compiled wheels are kept outside.
make_venv() {
  if [[ -e .venv/unfinished || ! -x .venv/bin/hpcstencil || $(cat .venv/toolchain 2>/dev/null) != "$toolchain" ]]; then
    say "Making .venv with $python"
    "$python" -m venv --clear .venv || fail "$python could not make .venv in $PWD; its message is above."
    echo "$toolchain" >.venv/toolchain
  fi
  rm -f .venv/ready-*
  touch .venv/unfinished
}

# Starts `install_built $1` beside what follows, until `built` waits for it. It ends with this script.
build_beside() {
  set -m # gives it a process group of its own
  install_built "$1" &
  building=$!
  set +m
  trap 'kill -- -"$building" 2>/dev/null || true' EXIT
}

built() {
  wait "$building" || exit
  trap - EXIT
}

# mpi4py and mpi4jax are a single file each, which a core compiles while others have something else to do.
install_base() {
  local jax=jax
  [[ $jax_kind == cpu ]] || jax="jax[$jax_kind]"
  say "Installing the tools to build with"
  venv_pip install -qq -c constraints.txt 'setuptools>=77' wheel cython pkgconfig nanobind numpy click platformdirs tqdm \
    || fail "pip could not install them; its message is above."
  build_beside mpi4py
  say "Installing JAX ($jax_kind)"
  venv_pip install -qq -c constraints.txt "$jax" || fail "pip could not install JAX; its message is above."
  built
  build_beside h5py
  install_built mpi4jax
  built
}

# Whether package $1 is installed and was built against MPI.
works() {
  [[ $(venv_python -m pip show "$1" 2>/dev/null | sed -n 's/^Version: //p') == "$(version_of "$1")" ]] || return 1
  case $1 in
    mpi4py) venv_python -c 'import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI' ;;
    h5py) venv_python -c 'import mpi4py; mpi4py.rc.initialize = False; import h5py; assert h5py.get_config().mpi' ;;
    mpi4jax) venv_python -c 'import mpi4jax' ;;
  esac >/dev/null 2>&1
}

# Where wheels built against this MPI are kept for the next clone: the user's cache, or .venv if others can change that.
wheel_folder() {
  local key folder
  key=$( (echo "$machine"; version_of mpi4py; version_of jaxlib) | sha)
  folder=$(PYTHONPATH=$PWD venv_python -c "from hpcstencil.runtime import cache_folder
print(cache_folder.folder('wheels', '$key') or '')")
  if [[ ! -w $folder ]]; then
    folder=.venv/wheels
    mkdir -p "$folder"
  fi
  echo "$folder"
}

# Prints the CUDA for mpi4jax's bridge. mpi4jax regards any nvcc in PATH as a complete CUDA, and fails if the headers are
# not next to it. With an existing empty folder it builds for the CPU only. It finds pip's CUDA 12 itself; for pip's
# CUDA 13 this makes a folder in the layout that it expects. CUDA_PATH has priority if it is set.
cuda_path() {
  local folder=$PWD/.venv/$jax_kind pip_cuda
  if [[ $jax_kind != cpu && -n ${CUDA_PATH:-} ]]; then echo "$CUDA_PATH"; return; fi
  mkdir -p "$folder"
  if [[ $jax_kind == cuda13 ]]; then
    pip_cuda=$(venv_python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
    mkdir -p "$folder/lib64"
    ln -sfn "$pip_cuda/include" "$folder/include"
    ln -sf "$pip_cuda/lib/libcudart.so.13" "$folder/lib64/libcudart.so"
  fi
  echo "$folder"
}

# Builds the wheel of package $1 in folder $2. Generated binding code is optimized less, because it takes most of the time.
build_wheel() {
  local options="-O2 -g0" log=.venv/build-$1.log
  local site=\$ORIGIN/../../../nvidia cudart="" # next to mpi4jax, wherever the wheel is installed
  [[ $1 != mpi4jax || $jax_kind == cpu ]] || cudart="-Wl,-rpath,$site/cu13/lib:$site/cuda_runtime/lib"
  case $1 in mpi4py) options="-Og -g0" ;; h5py) options="-O1 -g0" ;; esac
  printf '[build_ext]\nparallel = 2\n' >.venv/distutils.cfg
  say "Building $1 $(version_of "$1") against $mpicc and $hdf5 (about a minute, once)"
  MPICC=$mpicc MPI4JAX_BUILD_MPICC=$mpicc CC=$mpicc HDF5_MPI=ON CUDA_PATH=$(cuda_path) \
    CFLAGS="${CFLAGS:-} $options" LDFLAGS="${LDFLAGS:-} $cudart" DIST_EXTRA_CONFIG=$PWD/.venv/distutils.cfg \
    env "${hdf5_env[@]}" .venv/bin/python -m pip wheel --no-deps --no-build-isolation --no-cache-dir --no-binary="$1" \
    -w "$2" "$1==$(version_of "$1")" >"$log" 2>&1 </dev/null \
    || { tail -n 25 "$log" >&2; fail "$1 could not be built; the end of $log is above."; }
}

install_built() {
  local name=$1 folder wheel fresh
  if works "$name"; then return; fi
  folder=$(wheel_folder)
  for wheel in "$folder/$name-$(version_of "$name")"-*.whl; do
    [[ -e $wheel ]] || continue
    say "Installing $name from the wheel built earlier"
    if venv_pip install -qq --no-deps --force-reinstall "$wheel" >/dev/null 2>&1 && works "$name"; then return; fi
    say "That wheel of $name does not work here; building it anew."
    rm -f "$wheel"
  done
  fresh=$(mktemp -d .venv/wheel.XXXXXX)
  build_wheel "$name" "$fresh"
  venv_pip install -qq --no-deps --force-reinstall "$fresh"/*.whl || fail "the new wheel of $name does not install."
  works "$name" || fail "$name was built, but does not work with $mpirun; see .venv/build-$name.log."
  mv "$fresh"/*.whl "$folder/" 2>/dev/null || true
  rm -rf "$fresh"
}

install_project() {
  local extras=mpi
  [[ $1 == run ]] || extras=mpi,dev
  say "Installing hpcstencil[$extras]"
  venv_pip install -qq -c constraints.txt --no-build-isolation -e ".[$extras]" \
    || fail "pip could not install the project; its message is above."
}

# With .venv/bin first in PATH, mpicc and mpirun are the MPI of the build, whatever else is in PATH.
link_mpi() {
  local name
  for name in mpicc mpirun; do
    printf '#!/bin/bash\nexec -a %s %q "$@"\n' "$name" "${!name}" >".venv/bin/$name"
    chmod +x ".venv/bin/$name"
  done
}

# Checks that launcher, mpi4py, mpi4jax, h5py and HDF5 use the same MPI: two processes use all of them.
check_mpi() {
  local folder log=.venv/check-mpi.log script='
import sys, h5py, jax.numpy, mpi4jax
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.size == 2, f"mpirun -n 2 started {comm.size} process(es) that know of each other"
assert mpi4jax.allreduce(jax.numpy.ones(4), op=MPI.SUM, comm=comm.Clone()).sum() == 8
with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
    dataset = file.create_dataset("rank", (2,), "i4")
    with dataset.collective:
        dataset[comm.rank] = comm.rank
'
  say "Checking that two processes compute together and write one HDF5 file"
  folder=$(mktemp -d)
  timeout 120 mpirun -n 2 .venv/bin/python -c "$script" "$folder/check.h5" >"$log" 2>&1 </dev/null \
    || { tail -n 25 "$log" >&2; fail "two processes under $mpirun could not work together; the end of $log is above."; }
  rm -rf "$folder"
}

# Settings of Open MPI: allow root and more processes than cores, let waiting processes yield the core, and let a process
# use every core. They are environment variables, so that tests that start mpirun themselves inherit them.
use_venv() {
  export PATH=$PWD/.venv/bin:$PATH
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none # Open MPI 5
}

setup() { # setup run|dev
  local name stamp
  exec 9>.quickstart.lock || fail "$PWD cannot be written to."
  flock -n 9 || { say "Waiting for another set-up in this folder to end"; flock 9; }
  system_packages
  jax_kind=$(which_jax)
  # `machine`: the dependencies of compiled wheels. `toolchain`: the dependencies of .venv.
  machine="$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))') | $jax_kind
$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release) | $mpicc $("$mpicc" -showme:version 2>&1 | head -n 1) | $hdf5"
  toolchain="$machine | $python $("$python" -V) | $PWD"
  stamp=$( (echo "$toolchain"; cat setup.cfg pyproject.toml constraints.txt quickstart.sh) | sha)
  use_venv
  if ! grep -qsx "$stamp" ".venv/ready-$1" .venv/ready-dev; then
    make_venv
    install_base
    install_project "$1"
    for name in "${BUILT_HERE[@]}"; do
      works "$name" || fail "pip replaced $name by one without MPI; remove .venv and run this script again."
    done
    link_mpi
    check_mpi
    rm .venv/unfinished
    echo "$stamp" >".venv/ready-$1"
  fi
  exec 9>&-
}

# ---- the commands --------------------------------------------------------------------------------------------------

main_job() {
  local run=(mpirun -n 2 hpcstencil run inputs/gray_scott.toml --devices 2 --overwrite)
  local plot=(hpcstencil plot gray_scott.h5 --field v -o gray_scott.png)
  say "${run[*]}"
  "${run[@]}"
  say "${plot[*]}"
  "${plot[@]}"
  say "Done. The run is in gray_scott.h5 (open gray_scott.xdmf in ParaView), its picture in gray_scott.png, both in
    $PWD
    For a run of your own:  source .venv/bin/activate; hpcstencil --help"
}

# Groups of tests that ctest (its output is in $1) shows as skipped, and why, a line each.
not_run() {
  awk '/^[0-9]+: SKIPPED / { group = $1; sub(/^[0-9]+: SKIPPED \[[0-9]+\] [^ ]+ /, ""); reason = $0
      if (index(why[group], reason) == 0) why[group] = why[group] "; " reason }
    /Test +#[0-9]+: .*\*\*\*Skipped/ { group = $3; sub(/^#/, "", group); print $4 ": " substr(why[group], 3) }' "$1"
}

all_tests() {
  local failed=() skipped
  say "ruff"; ruff check . || failed+=(ruff)
  say "mypy"; mypy || failed+=(mypy)
  say "codespell"; codespell || failed+=(codespell)
  say "The test matrix"
  if cmake -B build -DPython3_EXECUTABLE="$PWD/.venv/bin/python" -DMPI_C_COMPILER="$mpicc" \
    -DMPIEXEC_EXECUTABLE="$PWD/.venv/bin/mpirun"; then
    ctest --test-dir build -j 4 --verbose | tee build/ctest.log || failed+=(ctest)
    skipped=$(not_run build/ctest.log)
    [[ -z $skipped ]] || say "These groups of tests were NOT RUN on this machine, so they prove nothing:
$skipped"
  else
    failed+=(cmake)
  fi
  [[ ${#failed[@]} -eq 0 ]] || { echo "quickstart: these failed: ${failed[*]}; their messages are above." >&2; exit 1; }
}

cd "$(dirname "${BASH_SOURCE[0]}")"
case ${1:-run} in
  run) setup run; main_job ;;
  test) setup dev; slurm_packages; all_tests ;;
  setup) setup run; say "Ready: source .venv/bin/activate" ;;
  -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "$0" ;;
  *) echo "quickstart: '$1' is not a command; there are run, test and setup (see $0 --help)." >&2; exit 2 ;;
esac
