#!/usr/bin/env bash
# A Slurm of one machine, for tests: `cluster.sh start DIR` (as root) prints the SLURM_CONF to export; `cluster.sh stop DIR`.
# Where Slurm is neither installed nor installable it says so and ends with 77.
set -euo pipefail
action=$1 dir=$(mkdir -p "$2" && cd "$2" && pwd)
conf=$dir/slurm.conf

skip() { echo "no Slurm here: $1" >&2; exit 77; }

install() {
    command -v slurmctld slurmd munged >/dev/null && return
    command -v apt-get >/dev/null || skip "slurm-wlm and munge aren't installed, and there is no apt-get"
    echo "installing slurm-wlm and munge ..." >&2
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge; } \
        >"$dir/apt.log" 2>&1 || skip "apt-get can't install slurm-wlm ($dir/apt.log)"
}

start() {
    [ "$(id -u)" = 0 ] || skip "its daemons need root"
    install
    mkdir -p /run/munge "$dir/state" "$dir/spool" && chown munge: /run/munge
    # Whether this munged is ours to stop is what munged.pid in DIR says.
    if ! munge -n </dev/null >/dev/null 2>&1; then
        su munge -s /bin/sh -c munged >&2
        cat /run/munge/munged.pid >"$dir/munged.pid"
    fi
    cat >"$conf" <<CONF
ClusterName=noisescale
SlurmctldHost=localhost
SlurmUser=root
AuthInfo=cred_expire=5
SlurmctldPort=${SLURM_PORT:-16817}
SlurmdPort=$((${SLURM_PORT:-16817} + 1))
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=1
SlurmdTimeout=30
SchedulerParameters=sched_interval=5,bf_interval=5
NodeName=localhost NodeHostName=localhost NodeAddr=127.0.0.1 CPUs=$(env -u OMP_NUM_THREADS nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    slurmctld -f "$conf" >&2
    slurmd -f "$conf" -N localhost >&2
    for _ in $(seq 100); do
        if [ "$(SLURM_CONF=$conf sinfo -h -o %T 2>/dev/null)" = idle ]; then echo "$conf"; return; fi
        sleep 0.1
    done
    skip "its node doesn't come up ($dir/slurmd.log)"
}

stop() {
    SLURM_CONF=$conf scancel --signal=KILL --full --user=root 2>/dev/null || true
    for name in slurmd slurmctld munged; do
        if [ -f "$dir/$name.pid" ]; then kill "$(cat "$dir/$name.pid")" 2>/dev/null || true; fi
    done
}

"$action"
