#!/usr/bin/env bash
#SBATCH --job-name=digits
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
#SBATCH --output=runs/new.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

run_dir=runs/new
echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST"
mkdir -p "$run_dir/logs"
# For `lsgd launch --status`.
cat > "$run_dir/logs/job.json" <<JOB
{"job": "$SLURM_JOB_ID", "nodes": "$SLURM_JOB_NODELIST", "start": $((${SLURM_RESTART_COUNT:-0} + 1)), "began": "$(date -Is)", "log": "../new.log", "process_logs": "logs/rank*.log"}
JOB
log=$run_dir/logs/rank0.log
before=$(stat -c %s "$log" 2>/dev/null)
srun --cpu-bind=none --cpus-per-task=1 --kill-on-bad-exit=0 --wait=120 --open-mode=append --container-image=/images/lsgd-0.1.0.sqsh --container-mounts=/scratch:/scratch --container-workdir=/scratch --no-container-entrypoint "--output=$run_dir/logs/rank%t.log" \
    python3 -m lsgd.train +recipe=digits epochs=2 schedule.milestones=\[1\] schedule.warmup_epochs=0.5 run_dir=runs/new
code=$?
if ((code == 0)) && [[ $(stat -c %s "$log" 2>/dev/null) == "$before" ]]; then
    echo "lsgd: srun ended with 0, but process 0 wrote nothing to $log: nothing has trained"
    code=1
fi
# Stopped by a signal, such as USR2 before the time limit, with all its work saved: to be continued.
if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
