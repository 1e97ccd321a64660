#!/usr/bin/env bash
# on_processes.sh N COMMAND...: COMMAND on N MPI processes. The output of rank 0 is shown as it comes, that of the others
# only when something failed.
set -uo pipefail
processes=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

# shellcheck disable=SC2016
one_rank='
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
[[ $rank == 0 ]] || exec >"$logs/rank-$rank" 2>&1
exec "$@"'
"${MPIEXEC:-mpirun}" -n "$processes" bash -c "$one_rank" bash "$@" </dev/null
status=$?

if [[ $status != 0 ]]; then
  for log in "$logs"/rank-*; do
    [[ -e $log ]] || continue
    echo "---- ${log##*/}, the last lines"
    tail -n 60 "$log"
  done
fi
exit "$status"
